"""Settlement of a run: its last events, the state of its session, and the next run of the context."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableSequence
from dataclasses import replace
from typing import Protocol
from uuid import uuid4

from a2a.types import Part, TaskStatusUpdateEvent

from ...clock import SYSTEM_CLOCK
from ...dispatch import Publisher, RunOptions
from ...errors import SessionError
from ...lifecycle import Event, EventKind, Failure, final_event, is_interrupted, kind_of
from ...lifecycle.execution import ENDS, ExecutionState
from ...lifecycle.outcomes import agent_message, status_event
from ...lifecycle.states import COMPLETED, FAILED
from ...lifecycle.steps import Step
from ...store.runs.commands import Claim, Illegal, LeftOpen, RunLost, RunRef, Settled, settle_run
from ...store.runs.sessions import SavedSince, SessionState
from .run_store import RunStore
from .translator import Translator

logger = logging.getLogger(__name__)

PublishNext = Callable[[RunRef, bytes], Awaitable[None]]
"""Publishes a run of the same agent with its options."""


class SavedAtEnd(Protocol):
    """A session, as the end of its run sees it."""

    async def idle(self) -> None:
        """Returns when nothing of it is being saved."""
        ...

    def at_end(self) -> SessionState:
        """What a run leaves that completes or pauses; raises SessionError."""
        ...

    def unchanged(self) -> SessionState:
        """What any other run leaves."""
        ...

    def conflict(self, since: SavedSince) -> SessionError:
        """Why the former could not be saved."""
        ...


class Settlement:
    """The end of one run. A pause of it lasts `pause_us` microseconds at most; 0: for ever."""

    def __init__(
        self, store: RunStore, claim: Claim, translator: Translator, *, pause_us: int, publish_next: PublishNext
    ) -> None:
        self.asked = 0
        """How many answers `Turn.ask` waits for or has got, when it ends the run."""
        self.question: list[Part] | None = None
        """Parts of the question that `Turn.ask` has asked in this run; None if it has asked none."""
        self.session: SavedAtEnd | None = None
        self._store = store
        self._claim = claim
        self._translator = translator
        self._pause_us = pause_us
        self._publish_next = publish_next

    async def write(self, events: list[Event | Step], before: int) -> Failure | RunLost | None:
        """Writes the run's last `events`, behind `before` others; what can't follow is dropped.

        Gives how the task has failed instead, if its session could not be saved.
        """
        if self.session is not None:
            await self.session.idle()
        failed, session = self._with_session(events)
        while True:
            match answer := await self._settled(events, before, session):
                case Settled():
                    await self._publish(answer)
                    return failed
                case RunLost():
                    return answer
                case Illegal():
                    drop(events, answer, self._claim)
                case LeftOpen(state):
                    logger.error("run %s would be left in state %d: failing it", self._claim.ref.name, state)
                    before += len(events)  # they are written
                    events[:] = self._translator.status(FAILED)
                case SavedSince() if self.session is not None:
                    failed, session = self._failed(events, self.session.conflict(answer)), self.session.unchanged()

    async def _settled(
        self, events: list[Event | Step], before: int, session: SessionState | None
    ) -> Settled | RunLost | Illegal | LeftOpen | SavedSince:
        return await self._store.run(
            settle_run(
                self._store.keys,
                self._claim.ref,
                token=self._claim.token,
                before=before,
                events=events,
                asked=self.asked,
                pause_us=self._pause_us,
                unanswered=unanswered(self._claim) if self._pause_us else None,
                session=session,
            )
        )

    def _with_session(self, events: list[Event | Step]) -> tuple[Failure | None, SessionState | None]:
        """What is saved with the end; an end in which that can't be is a failure instead."""
        if self.session is None:
            return None, None
        if not self._checkpoint():
            return None, self.session.unchanged()
        try:
            return None, self.session.at_end()
        except SessionError as e:
            return self._failed(events, e), self.session.unchanged()

    def _checkpoint(self) -> bool:
        """Whether the run ends in a state in which its session is saved."""
        return self._translator.state == COMPLETED or is_interrupted(self._translator.state)

    def _failed(self, events: list[Event | Step], error: SessionError) -> Failure:
        """The end that takes the place of the one that stands last; it is not written before its session is."""
        claim, failed = self._claim, Failure(reference=uuid4().hex[:12])
        logger.error("run %s: its session was not saved: %s [reference %s]", claim.ref.name, error, failed.reference)
        last = max((n for n, event in enumerate(events) if not isinstance(event, Step)), default=None)
        if last is not None and self._ends(events[last]):
            del events[last]
        event = final_event(failed, claim.task.id, claim.task.context_id)
        assert event is not None
        events.append(event)
        events[:] = [_as_error(event) if isinstance(event, Step) else event for event in events]
        return failed

    def _ends(self, event: Event | Step) -> bool:
        """Whether `event` is what put the task into the state it ends in: a message alone completes it."""
        if isinstance(event, TaskStatusUpdateEvent):
            return event.status.state == self._translator.state
        return not isinstance(event, Step) and kind_of(event) is EventKind.ANSWER

    async def _publish(self, settled: Settled) -> None:
        own = settled.next_run and RunRef(self._claim.ref.task_id, settled.next_run)
        if next_up := own or settled.other:
            await self._publish_next(next_up, settled.next_options)


def _as_error(step: Step) -> Step:
    """`step`, if it is the run's end an ERROR: its task has failed, whatever its agent had come to."""
    if step.transition.after not in ENDS:
        return step
    return replace(step, transition=replace(step.transition, after=ExecutionState.ERROR))


def publishing(publisher: Publisher, agent: str) -> PublishNext:
    """Publishes runs of `agent`; those that the broker does not take, or that begin much later, are a watcher's."""

    async def publish(run: RunRef, options: bytes) -> None:
        if RunOptions.from_json(options).publish_delay(SYSTEM_CLOCK.now()):
            return
        try:
            await publisher.publish_async(agent, run.task_id, run.run, options)
        except Exception as e:
            logger.warning("run %s will be published by the watcher: %s", run.name, e)

    return publish


def drop(events: MutableSequence[Event | Step], illegal: Illegal, claim: Claim) -> None:
    """Takes the event out that can't follow those before it."""
    logger.error("run %s: %s, the event is dropped", claim.ref.name, illegal)
    del events[illegal.number - 1]


NO_ANSWER = "No answer came in time."
"""What a client hears that left its task waiting for longer than `input_timeout`."""


def unanswered(claim: Claim) -> TaskStatusUpdateEvent:
    """Return the status that fails a task whose client did not answer in time."""
    task = claim.task
    return status_event(task.id, task.context_id, FAILED, agent_message(NO_ANSWER, task.id, task.context_id))
