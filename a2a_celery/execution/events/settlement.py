"""Settlement of a run: its last events, the state of its session, and the next run of the context.

Store operations of a run are retried while the store is unavailable, until the run is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableSequence, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from a2a.types import Part, Task, TaskStatusUpdateEvent

from ...clock import SYSTEM_CLOCK, Clock
from ...concurrency import LeanEvent
from ...dispatch import RunOptions
from ...errors import BlobsUnavailable, SessionError, StoreUnavailable
from ...features.sections import PAUSE_SECTIONS
from ...lifecycle import EventKind, Failure, final_event, is_interrupted, kind_of
from ...lifecycle.execution import ENDS, ExecutionState, Step
from ...lifecycle.journal import JournalEntry, RunRecord
from ...lifecycle.outcomes import NO_ANSWER, agent_message, status_event
from ...lifecycle.own_metadata import ASKED, own_metadata
from ...lifecycle.references import RunRef
from ...lifecycle.states import COMPLETED, FAILED
from ...store import AsyncStore, Keys, Operation
from ...store.client.connection import RETRY_INTERVAL
from ...store.runs.commands import (
    Claim,
    Illegal,
    LeftOpen,
    NotClaimed,
    RunLost,
    SavedSince,
    SessionState,
    Settled,
    settle_run,
)
from ...store.runs.journal import read_journal
from ...store.runs.suspension import Wait
from ...store.tasks.commands import read_task
from ...store.verbs import Section
from .translator import Translator

logger = logging.getLogger(__name__)

T = TypeVar("T")

BLOB_TIMEOUT = 30.0
"""Seconds for which a run retries an unavailable object store. The run cannot continue without its large parts."""


class RunStore:
    """Store access of one run.

    Attributes:
        lost: Event that is set when the run is lost for this process.
    """

    def __init__(self, store: AsyncStore, keys: Keys, claim: Claim, clock: Clock = SYSTEM_CLOCK) -> None:
        self.keys = keys
        self.claim = claim
        self.lost = LeanEvent()
        self._store = store
        self._clock = clock

    async def run(self, operation: Operation[T]) -> T | RunLost:
        """Run an operation, and retry it until the store is available.

        Returns:
            The result of the operation, or RunLost if the run was lost while the operation waited for the store.

        Raises:
            BlobsUnavailable: The object store is unavailable for `BLOB_TIMEOUT` seconds.
        """
        until: float | None = None
        while True:
            try:
                answer = await self._store.run(operation)
                if isinstance(answer, RunLost) and answer.missing:
                    text = "run %s is lost: the store lost %d confirmed events, perhaps by a restore from older data"
                    logger.error(text, self.claim.ref.name, answer.missing)
                return answer
            except StoreUnavailable as e:
                if self.lost.is_set():
                    return RunLost()
                if isinstance(e, BlobsUnavailable):
                    until = until or self._clock.monotonic() + BLOB_TIMEOUT
                    if self._clock.monotonic() > until:
                        raise
                logger.warning("run %s: a write waits for the store: %s", self.claim.ref.name, e)
                await self._clock.sleep(RETRY_INTERVAL)

    async def in_full(self, claim: Claim, make_claim: Callable[[], Operation[Claim | NotClaimed]]) -> Claim:
        """Return the claim with its parts from the object store.

        If `claim` has unresolved references, the operation that `make_claim` builds repeats the claim.

        Raises:
            CancelledError: Another worker has the run.
            BlobsUnavailable: See `run`.
        """
        if claim.is_resolved:
            return claim
        answer = await self.run(make_claim())
        if not isinstance(answer, Claim):
            raise asyncio.CancelledError
        return answer

    async def with_journal(self, claim: Claim) -> Claim:
        """Return the claim with its journal, which is read in pages if it does not fit into the claim.

        Raises:
            CancelledError: Another worker has the run.
        """
        if claim.journal is not None:
            return claim
        entries: dict[str, JournalEntry] = {}
        cursor = "0"
        while True:
            page = await self.run(read_journal(self.keys, claim.ref, token=claim.token, cursor=cursor))
            if isinstance(page, RunLost):
                raise asyncio.CancelledError
            entries.update(page.entries)
            cursor = page.cursor
            if cursor == "0":
                return replace(claim, journal=entries)

    async def own_tasks(self, task_ids: Sequence[str]) -> list[Task]:
        """Read the tasks `task_ids`. Tasks of another agent, tenant or owner are left out."""
        if not task_ids:  # the usual case
            return []

        async def read(task_id: str) -> Task | None:
            snapshot = await self.run(read_task(self.keys, self.claim.scope, task_id))
            return snapshot[0] if isinstance(snapshot, tuple) else None

        tasks = await asyncio.gather(*(read(task_id) for task_id in dict.fromkeys(task_ids)))
        return [task for task in tasks if task is not None]


PublishNext = Callable[[str, RunRef, RunOptions], Awaitable[object]]
"""Function that publishes a run of the named agent, with the stored options of that run."""


class SavedAtEnd(Protocol):
    """Interface of a session that is saved when its run ends."""

    async def idle(self) -> None:
        """Wait for the saves in progress."""
        ...

    def at_end(self) -> SessionState:
        """Return the session to save if the run completes or pauses.

        Raises:
            SessionError: The session cannot be saved.
        """
        ...

    def unchanged(self) -> SessionState:
        """Return the last saved session, for a run that neither completes nor pauses."""
        ...

    def conflict(self, since: SavedSince) -> SessionError:
        """Return the error for a session that another run has saved."""
        ...


@dataclass(frozen=True, slots=True)
class PendingWait:
    """Wait for which the run is suspended.

    Attributes:
        wait: The wait. Its duration is not set yet if there is a `deadline`.
        deadline: Monotonic time at which the wait times out, or None if the wait has no limit or ends at a given time.
        ends_at: End of the wait as shown to clients, by the clock of this machine, or None for a wait without a limit
            or for a child task.
    """

    wait: Wait
    deadline: float | None
    ends_at: datetime | None

    def remaining(self, now: float) -> Wait:
        """Return the wait with the duration that remains at the monotonic time `now`."""
        if self.deadline is None:
            return self.wait
        return replace(self.wait, wait_us=max(0, int((self.deadline - now) * 1_000_000)))


class Settlement:
    """Writer of the last events of a run, together with its session and the next run of the context.

    `pause_us` is the maximum duration of a pause in µs, or 0 for no limit. `read_count` returns the number of messages
    that arrived during the turn and that the agent has read.
    """

    def __init__(
        self,
        store: RunStore,
        claim: Claim,
        translator: Translator,
        *,
        pause_us: int,
        publish_next: PublishNext,
        read_count: Callable[[], int],
    ) -> None:
        self.question: Sequence[Part] | None = None
        """Parts of the question that the `Turn` has asked in this run, or None."""
        self._asked: Section[Any] | None = None
        self.refuses_answer = False
        """True if the agent has refused the last answer to `Turn.ask`, so the next message answers the question."""
        self.wait: PendingWait | None = None
        """Wait of `Turn.sleep`, `Turn.wait_for` or `Turn.call` that ends this run, or None."""
        self.session: SavedAtEnd | None = None
        self._store = store
        self._claim = claim
        self._translator = translator
        self._pause_us = pause_us
        self._publish_next = publish_next
        self._read_count = read_count

    def ask(self, question: Sequence[Part], section: Section[Any]) -> None:
        """End the run with a question. The next run receives the answer.

        Args:
            question: Parts of the question.
            section: Section of the question.
        """
        self.question, self._asked = question, section

    @property
    def _next_message_answers(self) -> bool:
        """True if the next message of the client answers a question of `ask`."""
        return self.question is not None or self.refuses_answer

    async def write(
        self, events: list[RunRecord], written_count: int, *, dead_letter: bool = False
    ) -> Failure | RunLost | None:
        """Write the last events of the run.

        Args:
            events: Events to write. Illegal events are removed from the list.
            written_count: Number of events that the run has already written.
            dead_letter: True to store a dead letter if the task fails.

        Returns:
            The failure of the task if its session could not be saved, RunLost if the run was lost, or None otherwise.
        """
        if self.session is not None:
            await self.session.idle()
        failure, session = self._with_session(events)
        if self._next_message_answers:
            _mark_question(events)
        while True:
            match answer := await self._settle(events, written_count, session, dead_letter=dead_letter):
                case Settled():
                    await self._publish(answer)
                    return failure
                case RunLost():
                    return answer
                case Illegal():
                    drop(events, answer, self._claim)
                case LeftOpen(state):
                    logger.error("run %s would be left in state %d: failing it", self._claim.ref.name, state)
                    written_count += len(events)  # these events are now written
                    events[:] = self._translator.status(FAILED)
                case SavedSince() if self.session is not None:
                    failure, session = (
                        self._replace_end(events, self.session.conflict(answer)),
                        self.session.unchanged(),
                    )

    async def _settle(
        self, events: list[RunRecord], written_count: int, session: SessionState | None, *, dead_letter: bool
    ) -> Settled | RunLost | Illegal | LeftOpen | SavedSince:
        return await self._store.run(
            settle_run(
                self._store.keys,
                self._claim.ref,
                token=self._claim.token,
                written_count=written_count,
                events=events,
                ask_count=self._claim.ask_count + 1 if self._next_message_answers else 0,
                refuses_answer=self.refuses_answer,
                read_count=self._read_count(),
                pause_us=self._pause_us,
                pause_timeout=unanswered_status(self._claim) if self._pause_us else None,
                dead_letter=dead_letter,
                session=session,
                sections=self._sections(),
            )
        )

    def _sections(self) -> Sequence[Section[Any]]:
        question = self._translator.question
        if not question and self._asked is None:  # the usual case
            return ()
        sections = (section_of(self._claim.ref, question, self._asked) for section_of in PAUSE_SECTIONS)
        return [section for section in sections if section is not None]

    def _with_session(self, events: list[RunRecord]) -> tuple[Failure | None, SessionState | None]:
        """Prepare the session to be saved with the last events of the run.

        Returns:
            A pair: the failure of the run if the session cannot be saved, or None, and the session to save, or None if
            the agent has no session.
        """
        if self.session is None:
            return None, None
        if not self._checkpoint():
            return None, self.session.unchanged()
        try:
            return None, self.session.at_end()
        except SessionError as e:
            return self._replace_end(events, e), self.session.unchanged()

    def _checkpoint(self) -> bool:
        """Return True if the run ends in a state in which the session is saved."""
        return self._translator.state == COMPLETED or is_interrupted(self._translator.state)

    def _replace_end(self, events: list[RunRecord], error: SessionError) -> Failure:
        """Replace the final event in `events` with a failure, and return the failure. `error` is only logged."""
        claim, failure = self._claim, Failure(reference=uuid4().hex[:12])
        logger.error("run %s: its session was not saved: %s [reference %s]", claim.ref.name, error, failure.reference)
        last = max((n for n, event in enumerate(events) if not isinstance(event, Step | JournalEntry)), default=None)
        if last is not None and self._ends(events[last]):
            del events[last]
        event = final_event(failure, claim.task.id, claim.task.context_id)
        assert event is not None
        events.append(event)
        events[:] = [_as_error(event) if isinstance(event, Step) else event for event in events]
        return failure

    def _ends(self, event: RunRecord) -> bool:
        """Return True if `event` set the final state of the task. A message without a task also completes the task."""
        if isinstance(event, TaskStatusUpdateEvent):
            return event.status.state == self._translator.state
        return not isinstance(event, Step | JournalEntry) and kind_of(event) is EventKind.ANSWER

    async def _publish(self, settlement: Settled) -> None:
        own = settlement.next_run and RunRef(self._claim.ref.task_id, settlement.next_run)
        if next_up := own or settlement.other:
            options = RunOptions.from_json(settlement.next_options)
            await self._publish_next(self._claim.scope.agent, next_up, options)


def _mark_question(events: Sequence[RunRecord]) -> None:
    """Mark the message of a question of `Turn.ask`, so that gateways recognize the answer."""
    for event in events:
        if isinstance(event, TaskStatusUpdateEvent) and is_interrupted(event.status.state):
            event.status.message.metadata.update(own_metadata({ASKED: True}))


def _as_error(step: Step) -> Step:
    """Return `step`, changed to ERROR if its state is an end state."""
    if step.transition.after not in ENDS:
        return step
    return replace(step, transition=replace(step.transition, after=ExecutionState.ERROR))


def drop(events: MutableSequence[RunRecord], illegal: Illegal, claim: Claim) -> None:
    """Remove the illegal event from `events`, and log it."""
    logger.error("run %s: %s, the event is dropped", claim.ref.name, illegal)
    del events[illegal.number - 1]


def unanswered_status(claim: Claim) -> TaskStatusUpdateEvent:
    """Return the status that fails a task whose client did not answer in time."""
    task = claim.task
    return status_event(task.id, task.context_id, FAILED, agent_message(NO_ANSWER, task.id, task.context_id))
