"""Who waits for a log to grow: one Redis connection per process, for any number of tasks.

Pub/sub is a phone line, only the log is believed: a ring means "read", unless it has brought what is new. After a
reconnect everybody is rung, and a listener that hears nothing looks by itself every `LOOK_EVERY` seconds, so a lost
ring costs time, never an event.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import chain
from typing import Any

import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from ..clock import SYSTEM_CLOCK, Clock
from ..flag import Flag
from ..store_urls import redis_url
from .connection import CONNECT_TIMEOUT, fit
from .log import LogPage
from .news import News

logger = logging.getLogger(__name__)

LOOK_EVERY = 15.0
"""Seconds after which a listener reads even though nobody rang."""

PING_EVERY = 3.0
"""Seconds of silence after which the server is asked whether it is there."""

SILENCE = 10.0
"""Seconds of silence after which the line counts as broken: a connection can go without a word (NAT, failover)."""

RECONNECT_EVERY = 0.2
"""Seconds between two attempts to get the line back."""

COUNT_EVERY = 1.0
"""Seconds between two looks at how many listen through a channel of this process."""


class Bell:
    """What one listener waits on; rung as often as it likes, it remembers one ring. One for `stops` hears of no other
    news of a task than its pauses and its end."""

    __slots__ = ("_news", "_rung", "_stops", "_version")  # each stream that is open has one

    def __init__(self, *, stops: bool = False) -> None:
        self._rung = Flag()
        self._stops = stops
        self._version = 0.0
        self._news: News | None = None

    def ring(self, version: float = math.inf) -> None:
        """Wakes the listener, now or at its next wait, unless that is behind `version`. What was brought is not all
        of it, if it does not go as far."""
        if self._news is not None and version > self._news.version:
            self._news = None
        self._version = max(self._version, version)
        self._rung.set()

    def hear(self, said: bytes) -> None:
        """Rings for what ``wake`` in scripts/prelude.lua says of a task; for anything else too."""
        told, _, news = said.partition(b"\n")
        version, _, what = told.partition(b" ")
        if news:
            later = News.of(int(version), news)
            self._news = later if self._news is None else self._news.and_then(later)
        if what == b"stopped" or not self._stops:
            self.ring(int(version) if version.isdigit() else math.inf)

    def page(self, after: int) -> LogPage | None:
        """What rings have brought behind version `after`, once; None: it must be read."""
        news, self._news = self._news, None
        return None if news is None else news.page(after)

    async def wait(self, timeout: float | None = LOOK_EVERY, behind: int = 0) -> None:
        """Returns at the next ring that may be for a version `behind` this one, at one that was not waited for, or
        after `timeout` seconds (None: no timeout)."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._version <= behind:
                    self._rung.clear()
                    await self._rung.wait()
        self._version = 0.0


