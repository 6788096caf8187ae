"""Posts events to the webhooks that are owed them: each at least once, and a config's in their order.

A config is a line: its events are posted one behind the other, and its cursor moves when one is delivered. A line is
leased, so any number of watchers share the work, and that of a watcher which dies is due again. What was posted and not
noted is posted again, under the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from shlex import quote
from typing import Any, Literal

from a2a.types import TaskArtifactUpdateEvent

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import BlobsUnavailable, StoreUnavailable
from ..lifecycle import Event, LogEntry
from ..lifecycle.shown import shown_event
from ..push import (
    Answer,
    Backoff,
    Delivered,
    Gone,
    Held,
    Poster,
    PostRequest,
    Refused,
    Result,
    Retry,
    Signer,
    Subscription,
    delivery_id,
)
from ..push.hosts import PATIENCE
from ..push.post import TIMEOUT
from ..sealing import NotSealedHere, Sealer
from ..store import AsyncStore, Keys
from ..store.deliveries import (
    Line,
    Said,
    give_up_delivery,
    note_delivered,
    postpone_delivery,
    take_due_deliveries,
)
from ..store.log import read_log
from ..store.tasks import read_task
from ..telemetry.logs import about
from ..telemetry.names import Action
from .figures import WatcherFigures
from .posting import observed_post

logger = logging.getLogger(__name__)

BATCH = 100
MOST_LINES = 400
"""Lines at a time; so many posts are under way at most."""
PAGE = 32
"""Entries per read of a log: what is read and not delivered is read again."""


def repeated_within(lease_ttl: float) -> float:
    """Return the seconds after which another watcher makes the post of a killed one again, at most.

    The lease of a line begins anew with each event. Waiting for a place at the host and the post itself are part of it.
    """
    return PATIENCE + TIMEOUT + lease_ttl


class Deliverer:
    """Takes due lines, and delivers each in a task of its own."""

    name = "deliverer"
    every = 0.2

    def __init__(
        self,
        store: AsyncStore,
        keys: Keys,
        sealer: Sealer,
        poster: Poster,
        secret_keys: Sequence[bytes],
        lease_ttl: float,
        backoff: Backoff | None = None,
        figures: WatcherFigures | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self._figures = figures or WatcherFigures()
        self._store = store
        self._keys = keys
        self._sealer = sealer
        self._poster = poster
        self._secret_keys = secret_keys
        self._lease_us = _micros(repeated_within(lease_ttl))
        self._backoff = backoff or Backoff()
        self._under_way: set[asyncio.Task[None]] = set()
        self._taking: asyncio.Task[int] | None = None
        self._store_ahead = 0.0  # seconds between this process's monotonic clock and the store's

    async def tick(self) -> None:
        """Begins what is due, as far as there is room.

        All of it: behind many lines whose hosts don't answer, which take no time, there may be others.
        """
        while True:
            self._figures.goes_on(self.name)
            while len(self._under_way) >= MOST_LINES:
                await asyncio.wait(self._under_way, timeout=TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
                self._figures.goes_on(self.name)
            room = min(BATCH, MOST_LINES - len(self._under_way))
            self._taking = asyncio.create_task(self._take(room), name="a2a-deliveries")
            if await asyncio.shield(self._taking) < room:
                return

    async def _take(self, room: int) -> int:
        """Begins up to `room` lines; how many. Not cut off, or those that it was about to get would be nobody's."""
        lines = await self._store.run(take_due_deliveries(self._keys, limit=room, lease_us=self._lease_us))
        if lines:
            self._store_ahead = lines[-1].leased_at - self._clock.monotonic()
        for line in lines:
            task = asyncio.create_task(self._guarded(line), name=f"a2a-delivery-{line.task_id}")
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        return len(lines)

    async def aclose(self) -> None:
        """Lets go of its lines; a post that is under way is cut off, and made again by another watcher."""
        if self._taking is not None:
            await asyncio.wait({self._taking})
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)
        await self._poster.aclose()

    async def _guarded(self, line: Line) -> None:
        try:
            await self._deliver(line)
        except asyncio.CancelledError:
            with suppress(StoreUnavailable):
                await self._store.run(postpone_delivery(self._keys, line, after_us=0, counts=False))
            raise
        except StoreUnavailable as e:
            logger.warning("%s: the store is away, its lease will end: %s", _named(line), e)
        except Exception:
            logger.exception("%s: not delivered; it is due again when its lease ends", _named(line))

    async def _deliver(self, line: Line) -> None:
        try:
            kept = self._sealer.open(line.sealed, line.task_id, line.config_id)
        except NotSealedHere as e:  # a gateway may know a newer key than this watcher, until it is restarted too
            await self._again(line, str(e), None, None)
            return
        try:
            subscription = Subscription.from_bytes(kept)
        except ValueError:
            await self._again(line, "this watcher can't read its config", None, None)
            return
        held = self._poster.held(subscription.config.url)
        if held is not None:
            await self._failed(line, held)
            return
        at = line.delivered
        while True:
            try:
                page = await self._store.run(read_log(self._keys, line.task_id, at, limit=PAGE))
            except BlobsUnavailable:  # which is no failure of the store's: others go on meanwhile
                await self._again(line, "large parts of an event are not to be had", None, None)
                return
            for entry in page.entries:
                try:
                    result = await self._post(line, subscription, entry)
                except ValueError:
                    await self._give_up(line, "JSON, or the subscriber's protocol, has no words for an event", None)
                    return
                if result is not None and not isinstance(result, Delivered):
                    await self._failed(line, result)
                    return
                at = entry.version
                if result is None and entry is not page.entries[-1]:
                    continue
                noted = note_delivered(self._keys, line, at, lease_us=self._lease_us, posted=result is not None)
                if await self._store.run(noted) != "more":
                    return
                if result is not None:
                    line = replace(line, delivered=at, failures=0, failing_for=0.0)
            if not page.entries:
                return

    async def _post(self, line: Line, subscription: Subscription, entry: LogEntry) -> Result | None:
        """What became of the post of `entry`; None: it is not one that is posted."""
        event = shown_event(entry, line.task_id, line.context_id)
        if event is None or not subscription.wants(event):
            return None
        if subscription.protocol != "1.0":
            whole = await self._as_a_whole(line, event)
            if whole is None:
                return None
            event = whole
        config = subscription.config
        request = PostRequest.build(
            event,
            config,
            delivery_id=delivery_id(line.task_id, line.config_id, entry.version),
            now=self._clock.monotonic() + self._store_ahead,
            signer=Signer.of(config, self._secret_keys),
            protocol=subscription.protocol,
        )
        return await observed_post(self._poster, request, line, self._figures)

    async def _as_a_whole(self, line: Line, event: Event) -> Event | None:
        """The task, which is what 0.3 posts; None for an artifact's chunk that is not its last."""
        if isinstance(event, TaskArtifactUpdateEvent) and not event.last_chunk:
            return None
        found = await self._store.run(read_task(self._keys, None, line.task_id))
        return found[0] if found else None

    async def _failed(self, line: Line, result: Result) -> None:
        match result:
            case Held():
                await self._held(line, result)
            case Gone(answer):
                await self._give_up(line, "its receiver wants no more (410)", answer)
            case Retry(reason, asked, answer):
                await self._again(line, reason, asked, answer)
            case Refused(reason):
                await self._again(line, reason, None, None)

    async def _held(self, line: Line, held: Held) -> None:
        """Others try a dead host in turns, and too many wait for it to get one; but each ages, and is given up."""
        if held.dead and line.failing_for >= self._backoff.give_up_after:
            await self._give_up(line, held.reason, None)
            return
        logger.debug("%s: held for %.1f s: %s", _named(line), held.after, held.reason)
        said = _said(held.reason, None) if held.dead and not line.failures else None
        counts: Literal[False, "age"] = "age" if held.dead else False
        after_us = _micros(held.after)
        await self._store.run(postpone_delivery(self._keys, line, after_us=after_us, counts=counts, said=said))

    async def _again(self, line: Line, reason: str, asked: float | None, answer: Answer | None) -> None:
        failures = line.failures + 1
        after = self._backoff.after(failures, line.failing_for, asked)
        if after is None:
            await self._give_up(line, reason, answer)
            return
        about_it = _about(Action.DELIVERY_FAILED, line, failures=failures)
        logger.info("%s: try %d failed: %s; again in %.1f s", _named(line), failures, reason, after, extra=about_it)
        said = _said(reason, answer)
        await self._store.run(postpone_delivery(self._keys, line, after_us=_micros(after), counts=True, said=said))

    async def _give_up(self, line: Line, reason: str, answer: Answer | None) -> None:
        if await self._store.run(give_up_delivery(self._keys, line, said=_said(reason, answer))):
            logger.warning(
                "%s: given up behind event %d: %s; a2a deliveries replay %s %s posts what it has missed",
                *(_named(line), line.delivered, reason, quote(line.task_id), quote(line.config_id)),
                extra=_about(Action.DELIVERY_GIVEN_UP, line),
            )


def _said(reason: str, answer: Answer | None) -> Said:
    """What is kept of a failure, for an operator."""
    return {"reason": reason} | ({"status": answer.status, "answer": answer.text} if answer is not None else {})


def _about(action: Action, line: Line, failures: int | None = None) -> dict[str, Any]:
    return about(action, task=line.task_id, agent=line.agent, webhook=line.config_id, failures=failures)


def _named(line: Line) -> str:
    return f"webhook {line.config_id} of task {line.task_id}"


def _micros(seconds: float) -> int:
    return int(seconds * 1_000_000)
