"""Promises of docs/durable-work.md and the tests that hold them."""

from __future__ import annotations

from collections.abc import Mapping

STEPS = "durable-work/when-a-recorded-result-is-used"
SIGNALS = "durable-work/wait-for-a-signal"
MESSAGES = "durable-work/messages-to-a-working-agent"

PROMISES: Mapping[str, tuple[str, ...]] = {
    f"{STEPS}/worker-killed-frozen-or-lost": (
        "acceptance/test_durable_steps.py::test_steps_on_workers_that_are_killed_between_every_two",
        "features/steps/test_durable_steps.py::test_a_later_attempt_receives_the_results_and_repeats_nothing",
        "features/steps/test_durable_steps.py::test_a_run_that_is_lost_does_not_use_the_result",
    ),
    f"{STEPS}/worker-shut-down-before-the-run-has-ended": (
        "acceptance/test_durable_steps.py::test_steps_of_a_worker_that_shuts_down",
        "acceptance/test_durable_steps.py::test_a_step_that_is_being_executed_when_its_worker_shuts_down",
    ),
    f"{STEPS}/retry-of-the-run-autoretry_for-turn-retry": (
        "features/steps/test_changed_steps.py::test_the_retry_of_a_run_repeats_only_the_step_that_failed",
        "store/test_journal.py::test_a_run_that_was_returned_or_retried_receives_the_entries",
    ),
    f"{STEPS}/suspension-by-turn-sleep-turn-wait_for-or-turn-call": (
        "features/waits/test_parallel_waits.py::test_a_run_is_suspended_after_the_steps_beside_the_wait",
        "features/waits/test_parallel_waits.py::test_a_run_is_suspended_after_the_steps_beside_a_call",
        "acceptance/test_killed_waits.py::test_waits_of_each_kind_on_processes_that_are_killed",
    ),
    f"{STEPS}/answer-to-turn-ask": (
        "features/steps/test_changed_steps.py::test_the_call_after_a_question_repeats_no_step",
        "features/questions/test_asking.py::test_an_answer_belongs_to_the_step_that_asked",
        "features/questions/test_asking.py::test_a_recorded_step_keeps_its_answer_whatever_the_agent_asks_first",
    ),
    f"{STEPS}/a2a-requeue-task": (
        "features/steps/test_durable_steps.py::test_a_requeued_task_has_the_results_and_the_keys",
        "acceptance/test_durable_steps.py::test_steps_of_a_task_that_is_requeued",
    ),
    f"{STEPS}/a2a-requeue-task-from-start": (
        "store/test_journal.py::test_a_task_that_is_requeued_from_the_start_has_no_journal",
        "acceptance/test_durable_steps.py::test_steps_of_a_task_that_is_requeued",
    ),
    f"{STEPS}/next-message-that-does-not-answer-an-ask-or": (
        "store/test_journal.py::test_an_answer_keeps_the_entries_and_another_message_deletes_them",
        "store/test_journal.py::test_the_journal_ends_with_its_task",
    ),
    f"{SIGNALS}/app-python-and-celery-tasks": (
        "execution/test_operator_signals.py::test_a_signal_resumes_a_run_or_is_stored",
        "acceptance/test_suspensions.py::test_a_celery_task_sends_signals_before_the_wait",
        "features/waits/test_waits.py::test_a_signal_continues_the_run",
    ),
    f"{SIGNALS}/operator": (
        "execution/test_operator_signals.py::test_the_command_reports_errors_in_one_line",
        "acceptance/test_suspensions.py::test_signals_from_each_sender_continue_a_task",
        "features/waits/test_waits.py::test_a_signal_continues_the_run",
    ),
    f"{SIGNALS}/client-the-client-that-owns-the-task-if-the": (
        "gateway/test_signals.py::test_a_signal_resumes_the_run_and_publishes_it",
        "gateway/test_signals.py::test_only_the_owner_of_a_task_sends_signals",
        "gateway/test_signals.py::test_a_client_sends_only_the_signals_that_the_agent_lists",
        "features/waits/test_waits.py::test_a_signal_continues_the_run",
    ),
    f"{MESSAGES}/queue-the-default": (
        "acceptance/test_steering.py::test_without_the_option_a_message_waits_for_a_question",
        "acceptance/test_gateway_resources.py::test_a_message_whose_task_ends_before_its_turn_is_refused",
        "acceptance/test_gateway_resources.py"
        "::test_a_waiting_message_without_a_client_is_in_the_history_of_the_ended_task",
        "store/test_ended_first.py::test_waiting_messages_are_in_the_history_and_marked",
    ),
    f"{MESSAGES}/steer": (
        "acceptance/test_steering.py::test_an_agent_reads_the_messages_that_arrive_while_it_works",
        "acceptance/test_steering.py::test_a_message_that_the_agent_does_not_read_becomes_its_next_turn",
        "store/test_incoming_messages.py::test_unread_messages_become_the_next_turn_whatever_the_end",
    ),
    f"{MESSAGES}/interrupt": (
        "acceptance/test_steering.py::test_a_message_interrupts_an_agent",
        "acceptance/test_steering.py::test_an_agent_that_ignores_its_interruption_is_ended_with_its_process",
        "store/test_incoming_messages.py::test_an_interrupted_run_ends_no_task",
        "store/test_incoming_messages.py::test_a_message_replaces_a_run_that_no_worker_has_claimed",
    ),
    f"{MESSAGES}/reject": (
        "acceptance/test_steering.py::test_an_agent_may_refuse_messages_while_it_works",
        "store/test_incoming_messages.py::test_reject_refuses_a_message_and_writes_nothing",
    ),
}

STATEMENTS: Mapping[str, str] = {}
