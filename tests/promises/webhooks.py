"""Promises of docs/webhooks.md and the tests that hold them."""

from __future__ import annotations

from collections.abc import Mapping

EVERY_EVENT = "acceptance/test_webhooks.py::test_every_event_comes_once_signed_and_in_order"
FILTERED = "acceptance/test_webhooks.py::test_only_events_that_match_the_filter_are_posted"

PROMISES: Mapping[str, tuple[str, ...]] = {
    "webhooks/what-is-posted-and-when/body": (
        "push/test_request.py::test_an_event_is_a_stream_response",
        EVERY_EVENT,
    ),
    "webhooks/what-is-posted-and-when/content-type": (
        "push/test_request.py::test_an_event_is_a_stream_response",
        EVERY_EVENT,
    ),
    "webhooks/what-is-posted-and-when/webhook-id": (
        "push/test_request.py::test_the_id_of_a_delivery_is_stable_and_unique",
        "features/webhooks/test_replayer.py::test_requests_are_served_by_the_successor_of_a_killed_watcher",
        "acceptance/test_webhooks.py::test_a_failed_event_is_retried_before_later_events",
        "store/test_append_and_settle.py::test_event_times_increase_although_the_clock_went_back",
    ),
    "webhooks/what-is-posted-and-when/webhook-timestamp-webhook-signature": (
        "push/test_signature.py::test_ed25519",
        "push/test_request.py::test_the_signature_is_of_this_post_and_its_time",
        "features/webhooks/test_deliverer.py::test_a_post_carries_the_time_of_the_store",
        EVERY_EVENT,
    ),
    "webhooks/what-is-posted-and-when/authorization": (
        "push/test_request.py::test_the_config_authenticates_the_sender",
        EVERY_EVENT,
    ),
    "webhooks/what-is-posted-and-when/x-a2a-notification-token": (
        "push/test_request.py::test_a_secret_signs_and_is_not_sent",
        "acceptance/test_webhooks.py::test_a_token_that_is_not_a_secret_is_sent_unchanged",
        EVERY_EVENT,
    ),
    "webhooks/what-is-posted-and-when/status": (FILTERED,),
    "webhooks/what-is-posted-and-when/terminal": (FILTERED,),
    "webhooks/what-is-posted-and-when/artifacts": (FILTERED,),
    "webhooks/what-the-owner-of-a-webhook-sees/state": (
        "features/webhooks/test_webhook_deliveries.py::test_the_owner_reads_what_became_of_the_posts_and_no_secret",
        "features/webhooks/test_webhook_deliveries.py::test_a_failed_delivery_is_due_at_once_after_a_replay",
        "acceptance/test_webhook_owners.py::test_the_owner_sees_a_receiver_fail_and_work_again",
    ),
    "webhooks/what-the-owner-of-a-webhook-sees/delivered-lastevent": (
        "features/webhooks/test_webhook_deliveries.py::test_the_owner_reads_what_became_of_the_posts_and_no_secret",
        "acceptance/test_webhook_owners.py"
        "::test_abandoned_events_are_delivered_after_a_replay_and_the_restart_of_a_watcher",
    ),
    "webhooks/what-the-owner-of-a-webhook-sees/requested": (
        "features/webhooks/test_webhook_deliveries.py::test_an_event_that_was_delivered_is_requested_by_its_id",
        "features/webhooks/test_webhook_deliveries.py::test_a_ping_has_a_separate_id",
        "acceptance/test_webhook_owners.py::test_a_ping_that_is_requested_without_a_watcher_is_made_by_the_next",
    ),
    "webhooks/what-the-owner-of-a-webhook-sees/outcome": (
        "features/webhooks/test_replayer.py::test_each_post_is_an_attempt_until_the_event_is_delivered",
        "features/webhooks/test_replayer.py::test_a_failed_ping_is_recorded_without_other_effects",
        "features/webhooks/test_replayer.py::test_a_ping_to_an_address_that_is_not_allowed_is_refused_and_names_no_address",
        "features/webhooks/test_replayer.py::test_a_name_that_is_not_found_looks_like_one_that_is_forbidden",
    ),
    "webhooks/what-the-owner-of-a-webhook-sees/status-latencyms": (
        "features/webhooks/test_webhook_deliveries.py::test_the_owner_reads_what_became_of_the_posts_and_no_secret",
        "features/webhooks/test_replayer.py::test_each_post_is_an_attempt_until_the_event_is_delivered",
        "acceptance/test_webhook_owners.py::test_a_ping_shows_whether_the_receiver_works",
    ),
    "webhooks/signatures/whsec_-base64-of-16-bytes-or-more": (
        "push/test_signature.py::test_a_secret_of_the_config_signs",
        "push/test_request.py::test_a_secret_signs_and_is_not_sent",
        "push/test_signature.py::test_a_secret_has_a_minimum_length",
    ),
    "webhooks/signatures/any-other-token": (
        "push/test_signature.py::test_any_other_token_signs_with_its_characters",
        "push/test_request.py::test_the_config_authenticates_the_sender",
        "acceptance/test_webhooks.py::test_a_token_that_is_not_a_secret_is_sent_unchanged",
    ),
    "webhooks/signatures/none": (
        "push/test_signature.py::test_without_a_token_the_deployment_derives_a_secret",
        "push/test_signature.py::test_a_derived_secret_never_changes",
        "push/test_request.py::test_headers_without_a_value_in_the_config_are_not_sent",
    ),
}

STATEMENTS: Mapping[str, str] = {}
