"""Promises of docs/guarantees.md and the tests that hold them."""

from __future__ import annotations

from collections.abc import Mapping

PROMISES: Mapping[str, tuple[str, ...]] = {
    "guarantees/failures/worker-killed-or-its-machine-lost": (
        "acceptance/test_recovery.py::test_runs_of_a_killed_worker_fail_or_are_attempted_again",
        "acceptance/test_broker_deliveries.py::test_prefetched_runs_of_a_killed_worker_start_on_another_worker",
        "acceptance/test_broker_deliveries.py::test_runs_of_a_killed_worker_are_recovered_in_each_mode",
    ),
    "guarantees/failures/worker-frozen": (
        "acceptance/test_recovery.py::test_a_frozen_worker_has_lost_its_run",
        "acceptance/test_recovery.py::test_a_frozen_worker_drops_its_runs_and_its_prefetched_messages",
        "store/test_recovery.py::test_a_worker_that_lost_its_run_can_write_nothing",
    ),
    "guarantees/failures/broker-killed-and-restarted": (
        "acceptance/test_broker_restarts.py::test_a_worker_with_prefetched_messages_survives_a_redis_restart",
        "acceptance/test_broker_rabbitmq.py::test_workers_and_gateways_go_on_and_nothing_runs_twice",
        "store/test_claim.py::test_a_run_is_claimed_once",
        "watcher/test_backlog.py::test_runs_published_before_their_queue_was_empty_are_published_again_once",
    ),
    "guarantees/failures/broker-does-not-respond": (
        "acceptance/test_broker_hangs.py::test_a_redis_that_freezes_and_wakes_up",
    ),
    "guarantees/failures/visibility-timeout-passed-redis": (
        "acceptance/test_broker_deliveries.py::test_a_run_beyond_the_visibility_timeout_starts_no_second_agent",
        "dispatch/test_kombu_ack_emulation.py::test_only_other_messages_are_recorded_in_redis",
    ),
    "guarantees/failures/store-unavailable": (
        "acceptance/test_store_outages.py::test_runs_of_a_worker_that_does_not_reach_the_store_wait_for_it",
        "execution/test_leases.py::test_a_run_that_cannot_be_elsewhere_continues_during_an_outage",
        "execution/test_leases.py::test_an_outage_longer_than_the_lease_loses_the_run",
    ),
    "guarantees/failures/store-full-maxmemory-oom": (
        "acceptance/test_full_store.py::test_a_task_that_runs_when_the_store_is_full_completes",
        "acceptance/test_store_outages.py::test_prefetched_runs_wait_for_memory_of_a_full_store_and_an_active_run_ends",
        "store/test_full_store.py::test_a_full_store_executes_or_refuses_each_script_as_documented",
        "store/test_full_store.py::test_a_full_store_fails_no_running_task",
    ),
    "guarantees/failures/the-session-and-the-final-event-of-a-run": (
        "features/sessions/test_store.py::test_the_next_run_gets_the_session_saved_with_an_end",
        "features/sessions/test_store.py::test_a_refused_settlement_saves_no_session",
        "features/sessions/test_store.py::test_a_checkpoint_is_found_by_the_next_attempt_as_its_own",
        "features/sessions/test_store.py::test_a_run_that_was_lost_saves_nothing",
        "features/sessions/test_workers.py::test_what_a_killed_worker_had_goes_on_from_its_last_checkpoint",
    ),
    "guarantees/failures/the-result-of-a-durable-step-is-recorded-before": (
        "features/steps/test_durable_steps.py::test_a_result_is_stored_before_it_is_used",
        "features/steps/test_durable_steps.py::test_the_key_of_a_step_is_the_same_in_each_attempt",
        "store/test_journal.py::test_an_entry_of_an_old_run_is_refused",
        "acceptance/test_durable_steps.py::test_steps_on_workers_that_are_killed_between_every_two",
    ),
    "guarantees/failures/a-suspended-run-exists-only-in-the-store-and": (
        "store/test_suspension.py::test_a_sleeping_run_has_no_lease_and_no_worker",
        "store/test_suspension.py::test_a_run_continues_at_its_time_and_not_before",
        "store/test_suspension.py::test_a_signal_between_the_check_and_the_suspension_is_not_lost",
        "store/test_suspension.py::test_a_wait_ends_either_by_its_signal_or_by_its_time",
        "store/test_suspension.py::test_two_signals_at_once_resume_the_run_once",
        "acceptance/test_timers_and_restarts.py::test_sleeps_end_after_restarts_and_not_before_their_time",
        "unit/test_guarantees_page.py::test_a_number_of_the_page_is_that_of_the_code",
    ),
    "guarantees/failures/a-reminder-of-a-question-is-sent-once-one": (
        "features/questions/test_reminders.py::test_concurrent_watchers_post_each_reminder_once_at_its_time",
        "features/questions/test_reminders.py::test_a_question_that_is_over_has_no_reminder",
        "acceptance/test_reminders.py::test_reminders_come_once_although_every_process_is_killed",
    ),
    "guarantees/failures/prefork-children-may-be-forked-or-spawned-the-guarantees": (
        "acceptance/test_spawned_children.py::test_the_children_are_spawned_and_run_an_agent",
        "acceptance/test_spawned_children.py::test_the_run_of_a_killed_child_fails_and_the_next_is_served",
        "acceptance/test_spawned_children.py::test_a_run_is_cancelled",
    ),
    "guarantees/failures/with-one_run_per_context-only-one-run-of-a-context-can": (
        "acceptance/test_context_queues.py::test_no_two_runs_of_a_context_overlap_whatever_is_killed",
        "store/test_context_queue.py::test_concurrent_workers_run_each_task_once_and_one_at_a_time",
        "acceptance/test_recovery.py::test_a_frozen_worker_has_lost_its_run",
        "features/sessions/test_store.py::test_a_run_that_was_lost_saves_nothing",
    ),
    "guarantees/failures/a-worker-reports-newly-prefetched-runs-to-the-store": (
        "execution/test_prefetched.py::test_new_runs_are_reported_at_once_and_known_ones_at_an_interval",
        "store/test_dispatch.py::test_a_prefetched_run_is_due_when_its_worker_stops_reporting",
        "dispatch/test_run_publisher.py::test_a_published_run_is_due",
        "acceptance/test_killed_workers.py::test_a_run_survives_its_worker_at_each_step",
        "acceptance/test_killed_workers.py::test_the_runs_that_a_killed_worker_has_prefetched_survive",
        "acceptance/test_store_outages.py::test_runs_of_a_worker_that_does_not_reach_the_store_wait_for_it",
        "unit/test_guarantees_page.py::test_a_number_of_the_page_is_that_of_the_code",
    ),
    "guarantees/failures/if-a-watcher-cannot-read-or-write-the-task": (
        "store/test_recovery.py::test_a_task_that_cannot_be_read_or_written_does_not_stop_the_recovery_of_others",
        "store/test_recovery.py::test_the_contents_of_a_task_are_not_read_to_fail_it",
        "unit/test_guarantees_page.py::test_a_number_of_the_page_is_that_of_the_code",
    ),
    "guarantees/failures/in-rabbitmq-consumer_timeout-30-minutes-limits-the-time-until": (
        "acceptance/test_rabbitmq_nodes.py::test_a_worker_goes_on_after_runs_have_waited_too_long_in_it",
        "execution/test_reconnect.py::test_only_failures_of_the_broker_are_a_lost_connection",
    ),
    "guarantees/failures/the-store-records-a-retry-of-an-agent-before": (
        "features/retries/test_retries.py::test_a_retry_is_published_after_it_was_stored",
        "acceptance/test_killed_workers.py::test_a_retry_that_waits_in_a_killed_worker_survives",
        "acceptance/test_retries.py::test_a_retry_outlives_the_worker_that_waits_for_its_time",
        "acceptance/test_retries.py::test_retries_and_attempts_after_lost_workers_are_counted_apart",
    ),
    "guarantees/failures/a-tick-of-a-schedule-starts-its-task-although": (
        "acceptance/test_schedules.py::test_a_prefetched_tick_survives_its_worker",
        "acceptance/test_schedules.py::test_a_tick_of_an_unavailable_store_survives_the_worker_that_has_its_message",
        "features/schedules/test_submission.py::test_a_tick_that_the_process_of_the_scheduler_cannot_submit_is_sent_to_a_worker",
    ),
    "guarantees/failures/a-redis-broker-without-persistence-loses-its-queue-when": (
        "watcher/test_backlog.py::test_runs_published_before_their_queue_was_empty_are_published_again_once",
        "watcher/test_backlog.py::test_a_message_that_a_queue_of_redis_lost_is_published_after_the_others",
    ),
    "guarantees/failures/if-broker-and-store-are-one-redis-server-a": (
        "acceptance/test_accept_and_publish.py::test_a_killed_gateway_loses_no_accepted_message_and_needs_no_watcher",
        "acceptance/test_brokers.py::test_a_message_accepted_during_an_outage_of_the_broker_runs_after_it",
        "store/test_dispatch.py::test_a_new_run_is_not_due_until_its_creator_had_time_to_publish_it",
    ),
    "guarantees/when-a-run-is-published-again/the-queue-may-still-contain-the-message-unless-one": (
        "watcher/test_backlog.py::test_runs_in_a_long_queue_are_not_published_again",
        "watcher/test_backlog.py::test_runs_published_before_their_queue_was_empty_are_published_again_once",
        "watcher/test_backlog.py::test_a_lost_message_in_a_queue_that_is_never_empty_is_published_again_after_a_later_claim",
        "store/test_dispatch.py::test_an_unpublished_or_lost_prefetched_run_is_in_no_queue",
        "dispatch/test_publisher.py::test_a_queue_reports_whether_messages_wait_in_it",
    ),
    "guarantees/when-a-run-is-published-again/a-run-is-overtaken-when-a-worker-has-claimed": (
        "watcher/test_backlog.py::test_runs_of_a_slow_queue_are_not_multiplied_by_a_claim_that_overtook_none",
        "watcher/test_backlog.py::test_a_run_with_a_priority_is_overtaken_by_claims_of_its_own_priority_only",
        "watcher/test_backlog.py::test_a_claim_of_a_run_that_was_published_again_overtakes_no_run",
        "watcher/test_backlog.py::test_claims_are_read_once_in_a_tick_and_only_for_queues_that_are_not_empty",
        "watcher/test_service.py::test_a_claim_overtakes_runs_that_were_published_a_third_of_the_lease_earlier",
        "store/test_dispatch.py::test_claimed_runs_of_the_newest_leases_are_read",
        "unit/test_guarantees_page.py::test_a_number_of_the_page_is_that_of_the_code",
    ),
    "guarantees/when-a-run-is-published-again/if-the-message-of-a-run-may-be-in": (
        "watcher/test_backlog.py::test_a_run_that_may_be_in_its_queue_is_checked_again_when_it_has_waited_twice_as_long",
        "watcher/test_backlog.py::test_a_lost_message_in_a_queue_that_is_never_empty_is_published_again_after_a_later_claim",
        "dispatch/test_run_publisher.py::test_a_published_run_is_due",
    ),
    "guarantees/when-a-run-is-published-again/if-no-worker-claims-runs-from-a-queue-that": (
        "store/test_dispatch.py::test_a_run_is_published_unconditionally_after_the_longest_delay_and_its_double",
        "unit/test_guarantees_page.py::test_a_number_of_the_page_is_that_of_the_code",
    ),
    "guarantees/when-a-run-is-published-again/a-message-with-an-eta-or-for-a-retry": (
        "watcher/test_dispatcher.py::test_due_runs_are_published_once",
        "store/test_claim.py::test_a_run_is_claimed_once",
        "store/test_release.py::test_a_copy_of_the_first_message_does_not_start_the_retry",
    ),
    "guarantees/when-a-run-is-published-again/a-worker-without-this-package-would-execute-every-copy": (
        "watcher/test_published_calls.py::test_a_run_that_a_stock_worker_may_have_is_not_published_again",
        "watcher/test_published_calls.py::test_a_run_is_published_again_if_all_workers_of_its_queue_claim_runs",
        "watcher/test_published_calls.py::test_a_run_that_no_worker_reports_ends_as_lost",
        "acceptance/test_stock_workers.py::test_a_run_of_a_killed_stock_worker_ends_as_lost",
        "unit/test_guarantees_page.py::test_a_number_of_the_page_is_that_of_the_code",
    ),
    "guarantees/when-a-run-is-published-again/each-time-a-run-is-published-the-wait-until": (
        "store/test_dispatch.py::test_the_delay_doubles_up_to_a_limit",
        "watcher/test_dispatcher.py::test_a_run_that_stays_unclaimed_is_published_less_and_less_often",
        "store/test_dispatch.py::test_a_busy_worker_does_not_delay_a_run_longer_than_a_fresh_publish",
        "watcher/test_service.py::test_a_run_is_published_again_after_the_time_of_the_settings",
    ),
    "guarantees/when-a-run-is-published-again/if-the-options-of-a-run-contain-an-exchange": (
        "watcher/test_backlog.py::test_a_run_whose_queue_is_unknown_is_published_again_without_a_check",
        "dispatch/test_publisher.py::test_the_queue_of_a_run_is_the_one_it_is_published_to",
    ),
    "guarantees/lost-writes-of-the-store/events-or-recorded-steps-of-an-active-run": (
        "store/test_recovery.py::test_a_run_whose_confirmed_events_the_store_lost_lapses",
        "store/test_recovery.py::test_a_cancel_applies_to_a_run_whose_confirmed_events_the_store_lost",
        "store/test_lost_writes.py::test_a_run_whose_recorded_step_is_lost_writes_nothing_more",
        "execution/test_settlement.py::test_a_run_whose_events_the_store_lost_is_lost_and_logged",
    ),
    "guarantees/lost-writes-of-the-store/the-claim-of-a-run": (
        "store/test_lost_writes.py::test_a_run_whose_claim_is_lost_is_claimed_again_and_its_first_worker_writes_nothing",
        "execution/test_leases.py::test_only_a_lost_run_is_given_up",
    ),
    "guarantees/lost-writes-of-the-store/the-final-event-of-a-run": (
        "store/test_lost_writes.py::test_a_run_whose_final_event_is_lost_ends_like_the_run_of_a_lost_worker",
        "store/test_follow.py::test_a_reader_of_lost_entries_starts_over",
        "features/webhooks/test_deliverer.py::test_events_that_replace_lost_ones_are_posted_with_other_ids",
    ),
    "guarantees/lost-writes-of-the-store/an-accepted-message-or-task": (
        "store/test_lost_writes.py::test_a_lost_message_is_unknown_and_may_be_sent_again",
        "store/test_follow.py::test_a_reader_of_a_task_that_the_store_lost_ends",
        "gateway/test_jsonrpc.py::test_the_id_of_a_request_comes_back",
    ),
    "guarantees/replica-confirmation/an-accepted-message-task-or-signal": (
        "store/test_replication.py::test_a_replica_has_accepted_messages",
        "store/test_replication.py::test_a_replica_has_the_large_parts_of_an_accepted_message",
        "store/test_replication.py::test_a_signal_that_no_replica_confirms_is_refused_and_a_repetition_stores_it_once",
        "acceptance/test_failover.py::test_a_killed_primary_hangs_nothing_and_loses_nothing_but_its_newest_writes",
    ),
    "guarantees/replica-confirmation/the-final-event-of-a-run": (
        "store/test_lost_writes.py::test_a_run_whose_final_event_is_lost_ends_like_the_run_of_a_lost_worker",
        "store/test_replication.py::test_an_append_is_confirmed_if_it_ends_the_task",
        "store/test_replication.py::test_an_end_that_no_replica_confirms_counts_and_is_logged",
        "store/test_recovery.py::test_a_run_whose_confirmed_events_the_store_lost_lapses",
    ),
    "guarantees/replica-confirmation/a-message": (
        "store/test_replication.py::test_an_accepted_message_that_no_replica_confirms_is_refused_and_a_repetition_finds_it",
    ),
    "guarantees/replica-confirmation/a-signal": (
        "store/test_replication.py::test_a_signal_that_no_replica_confirms_is_refused_and_a_repetition_stores_it_once",
    ),
    "guarantees/replica-confirmation/the-final-event-of-a-task": (
        "store/test_replication.py::test_an_end_that_no_replica_confirms_counts_and_is_logged",
    ),
    "guarantees/how-readers-detect-lost-events/an-open-stream-or-a-blocking-call": (
        "store/test_follow.py::test_a_reader_of_lost_entries_starts_over",
        "store/test_follow.py::test_without_a_notification_a_reader_reads_the_log_after_15_s",
        "gateway/test_resuming.py::test_a_stream_that_has_only_sent_the_task_sends_it_again",
        "acceptance/test_recovery.py::test_a_store_that_comes_back_without_its_newest_writes_fails_the_task_and_its_reader_begins_anew",
        "unit/test_guarantees_page.py::test_a_number_of_the_page_is_that_of_the_code",
    ),
    "guarantees/how-readers-detect-lost-events/a-client-that-resumes-with-a-last-event-id": (
        "gateway/test_resuming.py::test_a_client_whose_last_event_is_lost_gets_the_task",
        "store/test_follow.py::test_a_reader_that_resumes_after_a_lost_event_starts_over",
        "client/test_lost_connections.py::test_a_client_restarts_if_the_store_lost_its_newest_events",
        "browser/test_page.py::test_a_task_is_replaced_if_the_store_has_lost_its_newest_events",
    ),
    "guarantees/how-readers-detect-lost-events/a-client-that-resumes-with-a-version-alone-last": (
        "acceptance/test_streams.py::test_an_impossible_last_event_id_is_an_invalid_parameter",
        "gateway/test_resuming.py::test_a_version_alone_is_accepted_as_an_id",
        "store/test_follow.py::test_a_reader_that_resumes_after_a_stored_event_continues",
    ),
    "guarantees/how-readers-detect-lost-events/a-client-over-grpc-or-without-last-event-id": (
        "gateway/test_resuming.py::test_a_stream_that_has_only_sent_the_task_sends_it_again",
        "acceptance/test_streams.py::test_every_binding_resumes_after_an_event",
    ),
    "guarantees/how-readers-detect-lost-events/a-webhook": (
        "features/webhooks/test_deliverer.py::test_events_that_replace_lost_ones_are_posted_with_other_ids",
    ),
    "guarantees/how-readers-detect-lost-events/a-receiver-with-a2a_celery-client-receiver": (
        "client/test_receiver.py::test_events_in_the_place_of_lost_ones_are_handled",
        "client/test_deduplication.py::test_later_events_with_versions_of_lost_ones_are_new",
    ),
    "guarantees/how-readers-detect-lost-events/a2a-tail-store": (
        "store/test_stored_task.py::TestOneTask::test_lost_events_are_reported_before_the_task_is_shown_again",
    ),
    "guarantees/clocks/active-runs": ("watcher/test_store_clock.py::test_a_jump_takes_no_run_from_a_living_worker",),
    "guarantees/clocks/a-run-whose-worker-is-lost": (
        "watcher/test_store_clock.py::test_after_a_jump_a_lost_run_is_recovered",
        "watcher/test_store_clock.py::test_a_lease_from_before_a_jump_backward_is_shortened",
    ),
    "guarantees/clocks/all-other-stored-times-pauses-sleeps-reminders-retries-runs": (
        "watcher/test_store_clock.py::test_other_times_are_due_earlier_or_later",
        "watcher/test_store_clock.py::test_a_run_that_was_published_before_a_jump_backward_is_published_again",
        "watcher/test_dispatcher.py::test_a_run_that_has_expired_by_one_clock_only_is_published",
        "archive/test_reads_while_archiving.py::test_the_archive_forgets_what_is_too_old_for_it",
    ),
    "guarantees/clocks/a-worker-compares-the-times-of-a-message-celery": (
        "store/test_dispatch.py::test_a_run_with_a_start_time_is_due_again_after_it_with_its_options",
        "watcher/test_dispatcher.py::test_the_store_s_clock_decides_when_a_run_may_start",
    ),
    "guarantees/clocks/watchers-use-the-store-s-clock-before-a-watcher": (
        "watcher/test_dispatcher.py::test_a_run_that_has_expired_by_one_clock_only_is_published",
        "watcher/test_dispatcher.py::test_a_run_that_has_expired_is_rejected_and_not_published",
    ),
    "guarantees/clocks/if-the-clock-of-a-worker-is-fast-the": (
        "unit/test_diagnosis.py::test_a_finding_names_its_remedy",
    ),
    "guarantees/clocks/a-watcher-that-has-just-started-does-not-know": (
        "store/test_recovery.py::test_after_its_start_a_watcher_gives_workers_time_to_renew",
        "watcher/test_service.py::test_runs_are_recovered_after_the_lease_of_the_settings",
    ),
    "guarantees/full-store/renew-leases-cancel-requeue-a-run": (
        "store/test_full_store.py::test_a_full_store_executes_or_refuses_each_script_as_documented",
        "store/test_full_store.py::test_a_full_store_fails_no_running_task",
    ),
    "guarantees/full-store/ending-pausing-or-retrying-a-run-with-at-most": (
        "store/test_full_store.py::test_a_full_store_executes_or_refuses_each_script_as_documented",
        "acceptance/test_store_outages.py::test_prefetched_runs_wait_for_memory_of_a_full_store_and_an_active_run_ends",
        "unit/test_guarantees_page.py::test_a_number_of_the_page_is_that_of_the_script",
    ),
    "guarantees/full-store/a-larger-final-event-artifact-chunks-progress-checkpoints": (
        "store/test_full_store.py::test_a_full_store_executes_or_refuses_each_script_as_documented",
        "store/test_full_store.py::test_a_full_store_fails_no_running_task",
    ),
    "guarantees/full-store/a-message-a-claim-publishing-a-waiting-run-requeueing": (
        "store/test_full_store.py::test_a_full_store_executes_or_refuses_each_script_as_documented",
        "store/test_stored_blobs.py::test_a_full_store_refuses_a_large_message",
    ),
    "guarantees/full-store/recovery-of-a-run-with-an-expired-lease": (
        "store/test_full_store.py::test_a_full_store_executes_or_refuses_each_script_as_documented",
        "store/test_full_store.py::test_a_full_store_fails_no_running_task",
        "store/test_recovery.py::test_a_store_that_refused_writes_gives_the_workers_time_to_renew",
    ),
    "guarantees/full-store/webhook-deliveries-timeouts-of-pauses-archiving-deletions": (
        "store/test_full_store.py::test_a_full_store_executes_or_refuses_each_script_as_documented",
    ),
    "guarantees/full-store/reads": (
        "store/test_full_store.py::test_a_full_store_executes_or_refuses_each_script_as_documented",
    ),
    "guarantees/broker-failures/for-a-redis-broker-a-worker-sets-socket_timeout-socket_connect_timeout": (
        "unit/test_broker_guards.py::test_a_worker_detects_a_redis_broker_that_does_not_respond",
        "acceptance/test_broker_hangs.py::test_a_worker_s_line_to_redis_that_dies_in_silence",
        "unit/test_guarantees_page.py::test_a_number_of_the_page_is_that_of_the_code",
    ),
    "guarantees/broker-failures/runs-are-published-over-separate-connections-if-the-broker": (
        "acceptance/test_broker_hangs.py::test_a_redis_that_freezes_and_wakes_up",
        "acceptance/test_broker_hangs.py::test_publishers_with_silently_dropped_connections",
        "unit/test_broker_guards.py::test_publishing_over_amqp_is_confirmed_in_time",
        "dispatch/test_publisher.py::test_a_full_queue_of_rabbitmq_is_no_outage_of_the_broker",
        "unit/test_guarantees_page.py::test_a_number_of_the_page_is_that_of_the_code",
    ),
    "guarantees/broker-failures/if-the-app-raises-an-exception-when-a-run": (
        "dispatch/test_publisher.py::test_an_exception_of_the_app_is_no_refusal_of_the_broker",
        "watcher/test_dispatcher.py::test_a_run_whose_publication_raises_an_exception_of_the_app_fails_after_a_few_attempts",
        "watcher/test_dispatcher.py::test_a_published_run_that_cannot_be_published_again_waits",
    ),
    "guarantees/broker-failures/if-the-broker-does-not-respond-while-a-worker": (
        "execution/test_reconnect.py::test_a_worker_that_starts_while_its_broker_does_not_answer_connects_again",
        "execution/test_reconnect.py::test_celery_still_ends_such_a_worker",
        "execution/test_reconnect.py::test_a_worker_whose_reply_queue_is_lost_connects_again",
        "execution/test_reconnect.py::test_celery_still_ends_a_worker_whose_reply_queue_is_lost",
    ),
    "guarantees/broker-failures/a-worker-that-stops-sigterm-waits-for-its-runs": (
        "execution/test_shutdown.py::test_the_shutdown_waits_for_agents_while_the_store_answers",
        "execution/test_shutdown.py::test_runs_with_expired_leases_are_given_up",
        "acceptance/test_broker_restarts.py::test_workers_stop_while_a_server_does_not_answer",
        "acceptance/test_killed_workers.py::test_a_run_survives_its_worker_at_each_step",
    ),
    "guarantees/broker-failures/a-redis-broker-that-refuses-writes-because-it-is": (
        "dispatch/test_kombu_refused_writes.py::test_no_connection_to_a_broker_that_refuses_writes",
        "dispatch/test_kombu_refused_writes.py::test_a_message_delivered_by_a_full_broker_is_not_lost",
        "acceptance/test_broker_restarts.py::test_a_worker_with_prefetched_messages_survives_a_redis_that_refuses_writes",
    ),
    "guarantees/broker-failures/with-kombu-5-7-a-worker-that-holds-messages": (
        "unit/test_broker_guards.py::test_a_patched_closed_channel_of_this_kombu_raises_a_connection_error",
        "acceptance/test_broker_restarts.py::test_a_worker_with_prefetched_messages_survives_a_redis_restart",
    ),
    "guarantees/acknowledgement/worker-killed-active-run": (
        "acceptance/test_recovery.py::test_runs_of_a_killed_worker_fail_or_are_attempted_again",
        "acceptance/test_broker_deliveries.py::test_runs_of_a_killed_worker_are_recovered_in_each_mode",
    ),
    "guarantees/acknowledgement/worker-killed-prefetched-run-including-a-run-with-an": (
        "acceptance/test_killed_workers.py::test_the_runs_that_a_killed_worker_has_prefetched_survive",
        "acceptance/test_killed_workers.py::test_a_retry_that_waits_in_a_killed_worker_survives",
        "acceptance/test_broker_deliveries.py::test_runs_of_a_killed_worker_are_recovered_in_each_mode",
    ),
    "guarantees/acknowledgement/worker-killed-between-the-fetch-and-its-report-of": (
        "acceptance/test_killed_workers.py::test_a_run_survives_its_worker_at_each_step",
    ),
    "guarantees/acknowledgement/worker-stopped-sigterm-with-prefetched-runs": (
        "acceptance/test_killed_workers.py::test_a_worker_that_stops_returns_its_prefetched_runs",
        "acceptance/test_broker_deliveries.py::test_a_worker_that_stops_requeues_its_prefetched_runs_in_each_mode",
        "acceptance/test_shutdown.py::test_what_waits_in_a_worker_runs_elsewhere_at_once",
    ),
    "guarantees/acknowledgement/broker-restarted-active-run": (
        "acceptance/test_broker_restarts.py::test_a_worker_with_prefetched_messages_survives_a_redis_restart",
        "acceptance/test_broker_rabbitmq.py::test_workers_and_gateways_go_on_and_nothing_runs_twice",
        "acceptance/test_broker_deliveries.py::test_an_active_run_that_the_broker_redelivers_after_an_interruption_is_dropped",
    ),
    "guarantees/acknowledgement/broker-restarted-prefetched-run": (
        "acceptance/test_broker_restarts.py::test_a_worker_with_prefetched_messages_survives_a_redis_restart",
        "acceptance/test_broker_rabbitmq.py::test_workers_and_gateways_go_on_and_nothing_runs_twice",
        "acceptance/test_broker_deliveries.py::test_an_active_run_that_the_broker_redelivers_after_an_interruption_is_dropped",
    ),
    "guarantees/acknowledgement/visibility-timeout-passed": (
        "acceptance/test_broker_deliveries.py::test_a_run_beyond_the_visibility_timeout_starts_no_second_agent",
        "acceptance/test_round_trips.py::test_commands_of_a_run_at_a_redis_broker",
    ),
}

STATEMENTS: Mapping[str, str] = {
    "guarantees/replica-confirmation/events-of-an-active-run-recorded-steps-claims-checkpoints": (
        "names the writes that a failover may lose in either case"
    ),
}
