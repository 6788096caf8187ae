"""Pub/sub listener, which receives the notifications of tasks.

A process receives the notifications of all its tasks over one Redis connection. A notification reports that a log has
grown, and may carry the new entries. The log is authoritative: after a reconnect, every wakeup is notified, and a
waiter polls every `POLL_INTERVAL` seconds. If a notification is lost, the event is therefore only delayed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from struct import unpack_from
from typing import Any

import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from ...clock import SYSTEM_CLOCK, Clock
from ...concurrency import LeanEvent
from ...lifecycle import EventId
from ..client.redis_clients import CONNECT_TIMEOUT, aclose_client, async_client
from ..codec import log_entries, state_of
from .pages import LogPage

BUFFER_BYTES = 64 * 1024
"""Maximum number of bytes that are buffered for a slow reader. A reader with more pending bytes reads the log."""


@dataclass(frozen=True, slots=True)
class InlineEntries:
    """Log entries that a notification carries.

    Attributes:
        version: Version of the last entry.
        state: State of the task after the last entry, in stored form.
        entries: Entries in stored form.
        before_us: Time at which the entry before the first entry was recorded, in µs, or 0 if unknown.
    """

    version: int
    state: bytes
    entries: Sequence[bytes]
    before_us: int = 0

    @classmethod
    def of(cls, version: int, content: bytes) -> InlineEntries:
        """Parse the entries of a notification; see ``scripts/lib/notifications.lua``."""
        state, before_us, packed_entries = content.split(b" ", 2)
        entries, at = [], 0
        while at < len(packed_entries):
            (length,) = unpack_from(">I", packed_entries, at)
            entries.append(packed_entries[at + 4 : at + 4 + length])
            at += 4 + length
        return cls(version, state, entries, int(before_us))

    @property
    def base_version(self) -> int:
        """Version of the entry before the first entry."""
        return self.version - len(self.entries)

    def joined_with(self, later_entries: InlineEntries) -> InlineEntries | None:
        """Return these entries followed by `later_entries`.

        Returns:
            `later_entries` if they do not continue these entries, or None if the joined entries exceed the buffer.
        """
        if later_entries._id_of(later_entries.base_version).differs_from(self._id_of(self.version)):
            return later_entries
        entries = [*self.entries, *later_entries.entries]
        if sum(map(len, entries)) > BUFFER_BYTES:
            return None
        return InlineEntries(later_entries.version, later_entries.state, entries, self.before_us)

    def page(self, after: EventId) -> LogPage | None:
        """Return the page that follows the event `after`, or None if the log must be read."""
        if not self.base_version <= after.version < self.version or self._id_of(after.version).differs_from(after):
            return None
        entries = log_entries(self.entries[after.version - self.base_version :], after.version)
        return LogPage(entries, self.version, state_of(self.state))

    def _id_of(self, version: int) -> EventId:
        """Return the id of the entry with this version, which may be the entry before the first inline entry."""
        if version == self.base_version:
            return EventId(version, self.before_us)
        return EventId(version, int(self.entries[version - self.base_version - 1].partition(b" ")[0]))


logger = logging.getLogger(__name__)

POLL_INTERVAL = 15.0
"""Seconds without a notification after which a waiter reads the log."""

PING_INTERVAL = 3.0
"""Default seconds without a message after which a listener sends a PING."""

SILENCE = 10.0
"""Seconds without a message after which the connection counts as broken. A NAT gateway or a failover can drop a
connection silently."""

RECONNECT_EVERY = 0.2
"""Seconds between two attempts to reconnect."""

COUNT_INTERVAL = 1.0
"""Default seconds between two updates of the published number of wakeups on each reply channel of this process."""


class Wakeup:
    """Wakeup of one waiter. Repeated notifications are coalesced.

    Args:
        clock: Clock of the polls.
        final_only: True if only final states wake the waiter.
    """

    __slots__ = ("_clock", "_final_only", "_flag", "_inline", "_version")  # each open stream has a wakeup

    def __init__(self, clock: Clock = SYSTEM_CLOCK, *, final_only: bool = False) -> None:
        self._clock = clock
        self._flag = LeanEvent()
        self._final_only = final_only
        self._version = 0.0
        self._inline: InlineEntries | None = None

    def notify(self, version: float = math.inf) -> None:
        """Wake the waiter, now or at its next wait, unless the waiter waits for a version after `version`.

        Buffered inline entries that end before `version` are incomplete and are dropped.
        """
        if self._inline is not None and version > self._inline.version:
            self._inline = None
        self._version = max(self._version, version)
        self._flag.set()

    def receive(self, notification: bytes) -> None:
        """Process a notification; see ``scripts/lib/notifications.lua``. Without `final_only`, any other message also
        wakes the waiter."""
        head, _, entries = notification.partition(b"\n")
        version, _, kind = head.partition(b" ")
        if entries:
            later_entries = InlineEntries.of(int(version), entries)
            self._inline = later_entries if self._inline is None else self._inline.joined_with(later_entries)
        if kind == b"final" or not self._final_only:
            self.notify(int(version) if version.isdigit() else math.inf)

    def page(self, after: EventId) -> LogPage | None:
        """Return the inline entries after the event `after`, or None if the log must be read. Empty the buffer."""
        entries, self._inline = self._inline, None
        return None if entries is None else entries.page(after)

    async def wait(self, timeout: float | None = POLL_INTERVAL, after: int = 0) -> None:
        """Wait for a notification of a version after `after`, or for `timeout` seconds. None means no timeout.

        If such a notification has arrived since the last wait, return at once.
        """
        with suppress(TimeoutError):
            async with self._clock.timeout(timeout):
                while self._version <= after:
                    self._flag.clear()
                    await self._flag.wait()
        self._version = 0.0


class PubSubListener:
    """Pub/sub subscriptions of this process. The first wakeup opens the connection, and `stop` closes it.

    Only one background task uses the connection, so a cancelled waiter does not break the connection.

    Args:
        url: URL of the store.
        clock: Clock that measures the silence of the connection.
        ping_interval: Seconds without a message after which the listener sends a PING.
        count_interval: Seconds between two updates of the published number of wakeups on each reply channel.
    """

    def __init__(
        self,
        url: str,
        clock: Clock = SYSTEM_CLOCK,
        *,
        ping_interval: float = PING_INTERVAL,
        count_interval: float = COUNT_INTERVAL,
    ) -> None:
        self._clock = clock
        self._ping_interval, self._count_interval = ping_interval, count_interval
        options = {
            "socket_connect_timeout": CONNECT_TIMEOUT,
            "socket_keepalive": True,
            # None, or redis-py writes inside wait_for, which on Python 3.11 swallows a cancellation: stop() would hang
            "socket_timeout": None,
            "protocol": 2,
            # redis-py would reconnect silently, and messages missed during the gap must be read from the log
            "retry": redis.asyncio.retry.Retry(NoBackoff(), 0),
        }
        self._redis = async_client(url, **options)
        self._wakeups: dict[str, set[Wakeup]] = {}
        self._multiplexed: dict[str, dict[str, Wakeup]] = {}  # reply channel → wakeups by task channel
        self._counted: set[str] = set()  # channels whose names carry the number of wakeups
        self._handlers: dict[str, Callable[[bytes], None]] = {}
        self._changed = asyncio.Event()  # a wakeup was added or removed
        self._subscribed: set[str] = set()  # channels subscribed to, confirmed or not
        self._unconfirmed: dict[str, int] = {}  # unanswered SUBSCRIBE requests per channel
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._up = False

    async def start(self) -> None:
        """Connect in the background, without waiting for the connection."""
        if self._task is None:
            self._task = asyncio.create_task(self._stay_connected(), name="a2a-pubsub")

    async def stop(self) -> None:
        """Close the connection, and notify every wakeup one last time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
        self._notify_all()
        await aclose_client(self._redis)

    @property
    def channels(self) -> int:
        """Number of channels with a wakeup or a handler."""
        return len(self._wakeups) + len(self._handlers) + len(self._multiplexed)

    def listen(
        self, channel: str, *, through: str = "", final_only: bool = False
    ) -> AbstractAsyncContextManager[Wakeup]:
        """Subscribe to a channel for the duration of a ``with`` block.

        The `Wakeup` of the ``with`` statement is notified of each message of the channel and of each reconnect of
        the listener.

        A reply channel of this process carries the messages of many channels, each preceded by the channel's name. The
        subscription to a reply channel stays open, so listening through it takes no round trip.

        Args:
            channel: Name of the channel.
            through: Reply channel that carries the messages, or "" to subscribe to `channel` itself. Only one
                `Wakeup` for each channel may listen through a reply channel.
            final_only: True if only final states notify the `Wakeup`.
        """
        wakeup = Wakeup(self._clock, final_only=final_only)
        return self._listen_through(through, channel, wakeup) if through else self._listen(channel, wakeup)

    @asynccontextmanager
    async def _listen_through(self, through: str, channel: str, wakeup: Wakeup) -> AsyncIterator[Wakeup]:
        await self.start()
        wakeups = self._multiplexed.setdefault(through, {})
        wakeups[channel] = wakeup
        try:
            await self._wait_for_confirmation(through)
            yield wakeup
        finally:
            del wakeups[channel]

    @asynccontextmanager
    async def _listen(self, channel: str, wakeup: Wakeup) -> AsyncIterator[Wakeup]:
        await self.start()  # a mounted application receives no startup event
        self._wakeups.setdefault(channel, set()).add(wakeup)
        try:
            await self._wait_for_confirmation(channel)
            yield wakeup
        finally:
            wakeups = self._wakeups[channel]
            wakeups.discard(wakeup)
            if not wakeups:
                del self._wakeups[channel]
                self._changed.set()

    async def on_message(self, channel: str, handler: Callable[[bytes], None]) -> None:
        """Call `handler` with each message of `channel` until `stop` is called. While the connection is down, messages
        are missed."""
        self._handlers[channel] = handler
        await self._wait_for_confirmation(channel)

    async def _wait_for_confirmation(self, channel: str) -> None:
        """Wait until the subscription to `channel` is confirmed or the connection is down."""
        if not self._up or (channel in self._subscribed and channel not in self._unconfirmed):
            return  # the reconnect notifies wakeups that were added while the connection was down
        self._changed.set()
        confirmation: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(channel, []).append(confirmation)
        await confirmation

    async def _stay_connected(self) -> None:
        while True:
            pubsub: Any = self._redis.pubsub()
            try:
                await self._serve(pubsub)
            except* Exception as e:  # any error: without a reconnect every waiter would hang
                if self._up:  # log once per outage
                    logger.warning("the pub/sub connection is down, reconnecting: %s", type(e.exceptions[0]).__name__)
            finally:
                self._disconnect()
                with suppress(RedisError, OSError):
                    await pubsub.aclose()
            await asyncio.sleep(RECONNECT_EVERY)

    async def _serve(self, pubsub: Any) -> None:
        await pubsub.connect()
        self._up = True
        self._changed.set()
        await self._update(pubsub)
        self._notify_all()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_updated(pubsub))
            group.create_task(self._keep_count())
            group.create_task(self._read_messages(pubsub))

    async def _keep_updated(self, pubsub: Any) -> None:
        while True:
            await self._changed.wait()
            await self._update(pubsub)

    async def _keep_count(self) -> None:
        """Publish the number of followed tasks in the name of a channel, which operators see in PUBSUB CHANNELS."""
        while True:
            count_channels = {f"{through}:{len(wakeups)}" for through, wakeups in self._multiplexed.items() if wakeups}
            if count_channels != self._counted:
                self._counted = count_channels
                self._changed.set()
            await asyncio.sleep(self._count_interval)

    async def _update(self, pubsub: Any) -> None:
        """Subscribe to new channels and unsubscribe from unused ones."""
        self._changed.clear()
        channels = self._wakeups.keys() | self._handlers.keys() | self._multiplexed.keys() | self._counted
        new_channels, unused_channels = channels - self._subscribed, self._subscribed - channels
        self._subscribed = set(channels)
        for channel in new_channels:
            self._unconfirmed[channel] = self._unconfirmed.get(channel, 0) + 1
        if unused_channels:
            await pubsub.unsubscribe(*unused_channels)
        if new_channels:
            await pubsub.subscribe(*new_channels)

    async def _read_messages(self, pubsub: Any) -> None:
        received_at = self._clock.monotonic()
        while True:
            message = await pubsub.get_message(timeout=self._ping_interval)
            if message is None:
                if self._clock.monotonic() - received_at > SILENCE:
                    raise redis.ConnectionError(f"no message for {SILENCE:g} s, and no reply to a ping")
                await pubsub.ping()
                continue
            received_at = self._clock.monotonic()
            if message["channel"] is None:
                continue  # the reply to a ping
            channel = message["channel"].decode()
            match message["type"]:
                case "subscribe":
                    self._confirm(channel)
                case "message":
                    self._dispatch(channel, message["data"])

    def _dispatch(self, channel: str, message: bytes) -> None:
        if channel in self._multiplexed:
            name, _, message = message.partition(b" ")
            if wakeup := self._multiplexed[channel].get(name.decode()):
                wakeup.receive(message)
        for wakeup in self._wakeups.get(channel, ()):
            wakeup.receive(message)
        if channel in self._handlers:
            self._handlers[channel](message)

    def _confirm(self, channel: str) -> None:
        """Release the waiters of `channel` when the last pending subscription is confirmed."""
        outstanding_count = self._unconfirmed.pop(channel, 1) - 1
        if outstanding_count > 0:
            self._unconfirmed[channel] = outstanding_count
        else:
            self._release(self._waiters.pop(channel, []))

    def _disconnect(self) -> None:
        self._up = False
        self._subscribed.clear()
        self._unconfirmed.clear()
        waiters, self._waiters = self._waiters, {}
        for futures in waiters.values():
            self._release(futures)
        self._notify_all()  # waiters read the log

    def _release(self, futures: list[asyncio.Future[None]]) -> None:
        for future in futures:
            if not future.done():
                future.set_result(None)

    def _notify_all(self) -> None:
        for wakeup in chain(*self._wakeups.values(), *(wakeups.values() for wakeups in self._multiplexed.values())):
            wakeup.notify()
