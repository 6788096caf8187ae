"""Promises of docs/limits.md and the tests that hold them."""

from __future__ import annotations

from collections.abc import Mapping

LIMITS = "gateway/test_limits.py"
REQUEST_SIZES = "gateway/test_request_sizes.py"
STORE = "features/limits/test_store.py"
BUCKETS = "store/test_token_buckets.py"
PAGE = "unit/test_limits_page.py"
CONNECTIONS = "gateway/test_http_connections.py"
GRPC_CONNECTIONS = "gateway/test_grpc_connections.py"
GRPC_CALLS = "gateway/test_grpc_authentication.py"

EACH_BINDING = f"{LIMITS}::test_every_limit_refuses_in_every_binding_and_stores_nothing"
EXACTLY = "store/test_limits_in_any_order.py::test_every_task_is_continued_and_counted_after_any_operations"
ABOVE_THE_WATERMARK = f"{LIMITS}::test_above_the_watermark_no_message_is_accepted_and_what_runs_ends"
STREAMS = f"{LIMITS}::test_streams_of_an_owner_are_bounded_over_all_bindings_together"
STORED_BYTES = f"{LIMITS}::test_stored_bytes_refuse_every_message_in_every_binding"
WEBHOOKS = f"{LIMITS}::test_a_webhook_beyond_the_owner_s_limit_is_refused"
CHILDREN = "features/families/test_store.py::test_a_parent_has_a_maximum_of_live_children"
GATE = "gateway/test_gate.py"
READS = f"{GATE}::test_reads_of_an_owner_are_bounded_and_wait_in_order"
ANSWERS = f"{GATE}::test_the_number_of_an_owners_answers_is_limited"
WORK = f"{GATE}::test_the_work_of_an_owner_does_not_delay_another_owner"
SHARE = f"{GATE}::test_with_a_rate_limit_the_work_of_an_owner_takes_a_share_of_the_time"
BODIES = "gateway/test_bodies.py::test_bodies_of_one_owner_that_arrive_at_once_are_bounded"
CALLS = f"{GRPC_CALLS}::test_an_owner_occupies_a_tenth_of_the_concurrent_calls"
FIXED = f"{PAGE}::test_its_fixed_limits_are_the_codes"
NUMBERS = f"{PAGE}::test_its_numbers_are_the_codes"
DELAYS = f"{PAGE}::test_its_retry_delays_are_the_codes"
SIZES = f"{PAGE}::test_its_sizes_of_requests_are_the_codes"
PAGES = f"{PAGE}::test_its_pages_are_the_codes"

