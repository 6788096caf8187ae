"""A run's way into the log: what an agent says, made legal, in order, fenced, several events to a write.

While one write is under way the next events gather and go together in the one after it, so an agent that streams
pays a round trip per write and not per event, and its task costs the same per chunk however long it gets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from a2a.server.events import EventQueue
from a2a.types import TaskState, TaskStatusUpdateEvent

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import BlobsUnavailable
from ..flag import Flag
from ..lifecycle import Event, Failed, is_interrupted, is_terminal
from ..lifecycle.states import COMPLETED, WORKING
from ..lifecycle.steps import Step
from ..store import AsyncStore, Keys, Operation
from ..store.checkpoints import checkpoint
from ..store.release import Released
from ..store.runs import Claim, Illegal, RunLost, Written, append
from ..store.sessions import SavedSince, SessionState
from .run_store import RunStore
from .settlement import PublishNext, Settlement, drop
from .translate import Translator
from .writer import Writer

logger = logging.getLogger(__name__)

GiveBack = Callable[[int, list[Event | Step]], Operation[Released | RunLost | Illegal]]
"""Makes the operation that lets a run go on elsewhere, of how many events were written, and those that were not."""

MAX_EVENTS_PER_WRITE = 64
MAX_PENDING = 256
"""An agent that is faster than the store waits when this many of its events are not written yet."""


class RunEvents(EventQueue):
    """The event queue that an agent writes to; one per run. Use it from the process's event loop only.

    With `end_held` the task's end, whoever says it, is written when the agent has returned.
    """

    def __init__(
        self,
        store: AsyncStore,
        keys: Keys,
        claim: Claim,
        *,
        hold: float,
        input_timeout: float | None,
        publish_next: PublishNext,
        end_held: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.clock = clock
        self.store = RunStore(store, keys, claim, clock)
        self._keys = keys
        self._claim = claim
        self._hold = hold
        self._translator = Translator(claim.task, answer_allowed=claim.turn == 1 and claim.version == 1)
        pause_us = int((input_timeout or 0) * 1_000_000)
        self.settlement = Settlement(self.store, claim, self._translator, pause_us=pause_us, publish_next=publish_next)
        self._pending: list[Event | Step] = []
        self._written = 0
        self._open = True
        self._ending = False  # settle() writes the rest
        self._until_return = end_held
        self._end_held, self.stopping = end_held, False  # a terminal event waits for settle(); the run was told to stop
        self._news, self._moved = Flag(), Flag()
        self._room = Flag()
        self._room.set()
        self._announcement: asyncio.TimerHandle | None = None
        self.lost = self.store.lost
        self.stuck: BlobsUnavailable | None = None  # why events can't be written any more, and the run has to fail
        self.over_early = Flag()  # set when it is lost, or stuck
        self._writer = Writer(
            self._write, over=self._over, ended=self._written_no_more, name=f"a2a-events-{claim.ref.name}"
        )

    @property
    def state(self) -> TaskState:
        """The task's state after all that the agent has said."""
        return self._translator.state

    @property
    def ended(self) -> bool:
        """Whether the agent has said the task's last word."""
        return is_terminal(self._translator.state)

    @property
    def over(self) -> bool:
        """Whether nothing can be lost of the run any more: the last word is said, and its writing waits for nobody."""
        return self.ended and not self._until_return

    @property
    def paused(self) -> bool:
        """Whether the agent's last word was that it waits for its client."""
        return is_interrupted(self._translator.state)

    def announce_later(self) -> None:
        """Shows WORKING if the agent says nothing within the hold: until then it may answer with a message alone."""
        self._announcement = asyncio.get_running_loop().call_later(self._hold, self._announce)

    async def enqueue_event(self, event: Event) -> None:
        """Takes an event of the agent; returns at once, unless the store is far behind.

        What comes after the task's end, or when the run is no longer ours, is dropped.

        Raises:
            InvalidAgentResponseError: the event can't be sent to anyone; the agent may catch it and go on.
        """
        if not self._open or self.ended:
            logger.debug("run %s: an event after the end was dropped", self._claim.ref.name)
            return
        events = self._translator.translate(event)
        self._take(events)
        if len(self._pending) >= MAX_PENDING:
            self._room.clear()
            await self._room.wait()

    def hold_end(self) -> None:
        """A client asked to cancel: an end waits for `settle`, and is CANCELED unless its agent said another before."""
        self._end_held = True
        self._translator.cancel_asked = True

    def close(self) -> None:
        """Drops what the agent says from now on."""
        self._open = False
        self._cancel_announcement()
        self._room.set()

    async def save(self, session: SessionState) -> SessionState | SavedSince:
        """Saves the run's session while the run goes on, behind what its agent has said so far.

        Raises:
            CancelledError: the run is lost, or ended before that was written.
        """
        while self._next_batch() and not self.lost.is_set():
            if self._ending or self.stuck:
                raise asyncio.CancelledError
            self._moved.clear()
            self._tell_writer()
            await self._moved.wait()
        claim = self._claim
        answer = await self.store.run(
            checkpoint(self._keys, claim.ref, token=claim.token, confirmed=self._written, session=session)
        )
        if isinstance(answer, RunLost):
            self._lose()
            raise asyncio.CancelledError
        return answer

    async def settle(self, final: TaskStatusUpdateEvent | None) -> Failed | None:
        """Ends the run: the rest of its events, then `final`, unless the agent has ended the task itself, or left it
        waiting for its client and `final` is nothing but its return. Writes nothing if the run is lost.

        Gives how the task has failed instead, if its session could not be saved.
        """
        if not await self._last_words():
            return None
        if final is not None and self.stuck is not None:
            self._pending = [final]  # nothing else was written since, no end either
        elif final is not None and not (self.ended or (self.paused and final.status.state == COMPLETED)):
            self._pending.extend(self._translator.translate(final))
        if not self._pending and self.ended:  # an end that is written has closed the run
            return None
        answer = await self.settlement.write(list(self._pending), self._written)
        if isinstance(answer, RunLost):
            self._lose()
            return None
        return answer

    async def release(self, final: TaskStatusUpdateEvent | None, give_back: GiveBack) -> None:
        """Lets the run go on without this worker: the rest of its events, then `final`; `give_back` makes of these, and
        of how many were written before, what the store is told. Writes nothing if the run is lost."""
        if not await self._last_words():
            return
        if final is not None and not self.ended:
            self._pending.extend(self._translator.translate(final))
        while isinstance(answer := await self.store.run(give_back(self._written, list(self._pending))), Illegal):
            drop(self._pending, answer, self._claim)

    async def abandon(self) -> None:
        """Stops without writing anything more: the run is someone else's."""
        self._lose()
        await self._writer.stop()

    async def _last_words(self) -> bool:
        """Takes no more events, and lets go of the writer; whether the run is still ours, and may write the rest."""
        self.close()
        self._translator.cancel_asked = False  # the agent has had its say
        self._ending = True
        self._news.set()
        self._moved.set()
        last = await self._writer.finish()
        if last is not None and self.stuck is None:
            last.result()
        return not self.lost.is_set()

    def _tell_writer(self) -> None:
        self._news.set()
        self._writer.call()

    async def _write(self) -> None:
        while self._news.is_set() and not self._over():
            self._news.clear()
            while not self._over() and (batch := self._next_batch()):
                await self._append(batch)
            if self._pending and self.paused and not self._over() and await self._silent():
                await self._append(list(self._pending))

    def _over(self) -> bool:
        return self._ending or self.over_early.is_set()

    def _next_batch(self) -> list[Event | Step]:
        """What is ready to be written. A pause waits a moment, a cancelled task's end until its agent has stopped."""
        ready = list(self._pending)
        if self.paused or (self._end_held and self.ended):
            while ready and isinstance(ready.pop(), Step):
                pass  # a step behind it waits as well
        return ready[:MAX_EVENTS_PER_WRITE]

    async def _silent(self) -> bool:
        """Whether the agent goes on behind its pause without a word: then its client must know. One that returns
        is settled instead, and nobody can answer a run that is still open."""
        try:
            async with asyncio.timeout(self._hold):
                await self._news.wait()
        except TimeoutError:
            return not self._over()
        return False

    async def _append(self, batch: list[Event | Step]) -> None:
        claim = self._claim
        answer = await self.store.run(
            append(self._keys, claim.ref, token=claim.token, before=self._written, events=batch)
        )
        match answer:
            case Written():
                self._done(len(batch))
            case RunLost():
                self._lose()
            case Illegal():
                drop(self._pending, answer, claim)
                self._moved.set()

    def _written_no_more(self, writer: asyncio.Task[None]) -> None:
        error = None if writer.cancelled() else writer.exception()
        if isinstance(error, BlobsUnavailable):
            self.get_stuck(error)
        elif error is not None:
            logger.error("run %s: its events can't be written", self._claim.ref.name, exc_info=error)
            self._lose()

    def _done(self, count: int) -> None:
        self._written += count
        del self._pending[:count]
        self._moved.set()
        if len(self._pending) < MAX_PENDING:
            self._room.set()

    def get_stuck(self, error: BlobsUnavailable) -> None:
        """What is not written yet is given up, for its parts can't be kept: the run can only fail."""
        self.stuck = error
        self._drop_all()

    def _lose(self) -> None:
        self.lost.set()
        self._drop_all()

    def _drop_all(self) -> None:
        self.over_early.set()
        self.close()
        self._pending.clear()
        self._moved.set()

    def _take(self, events: list[Event]) -> None:
        if events:
            self._cancel_announcement()
            self._pending.extend(events)
            self._tell_writer()

    def _announce(self) -> None:
        if self._open and not self._translator.spoken:
            self._take(self._translator.status(WORKING))

    def _cancel_announcement(self) -> None:
        if self._announcement is not None:
            self._announcement.cancel()
            self._announcement = None
