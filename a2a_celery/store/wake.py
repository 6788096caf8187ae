"""Who waits for a log to grow: one Redis connection per process, for any number of tasks.

Pub/sub is a phone line, only the log is believed: a ring means "read". After a reconnect everybody is rung, and a
listener that hears nothing looks by itself every `LOOK_EVERY` seconds, so a lost ring costs time, never an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from .connection import CONNECT_TIMEOUT, fit, redis_url

logger = logging.getLogger(__name__)

LOOK_EVERY = 15.0
"""Seconds after which a listener reads even though nobody rang."""

RECONNECT_EVERY = 0.2
"""Seconds between two attempts to get the line back."""


class Bell:
    """What one listener waits on; rung as often as it likes, it remembers one ring."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wakes the listener, now or at its next wait."""
        self._event.set()

    async def wait(self, timeout: float = LOOK_EVERY) -> None:
        """Returns at the next ring, at one that was not waited for, or after `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._event.wait()
        self._event.clear()


class WakeLine:
    """Subscribes to channels for this process; start it before and stop it after its listeners."""

    def __init__(self, url: str) -> None:
        options = {
            "socket_connect_timeout": CONNECT_TIMEOUT,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "protocol": 2,
            # reconnecting is ours: redis-py would do it silently, and what was missed meanwhile must be looked up
            "retry": redis.asyncio.retry.Retry(NoBackoff(), 0),
        }
        self._redis = redis.asyncio.Redis.from_url(redis_url(url), **fit(url, options))
        self._pubsub: Any = None
        self._bells: dict[str, set[Bell]] = {}
        self._handlers: dict[str, Callable[[bytes], None]] = {}
        # A channel may be left and joined again before Redis has answered: it is ours only when as many
        # subscriptions are confirmed as were asked for.
        self._asked: dict[str, int] = {}
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._up = asyncio.Event()

    async def start(self) -> None:
        """Connects in the background; returns at once."""
        if self._reader is None:
            self._reader = asyncio.create_task(self._read(), name="a2a-wake-line")

    async def stop(self) -> None:
        """Hangs up. Listeners are rung a last time."""
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader
            self._reader = None
        self._ring_all()
        await self._redis.aclose()

    @property
    def channels(self) -> int:
        """How many channels somebody listens to."""
        return len(self._bells) + len(self._handlers)

    @asynccontextmanager
    async def listen(self, channel: str) -> AsyncIterator[Bell]:
        """A bell that rings when `channel` gets a message; if the line is down just now, it rings when that is up."""
        bell = Bell()
        bells = self._bells.setdefault(channel, set())
        bells.add(bell)
        try:
            await self._join(channel, first=len(bells) == 1)
            yield bell
        finally:
            bells.discard(bell)
            if not bells and self._bells.get(channel) is bells:
                del self._bells[channel]
                await self._leave(channel)

    async def on_message(self, channel: str, handler: Callable[[bytes], None]) -> None:
        """Calls `handler` with each message of `channel`, from now until `stop`. Messages can be missed."""
        self._handlers[channel] = handler
        await self._join(channel, first=True)

    async def _join(self, channel: str, *, first: bool) -> None:
        if not self._up.is_set():
            return  # whoever listens is rung as soon as the line is up
        if first:
            self._asked[channel] = self._asked.get(channel, 0) + 1
            try:
                await self._pubsub.subscribe(channel)
            except (RedisError, OSError):
                return  # the reader sees the same and reconnects
        if self._asked.get(channel):
            confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.setdefault(channel, []).append(confirmed)
            await confirmed

    async def _leave(self, channel: str) -> None:
        if self._up.is_set():
            with suppress(RedisError, OSError):
                await self._pubsub.unsubscribe(channel)

    async def _read(self) -> None:
        while True:
            try:
                await self._connect()
                while True:
                    message = await self._pubsub.get_message(timeout=5.0)
                    if message is not None:
                        self._handle(message)
            except (RedisError, OSError) as e:
                logger.warning("the wake line is down, trying again: %s", type(e).__name__)
            finally:
                self._hang_up()
            await asyncio.sleep(RECONNECT_EVERY)

    async def _connect(self) -> None:
        self._pubsub = self._redis.pubsub()
        await self._pubsub.connect()
        self._up.set()
        for channel in (*self._bells, *self._handlers):
            self._asked[channel] = self._asked.get(channel, 0) + 1
            await self._pubsub.subscribe(channel)
        self._ring_all()

    def _hang_up(self) -> None:
        self._up.clear()
        self._asked.clear()
        waiting = [future for futures in self._waiters.values() for future in futures]
        self._waiters.clear()
        for future in waiting:
            if not future.done():
                future.set_result(None)
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None and pubsub.connection is not None:
            # without a round trip: the connection may be the one that broke
            closing = asyncio.ensure_future(pubsub.aclose())
            closing.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _handle(self, message: dict[str, Any]) -> None:
        if message["channel"] is None:
            return  # the answer to a ping
        channel = message["channel"].decode()
        match message["type"]:
            case "subscribe":
                self._confirm(channel)
            case "message":
                for bell in self._bells.get(channel, ()):
                    bell.ring()
                if channel in self._handlers:
                    self._handlers[channel](message["data"])

    def _confirm(self, channel: str) -> None:
        left = self._asked.get(channel, 1) - 1
        if left > 0:
            self._asked[channel] = left
            return
        self._asked.pop(channel, None)
        for future in self._waiters.pop(channel, []):
            if not future.done():
                future.set_result(None)
        for bell in self._bells.get(channel, ()):
            bell.ring()

    def _ring_all(self) -> None:
        for bells in self._bells.values():
            for bell in bells:
                bell.ring()
