"""Settlement of a run: its last events, the data of its features, and the next run of the context."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableSequence, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from a2a.types import TaskState, TaskStatusUpdateEvent

from ...dispatch import RunOptions
from ...errors import A2ACeleryError, BlobsUnavailable, EndRun
from ...features.sections import PAUSE_SECTIONS
from ...lifecycle import EventKind, Failure, final_event, is_interrupted, kind_of
from ...lifecycle.execution import ENDS, Activity, ExecutionState
from ...lifecycle.journal import JournalEntry, RunRecord
from ...lifecycle.outcomes import NO_ANSWER, agent_message, status_event
from ...lifecycle.own_metadata import ASKED, own_metadata
from ...lifecycle.references import RunRef
from ...lifecycle.states import COMPLETED, FAILED
from ...store.runs.commands import Claim, EndRefused, Illegal, LeftOpen, RunLost, Settled, settle_run
from ...store.verbs import Section
from ..open_run import OpenRun
from .translator import Translator

logger = logging.getLogger(__name__)

PublishNext = Callable[[str, RunRef, RunOptions], Awaitable[object]]
"""Function that publishes a run of the named agent, with the stored options of that run."""


class Settlement:
    """Writer of the last events of a run, together with the data of its features and the next run of the context.

    Args:
        run: The run.
        translator: Translator of the run's events.
        publish_next: Function that publishes the next run of the context.
        input_timeout: Maximum seconds for which the task may wait for its client, or None for no limit.
        is_resubmittable: True if the task can be resubmitted after it fails.
    """

    def __init__(
        self,
        run: OpenRun,
        translator: Translator,
        publish_next: PublishNext,
        *,
        input_timeout: float | None = None,
        is_resubmittable: bool = False,
    ) -> None:
        self._run = run
        self._translator = translator
        self._publish_next = publish_next
        self._pause_us = int((input_timeout or 0) * 1_000_000)
        self._is_resubmittable = is_resubmittable

    async def write(self, events: list[RunRecord], written_count: int) -> Failure | RunLost | None:
        """Write the last events of the run.

        Args:
            events: Events to write. Illegal events are removed from the list.
            written_count: Number of events that the run has already written.

        Returns:
            The failure of the task if a feature required it, RunLost if the run was lost, or None otherwise.
        """
        claim = self._run.claim
        state = FAILED if _ends_in(events, FAILED) else self._translator.state
        failure, sections = await self._feature_sections(events, state)
        if self._next_message_answers:
            _mark_question(events)
        while True:
            match reply := await self._settle(events, written_count, sections):
                case Settled():
                    await self._publish(reply)
                    return failure
                case RunLost():
                    return reply
                case Illegal():
                    drop(events, reply, claim)
                case LeftOpen(left_state):
                    logger.error("run %s would be left in state %d: failing it", claim.ref.name, left_state)
                    written_count += len(events)  # these events are now written
                    events[:] = self._translator.status(FAILED)
                case EndRefused():
                    refused, state = sections, FAILED if failure else state
                    later_failure, sections = await self._feature_sections(events, state, reply)
                    failure = later_failure or failure
                    if sections == refused:
                        raise RuntimeError(f"run {claim.ref.name}: a feature repeats the section that was refused")

    @property
    def _next_message_answers(self) -> bool:
        """True if the next message of the client answers a question of `Turn.ask`."""
        return self._run.question is not None or self._run.refuses_answer

    async def _settle(
        self, events: list[RunRecord], written_count: int, sections: list[Section[Any]]
    ) -> Settled | RunLost | Illegal | LeftOpen | EndRefused:
        run, claim = self._run, self._run.claim
        return await run.execute(
            settle_run(
                run.keys,
                claim.ref,
                token=claim.token,
                written_count=written_count,
                events=events,
                ask_count=claim.turn.ask_count + 1 if self._next_message_answers else 0,
                refuses_answer=run.refuses_answer,
                read_count=run.read_count,
                pause_us=self._pause_us,
                pause_timeout=unanswered_status(claim) if self._pause_us else None,
                is_resubmittable=self._is_resubmittable,
                sections=[*self._pause_sections(), *sections],
            )
        )

    def _pause_sections(self) -> Sequence[Section[Any]]:
        question, section = self._translator.question, self._run.question and self._run.question.section
        if not question and section is None:  # the usual case
            return ()
        sections = (section_of(self._run.claim.ref, question, section) for section_of in PAUSE_SECTIONS)
        return [section for section in sections if section is not None]

    async def _feature_sections(
        self, events: list[RunRecord], state: TaskState, refusal: EndRefused | None = None
    ) -> tuple[Failure | None, list[Section[Any]]]:
        """Return the failure of the run if a feature requires it, or None, and the features' sections for `state`.

        With a failure, the final event in `events` is replaced.
        """
        try:
            return None, await self._sections_for(state, refusal)
        except (EndRun, BlobsUnavailable):
            raise
        except A2ACeleryError as e:
            return self._replace_end(events, state, e), await self._sections_for(FAILED)

    async def _sections_for(self, state: TaskState, refusal: EndRefused | None = None) -> list[Section[Any]]:
        sections = [await feature.section_for_end(state, refusal) for feature in self._run.features]
        return [section for section in sections if section is not None]

    def _replace_end(self, events: list[RunRecord], state: TaskState, error: A2ACeleryError) -> Failure:
        """Replace the final event in `events`, which sets `state`, with a failure, and return the failure. `error` is
        only logged."""
        claim, failure = self._run.claim, Failure(reference=uuid4().hex[:12])
        logger.error("run %s fails at its end: %s [reference %s]", claim.ref.name, error, failure.reference)
        if _ends_in(events, state):
            del events[max(n for n, event in enumerate(events) if not isinstance(event, Activity | JournalEntry))]
        event = final_event(failure, claim.task.id, claim.task.context_id)
        assert event is not None
        events.append(event)
        events[:] = [_as_error(event) if isinstance(event, Activity) else event for event in events]
        return failure

    async def _publish(self, settlement: Settled) -> None:
        own = settlement.next_run and RunRef(self._run.claim.ref.task_id, settlement.next_run)
        if next_up := own or settlement.other:
            options = RunOptions.from_json(settlement.next_options)
            await self._publish_next(self._run.claim.scope.agent, next_up, options)


def _ends_in(events: Sequence[RunRecord], state: TaskState) -> bool:
    """Return True if the last event sets `state`, the final state of the task. A message without a task also completes
    the task."""
    last = next((event for event in reversed(events) if not isinstance(event, Activity | JournalEntry)), None)
    if isinstance(last, TaskStatusUpdateEvent):
        return last.status.state == state
    return last is not None and state == COMPLETED and kind_of(last) is EventKind.AGENT_MESSAGE


def _mark_question(events: Sequence[RunRecord]) -> None:
    """Mark the message of a question of `Turn.ask`, so that gateways recognize the answer."""
    for event in events:
        if isinstance(event, TaskStatusUpdateEvent) and is_interrupted(event.status.state):
            event.status.message.metadata.update(own_metadata({ASKED: True}))


def _as_error(activity: Activity) -> Activity:
    """Return `activity`, changed to ERROR if its state is an end state."""
    if activity.transition.after not in ENDS:
        return activity
    return replace(activity, transition=replace(activity.transition, after=ExecutionState.ERROR))


def drop(events: MutableSequence[RunRecord], illegal: Illegal, claim: Claim) -> None:
    """Remove the illegal event from `events`, and log it."""
    logger.error("run %s: %s, the event is dropped", claim.ref.name, illegal)
    del events[illegal.number - 1]


def unanswered_status(claim: Claim) -> TaskStatusUpdateEvent:
    """Return the status that fails a task whose client did not answer in time."""
    task = claim.task
    return status_event(task.id, task.context_id, FAILED, agent_message(NO_ANSWER, task.id, task.context_id))