PROMISES: Mapping[str, tuple[str, ...]] = {
    "limits/limits/owner_requests_per_second-owner_request_burst": (
        EACH_BINDING,
        f"{LIMITS}::test_after_a_burst_the_rate_limits_requests",
        f"{LIMITS}::test_the_default_burst_is_the_number_of_requests_in_one_second",
        f"{BUCKETS}::test_a_bucket_allows_its_burst_and_then_one_at_a_time",
        f"{GATE}::test_a_read_takes_one_token",
        f"{GATE}::test_with_a_rate_limit_large_transfers_of_an_owner_wait",
    ),
    "limits/limits/owner_max_concurrent_tasks": (
        EACH_BINDING,
        EXACTLY,
        f"{LIMITS}::test_an_answer_to_a_question_is_a_run_too",
        f"{STORE}::test_limits_of_an_owner_span_tenants",
        f"{STORE}::test_a_run_that_continues_elsewhere_keeps_its_slot",
    ),
    "limits/limits/1-000-fixed": (CHILDREN, FIXED),
    "limits/limits/owner_max_webhooks": (
        WEBHOOKS,
        "features/webhooks/test_push_configs.py"
        "::test_the_configs_of_an_owner_are_limited_across_tasks_until_they_are_deleted_or_expire",
    ),
    "limits/limits/owner_max_streams": (
        STREAMS,
        f"{LIMITS}::test_the_end_of_a_stream_frees_its_slot",
    ),
    "limits/limits/1-000-fixed-2": (CALLS, FIXED),
    "limits/limits/1-000-fixed-3": (READS, WORK, SHARE, FIXED),
    "limits/limits/64-mib-fixed": (BODIES, SIZES),
    "limits/limits/10-fixed": (ANSWERS, FIXED),
    "limits/limits/agent_max_queue": (
        EACH_BINDING,
        EXACTLY,
        f"{LIMITS}::test_tasks_of_all_agents_count_and_a_queue_is_an_agents_own",
        f"{STORE}::test_a_queue_limit_is_per_agent",
    ),
    "limits/limits/owner_max_stored_bytes": (
        STORED_BYTES,
        f"{STORE}::test_each_byte_of_a_task_counts_until_its_keys_expire",
        f"{STORE}::test_a_message_that_would_exceed_the_bytes_is_refused_and_a_smaller_one_is_not",
    ),
    "limits/limits/store_watermark": (
        ABOVE_THE_WATERMARK,
        "store/test_memory.py::test_the_watermark_is_reached_above_its_share_and_left_below_it",
    ),
    "limits/what-the-client-sees/rate": (
        f"{LIMITS}::test_after_a_burst_the_rate_limits_requests",
        f"{BUCKETS}::test_a_bucket_is_never_fuller_than_it_can_be",
        DELAYS,
    ),
    "limits/what-the-client-sees/watermark": (ABOVE_THE_WATERMARK,),
    "limits/what-the-client-sees/streams-grpc-calls": (STREAMS, CALLS, DELAYS),
    "limits/what-the-client-sees/waiting-reads-bodies-that-arrive-at-the-same-time": (
        BODIES,
        DELAYS,
        READS,
        ANSWERS,
        "features/webhooks/test_webhook_deliveries.py::test_the_number_of_waiting_pings_is_limited",
    ),
    "limits/what-the-client-sees/child-tasks-webhooks-stored-bytes": (
        CHILDREN,
        WEBHOOKS,
        STORED_BYTES,
    ),
    "limits/what-the-client-sees/concurrent-tasks-queue-of-an-agent": (
        f"{LIMITS}::test_the_retry_time_follows_the_duration_of_runs",
        f"{LIMITS}::test_the_retry_time_follows_the_waiting_time_of_runs",
        EACH_BINDING,
    ),
    "limits/what-the-client-sees/http-json-1-0-and-0-3": (EACH_BINDING,),
    "limits/what-the-client-sees/json-rpc-1-0-and-0-3": (EACH_BINDING,),
    "limits/what-the-client-sees/grpc": (EACH_BINDING,),
    "limits/size-of-a-request/a-body-including-a-chunked-body-a-grpc-message": (
        "acceptance/test_hostile.py::test_a_body_that_is_too_large_is_refused",
        f"{REQUEST_SIZES}::test_a_message_packed_small_is_measured_unpacked",
        f"{REQUEST_SIZES}::test_an_unexpected_body_is_limited_too",
    ),
    "limits/size-of-a-request/http-bodies-of-an-owner-that-arrive-at-a": (BODIES, SIZES),
    "limits/size-of-a-request/a-task-when-a-further-message-arrives": (
        f"{LIMITS}::test_a_task_at_its_maximum_size_takes_no_more_messages",
        "execution/test_limits.py::test_the_size_of_a_task_does_not_limit_its_agent",
        "store/test_journal.py::test_the_size_of_a_task_has_the_bytes_of_its_entries",
        EXACTLY,
        SIZES,
    ),
    "limits/size-of-a-request/values-in-a-json-body-parts-texts-in-lists": (
        "gateway/test_bodies.py::test_values_are_counted_before_they_are_parsed",
        f"{REQUEST_SIZES}::test_over_grpc_too_a_message_has_an_end",
        NUMBERS,
    ),
    "limits/size-of-a-request/nesting-of-a-json-body": (
        "gateway/test_bodies.py::test_a_body_may_be_nested_up_to_its_maximum_depth",
        NUMBERS,
    ),
    "limits/size-of-a-request/nesting-within-data-and-within-each-value-of-metadata": (
        "gateway/test_requests.py::test_values_of_the_deepest_nesting_are_executed_and_read",
        "gateway/test_requests.py::test_values_that_are_nested_too_deeply_are_refused_in_every_binding",
        "unit/test_translate.py::test_the_deepest_values_can_be_decoded_in_a_task",
        "unit/test_translate.py::test_values_that_are_nested_too_deeply_are_refused",
        "unit/test_json_values.py::test_all_values_that_are_too_deep_get_the_same_error",
    ),
    "limits/size-of-a-request/the-schema-of-a-question": (
        "unit/test_answers.py::test_a_schema_that_a_question_cannot_have",
        "unit/test_answers.py::test_a_schema_that_is_too_deep",
        NUMBERS,
    ),
    "limits/size-of-a-request/the-answer-to-a-question-with-a-schema": (
        "unit/test_answers.py::test_a_refusal_names_the_field_and_the_rule",
        "unit/test_answers.py::test_the_check_of_a_costly_answer_is_bounded",
        "unit/test_answers.py::test_a_schema_that_refers_to_itself_is_refused_before_the_stack_is_full",
        "unit/test_answers.py::test_a_check_ends_when_its_cpu_time_is_used_up",
        SIZES,
    ),
    "limits/size-of-a-request/ids-and-tenants-a-page-token": (
        f"{REQUEST_SIZES}::test_a_name_that_is_too_long_is_refused",
        "acceptance/test_errors.py::test_what_is_wrong_with_a_message_is_named",
        NUMBERS,
    ),
    "limits/size-of-a-request/tasks-that-a-message-refers-to": (
        "acceptance/test_references.py::test_a_message_refers_to_so_many_tasks_at_most",
        NUMBERS,
    ),
    "limits/size-of-a-request/fields-of-a-grpc-request-parsed-or-not": (
        "gateway/test_bodies.py::test_fields_are_counted_as_protobuf_has_them",
        "gateway/test_bodies.py::test_unknown_fields_are_counted_too",
        "gateway/test_bodies.py::test_over_grpc_too_a_message_refused_before_parsing_costs_a_token",
        SIZES,
    ),
    "limits/size-of-a-request/headers-chunk-extensions-and-trailers": (
        "acceptance/test_http_heads.py::test_headers_without_an_end",
        f"{CONNECTIONS}::test_framing_without_an_end_closes_the_connection",
        SIZES,
    ),
    "limits/size-of-a-request/pipelined-requests-requests-of-an-http-1-1-connection": (
        f"{CONNECTIONS}::test_many_pipelined_requests_are_answered_in_order_and_bounded",
    ),
    "limits/size-of-a-request/time-from-the-opening-of-a-connection-to-the": (
        f"{CONNECTIONS}::test_a_connection_without_a_head_is_closed",
        f"{CONNECTIONS}::test_the_head_of_a_second_request_has_a_time_too",
        SIZES,
    ),
    "limits/size-of-a-request/time-for-a-body": (
        f"{CONNECTIONS}::test_a_body_that_does_not_come_is_refused",
        f"{CONNECTIONS}::test_a_body_that_arrives_has_more_time",
        SIZES,
    ),
    "limits/size-of-a-request/time-for-a-grpc-request-after-the-caller-is": (
        f"{GRPC_CALLS}::test_a_call_whose_request_does_not_arrive_ends",
        SIZES,
    ),
    "limits/size-of-a-request/concurrent-grpc-calls": (
        f"{GRPC_CONNECTIONS}::test_a_connection_has_a_maximum_number_of_calls",
        CALLS,
        f"{GRPC_CALLS}::test_a_gateway_process_has_a_maximum_number_of_concurrent_calls",
        f"{GRPC_CALLS}::test_little_of_a_request_is_received_before_its_caller_is_known",
        SIZES,
    ),
    "limits/size-of-a-request/a-grpc-connection-without-a-call": (
        f"{GRPC_CONNECTIONS}::test_a_connection_without_a_call_is_closed",
        SIZES,
    ),
    "limits/size-of-a-request/grpc-metadata": (
        f"{GRPC_CONNECTIONS}::test_metadata_has_a_maximum_size",
        "acceptance/test_hostile.py::test_so_has_metadata",
    ),
    "limits/size-of-a-read/a-page-of-listtasks": (
        "store/test_page_bytes.py::test_a_page_of_tasks_ends_before_it_is_too_large",
        "store/test_page_bytes.py::test_a_task_that_is_larger_than_a_page_gets_its_own_page",
        "store/test_blobs.py::test_a_page_ends_early_after_large_parts",
        PAGES,
    ),
    "limits/size-of-a-read/a-page-of-a-task-s-log-for-streams": (
        "store/test_page_bytes.py::test_a_page_of_a_log_is_limited_in_bytes",
        PAGES,
    ),
    "limits/size-of-a-read/a-page-of-a-task-s-log-for-webhooks": (
        "features/webhooks/test_deliverer.py::test_a_page_of_a_log_has_a_maximum_of_entries_and_bytes",
        "features/webhooks/test_deliverer.py::test_large_events_are_delivered_within_the_memory_budget",
        "features/webhooks/test_deliverer.py::test_large_deliveries_of_one_owner_to_slow_hosts_do_not_delay_other_owners",
        PAGES,
    ),
    "limits/size-of-a-read/large-parts-blobs-in-http-responses-to-an-owner": (
        "store/test_object_stores.py::test_the_responses_to_one_owner_reserve_at_most_half_of_the_memory_budget",
        "store/test_object_stores.py::test_a_read_that_waits_too_long_for_memory_fails",
        "gateway/test_slow_clients.py::test_a_client_that_does_not_read_its_response_does_not_delay_other_owners",
        "gateway/test_slow_clients.py::test_a_response_that_its_client_does_not_read_is_cut",
        PAGES,
    ),
    "limits/size-of-a-read/a-replay-that-the-owner-of-a-webhook-requests": (
        "features/webhooks/test_replayer.py::test_large_events_are_replayed_one_at_a_time",
        "features/webhooks/test_replayer.py::test_an_event_is_replayed_unchanged_and_with_its_id",
    ),
}

STATEMENTS: Mapping[str, str] = {}
