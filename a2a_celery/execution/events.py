"""A run's way into the log: what an agent says, made legal, in order, fenced, several events to a write.

While one write is under way the next events gather and go together in the one after it, so an agent that streams
pays a round trip per write and not per event, and its task costs the same per chunk however long it gets.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from a2a.server.events import EventQueue
from a2a.types import Task, TaskStatusUpdateEvent

from ..errors import StoreUnavailable
from ..lifecycle import Event, is_interrupted, is_terminal
from ..lifecycle.states import COMPLETED, FAILED, WORKING
from ..lifecycle.steps import Step
from ..store import AsyncStore, Keys, Operation
from ..store.connection import TRY_AGAIN_AFTER
from ..store.release import Released
from ..store.runs import Claim, Illegal, LeftOpen, RunLost, Settled, Written, append, settle_run
from ..store.tasks import read_task
from .translate import Translator
from .unanswered import unanswered

logger = logging.getLogger(__name__)

T = TypeVar("T")

GiveBack = Callable[[int, list[Event | Step]], Operation[Released | RunLost | Illegal]]
"""Makes the operation that lets a run go on elsewhere, of how many events were written, and those that were not."""

MAX_EVENTS_PER_WRITE = 64
MAX_PENDING = 256
"""An agent that is faster than the store waits when this many of its events are not written yet."""

TURNS_TO_RETURN = 5
"""Turns of the event loop between the last line of an agent and `settle`: through its task, `Run` and back here."""


class RunEvents(EventQueue):
    """The event queue that an agent writes to; one per run. Use it from the process's event loop only."""

    def __init__(
        self,
        store: AsyncStore,
        keys: Keys,
        claim: Claim,
        *,
        hold: float,
        input_timeout: float | None,
        publish_next: Callable[[int, bytes], Awaitable[None]],
    ) -> None:
        self._store = store
        self._keys = keys
        self._publish_next = publish_next
        self._claim = claim
        self._hold = hold
        self._pause_us = int((input_timeout or 0) * 1_000_000)
        self.asked = 0
        """How many answers `Turn.ask` waits for or has got, when it ends the run."""
        self._translator = Translator(claim.task, answer_allowed=claim.turn == 1 and claim.version == 1)
        self._pending: deque[Event | Step] = deque()
        self._written = 0
        self._open = True
        self._ending = False  # settle() writes the rest
        self._end_held = self.stopping = False  # a terminal event waits for settle(); the run was told to stop
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._announcement: asyncio.TimerHandle | None = None
        self.lost = asyncio.Event()
        self._writer = asyncio.create_task(self._write(), name=f"a2a-events-{claim.ref.name}")
        self._writer.add_done_callback(self._written_no_more)

    @property
    def ended(self) -> bool:
        """Whether the agent has said the task's last word."""
        return is_terminal(self._translator.state)

    @property
    def paused(self) -> bool:
        """Whether the agent's last word was that it waits for its client."""
        return is_interrupted(self._translator.state)

    async def own_tasks(self, task_ids: Iterable[str]) -> list[Task]:
        """Those of `task_ids` that name tasks of the run's own agent, tenant and owner; all others are left out."""

        async def read(task_id: str) -> Task | None:
            found = await self._patiently(read_task(self._keys, self._claim.scope, task_id))
            return found[0] if isinstance(found, tuple) else None

        tasks = await asyncio.gather(*(read(task_id) for task_id in dict.fromkeys(task_ids)))
        return [task for task in tasks if task is not None]

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

    async def settle(self, final: TaskStatusUpdateEvent | None) -> None:
        """Ends the run: the rest of its events, then `final`, unless the agent has ended the task itself, or left it
        waiting for its client and `final` is nothing but its return. Writes nothing if the run is lost."""
        if not await self._last_words():
            return
        if final is not None and not (self.ended or (self.paused and final.status.state == COMPLETED)):
            self._pending.extend(self._translator.translate(final))
        if self._pending or not self.ended:  # an end that is written has closed the run
            await self._settle()

    async def release(self, final: TaskStatusUpdateEvent | None, give_back: GiveBack) -> None:
        """Lets the run go on without this worker: the rest of its events, then `final`; `give_back` makes of these, and
        of how many were written before, what the store is told. Writes nothing if the run is lost."""
        if not await self._last_words():
            return
        if final is not None and not self.ended:
            self._pending.extend(self._translator.translate(final))
        while isinstance(answer := await self._patiently(give_back(self._written, list(self._pending))), Illegal):
            self._drop(answer)

    async def abandon(self) -> None:
        """Stops without writing anything more: the run is someone else's."""
        self._lose()
        self._writer.cancel()
        await asyncio.wait({self._writer})

    async def _last_words(self) -> bool:
        """Takes no more events, and lets go of the writer; whether the run is still ours, and may write the rest."""
        self.close()
        self._translator.cancel_asked = False  # the agent has had its say
        self._ending = True
        self._news.set()
        await self._writer
        return not self.lost.is_set()

    def _drop(self, illegal: Illegal) -> None:
        logger.error("run %s: %s, the event is dropped", self._claim.ref.name, illegal)
        del self._pending[illegal.number - 1]

    async def _write(self) -> None:
        while not self._over():
            await self._news.wait()
            await self._let_agent_go_on()
            self._news.clear()
            while not self._over() and (batch := self._next_batch()):
                await self._append(batch)
            if self._pending and self.paused and not self._over() and await self._silent():
                await self._append(list(self._pending))

    async def _let_agent_go_on(self) -> None:
        """An agent's last event and its return are some turns of the loop apart; written together they cost one
        round trip less, and nobody waits: these turns take microseconds."""
        for _ in range(TURNS_TO_RETURN):
            if self._over():
                return
            await asyncio.sleep(0)

    def _over(self) -> bool:
        return self._ending or self.lost.is_set()

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
        answer = await self._patiently(
            append(self._keys, claim.ref, token=claim.token, before=self._written, events=batch)
        )
        match answer:
            case Written():
                self._done(len(batch))
            case RunLost():
                self._lose()
            case Illegal():
                self._drop(answer)

    async def _settle(self) -> None:
        claim = self._claim
        while True:
            batch = list(self._pending)
            answer = await self._patiently(
                settle_run(
                    self._keys,
                    claim.ref,
                    token=claim.token,
                    before=self._written,
                    events=batch,
                    asked=self.asked,
                    pause_us=self._pause_us,
                    unanswered=unanswered(claim) if self._pause_us else None,
                )
            )
            match answer:
                case Settled():
                    if answer.next_run is not None:
                        await self._publish_next(answer.next_run, answer.next_options)
                    return
                case RunLost():
                    self._lose()
                    return
                case Illegal():
                    self._drop(answer)
                case LeftOpen(state):
                    logger.error("run %s would be left in state %d: failing it", claim.ref.name, state)
                    self._pending.extend(self._translator.status(FAILED))

    async def _patiently(self, operation: Operation[T]) -> T | RunLost:
        while True:
            try:
                return await self._store.run(operation)
            except StoreUnavailable as e:
                if self.lost.is_set():
                    return RunLost()
                logger.warning("run %s: a write waits for the store: %s", self._claim.ref.name, e)
                await asyncio.sleep(TRY_AGAIN_AFTER)

    def _written_no_more(self, writer: asyncio.Task[None]) -> None:
        if not writer.cancelled() and writer.exception() is not None:
            logger.error("run %s: its events can't be written", self._claim.ref.name, exc_info=writer.exception())
            self._lose()

    def _done(self, count: int) -> None:
        self._written += count
        for _ in range(count):
            self._pending.popleft()
        if len(self._pending) < MAX_PENDING:
            self._room.set()

    def _lose(self) -> None:
        self.lost.set()
        self.close()
        self._pending.clear()

    def _take(self, events: list[Event]) -> None:
        if events:
            self._cancel_announcement()
            self._pending.extend(events)
            self._news.set()

    def _announce(self) -> None:
        if self._open and not self._translator.spoken:
            self._take(self._translator.status(WORKING))

    def _cancel_announcement(self) -> None:
        if self._announcement is not None:
            self._announcement.cancel()
            self._announcement = None