class WakeLine:
    """Subscribes to channels for this process; its first listener starts it, `stop` ends it.

    Only its own task talks to Redis: a listener that is cancelled can't break the line for the others.
    """

    def __init__(self, url: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        options = {
            "socket_connect_timeout": CONNECT_TIMEOUT,
            "socket_keepalive": True,
            # None, or redis-py writes inside wait_for, which on Python 3.11 swallows a cancellation: stop() would hang
            "socket_timeout": None,
            "protocol": 2,
            # reconnecting is ours: redis-py would do it silently, and what was missed meanwhile must be looked up
            "retry": redis.asyncio.retry.Retry(NoBackoff(), 0),
        }
        self._redis = redis.asyncio.Redis.from_url(redis_url(url), **fit(url, options))
        self._bells: dict[str, set[Bell]] = {}
        self._through: dict[str, dict[str, Bell]] = {}  # channel of this process → whom it speaks for
        self._counted: set[str] = set()  # channels that say how many there are
        self._handlers: dict[str, Callable[[bytes], None]] = {}
        self._changed = asyncio.Event()  # somebody came or left
        self._subscribed: set[str] = set()  # what Redis was asked for
        self._unconfirmed: dict[str, int] = {}  # how many of these requests it has not answered, per channel
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._up = False

    async def start(self) -> None:
        """Connects in the background; returns at once."""
        if self._task is None:
            self._task = asyncio.create_task(self._stay_connected(), name="a2a-wake-line")

    async def stop(self) -> None:
        """Hangs up. Listeners are rung a last time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
        self._ring_all()
        await self._redis.aclose()

    @property
    def channels(self) -> int:
        """How many channels somebody listens to."""
        return len(self._bells) + len(self._handlers) + len(self._through)

    def listen(self, channel: str, *, through: str = "", stops: bool = False) -> AbstractAsyncContextManager[Bell]:
        """A bell that rings when `channel` gets a message; if the line is down just now, it rings when that is up.

        A channel of this process may speak for any number of others: what is said `through` it is for the one whose
        name is in front. It is listened to for as long as the line lives, so such a bell costs no round trip. One
        bell for each.
        """
        bell = Bell(stops=stops)
        return self._listen_through(through, channel, bell) if through else self._listen(channel, bell)

    @asynccontextmanager
    async def _listen_through(self, through: str, channel: str, bell: Bell) -> AsyncIterator[Bell]:
        await self.start()
        bells = self._through.setdefault(through, {})
        bells[channel] = bell
        try:
            await self._joined(through)
            yield bell
        finally:
            del bells[channel]

    @asynccontextmanager
    async def _listen(self, channel: str, bell: Bell) -> AsyncIterator[Bell]:
        await self.start()  # an application that is mounted in another is never told to start
        self._bells.setdefault(channel, set()).add(bell)
        try:
            await self._joined(channel)
            yield bell
        finally:
            bells = self._bells[channel]
            bells.discard(bell)
            if not bells:
                del self._bells[channel]
                self._changed.set()

    async def on_message(self, channel: str, handler: Callable[[bytes], None]) -> None:
        """Calls `handler` with each message of `channel`, from now until `stop`. Messages can be missed."""
        self._handlers[channel] = handler
        await self._joined(channel)

    async def _joined(self, channel: str) -> None:
        """Returns when what is published on `channel` from here on is heard, or the line is down."""
        if not self._up or (channel in self._subscribed and channel not in self._unconfirmed):
            return  # whoever listens while it is down is rung as soon as it is up
        self._changed.set()
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(channel, []).append(confirmed)
        await confirmed

    async def _stay_connected(self) -> None:
        while True:
            pubsub: Any = self._redis.pubsub()
            try:
                await self._serve(pubsub)
            except* Exception as e:  # whatever it is: a line that is not tried again would leave everybody waiting
                if self._up:  # once, not at every attempt
                    logger.warning("the wake line is down, trying to get it back: %s", type(e.exceptions[0]).__name__)
            finally:
                self._hang_up()
                with suppress(RedisError, OSError):
                    await pubsub.aclose()
            await asyncio.sleep(RECONNECT_EVERY)

    async def _serve(self, pubsub: Any) -> None:
        await pubsub.connect()
        self._up = True
        self._changed.set()
        await self._update(pubsub)
        self._ring_all()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_updated(pubsub))
            group.create_task(self._keep_count())
            group.create_task(self._hear(pubsub))

    async def _keep_updated(self, pubsub: Any) -> None:
        while True:
            await self._changed.wait()
            await self._update(pubsub)

    async def _keep_count(self) -> None:
        """Operators ask Redis how many tasks are followed: it knows which channels somebody listens to."""
        while True:
            counted = {f"{through}:{len(bells)}" for through, bells in self._through.items() if bells}
            if counted != self._counted:
                self._counted = counted
                self._changed.set()
            await asyncio.sleep(COUNT_EVERY)

    async def _update(self, pubsub: Any) -> None:
        """Asks Redis for what is wanted now. A channel that was left and joined again in the meantime costs nothing."""
        self._changed.clear()
        wanted = self._bells.keys() | self._handlers.keys() | self._through.keys() | self._counted
        joined, left = wanted - self._subscribed, self._subscribed - wanted
        self._subscribed = set(wanted)
        for channel in joined:
            self._unconfirmed[channel] = self._unconfirmed.get(channel, 0) + 1
        if left:
            await pubsub.unsubscribe(*left)
        if joined:
            await pubsub.subscribe(*joined)

    async def _hear(self, pubsub: Any) -> None:
        heard = self._clock.monotonic()
        while True:
            message = await pubsub.get_message(timeout=PING_EVERY)
            if message is None:
                if self._clock.monotonic() - heard > SILENCE:
                    raise redis.ConnectionError(f"nothing heard for {SILENCE:g} s, not even the answer to a ping")
                await pubsub.ping()
                continue
            heard = self._clock.monotonic()
            if message["channel"] is None:
                continue  # the answer to a ping
            channel = message["channel"].decode()
            match message["type"]:
                case "subscribe":
                    self._confirm(channel)
                case "message":
                    self._pass_on(channel, message["data"])

    def _pass_on(self, channel: str, said: bytes) -> None:
        if channel in self._through:
            name, _, said = said.partition(b" ")
            if bell := self._through[channel].get(name.decode()):
                bell.hear(said)
        for bell in self._bells.get(channel, ()):
            bell.hear(said)
        if channel in self._handlers:
            self._handlers[channel](said)

    def _confirm(self, channel: str) -> None:
        """Only the last of several requests counts: between them the channel was left."""
        left = self._unconfirmed.pop(channel, 1) - 1
        if left > 0:
            self._unconfirmed[channel] = left
        else:
            self._release(self._waiters.pop(channel, []))

    def _hang_up(self) -> None:
        self._up = False
        self._subscribed.clear()
        self._unconfirmed.clear()
        waiters, self._waiters = self._waiters, {}
        for futures in waiters.values():
            self._release(futures)
        self._ring_all()  # whoever follows finds out for himself how things are

    def _release(self, futures: list[asyncio.Future[None]]) -> None:
        for future in futures:
            if not future.done():
                future.set_result(None)

    def _ring_all(self) -> None:
        for bell in chain(*self._bells.values(), *(bells.values() for bells in self._through.values())):
            bell.ring()
