"""Pub/sub listener and log followers.

A process receives the notifications of all its tasks over one Redis connection. A notification reports that a log has
grown, and may carry the new entries. The log is authoritative: after a reconnect, every signal is notified, and a
waiter polls every `POLL_INTERVAL` seconds. If a notification is lost, the event is therefore only delayed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from struct import unpack_from
from typing import Any
from uuid import uuid4

import redis.asyncio
from a2a.types import TaskStatusUpdateEvent
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from ...clock import SYSTEM_CLOCK, Clock
from ...concurrency import LeanEvent
from ...lifecycle import EventId, LogEntry
from ..client.connection import AsyncStore, run_with_retry
from ..client.redis_clients import CONNECT_TIMEOUT, aclose_client, async_client
from ..codec import log_entries, state_of
from ..keys import Keys, Scope
from ..tasks.commands import ReplyChannel, read_final_task, read_task
from ..tasks.results import FinalTask
from .pages import LogPage, read_log

BUFFER_BYTES = 64 * 1024
"""Maximum number of bytes that are buffered for a slow reader. A reader with more pending bytes reads the log."""


@dataclass(frozen=True, slots=True)
class InlineEntries:
    """Log entries that a notification carries.

    Attributes:
        version: Version of the last entry.
        state: State of the task after the last entry, in stored form.
        running: True if a run of the task is open: queued, claimed, delegated or suspended.
        entries: Entries in stored form.
        before_us: Time at which the entry before the first entry was recorded, in µs, or 0 if unknown.
    """

    version: int
    state: bytes
    running: bool
    entries: Sequence[bytes]
    before_us: int = 0

    @classmethod
    def of(cls, version: int, content: bytes) -> InlineEntries:
        """Parse the entries of a notification; see ``scripts/lib/notifications.lua``."""
        state, running, before_us, packed_entries = content.split(b" ", 3)
        entries, at = [], 0
        while at < len(packed_entries):
            (length,) = unpack_from(">I", packed_entries, at)
            entries.append(packed_entries[at + 4 : at + 4 + length])
            at += 4 + length
        return cls(version, state, running == b"1", entries, int(before_us))

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
        return InlineEntries(later_entries.version, later_entries.state, later_entries.running, entries, self.before_us)

    def page(self, after: EventId) -> LogPage | None:
        """Return the page that follows the event `after`, or None if the log must be read."""
        if not self.base_version <= after.version < self.version or self._id_of(after.version).differs_from(after):
            return None
        entries = log_entries(self.entries[after.version - self.base_version :], after.version)
        return LogPage(entries, self.version, state_of(self.state), self.running)

    def _id_of(self, version: int) -> EventId:
        """Return the id of the entry with this version, which may be the entry before the first inline entry."""
        if version == self.base_version:
            return EventId(version, self.before_us)
        return EventId(version, int(self.entries[version - self.base_version - 1].partition(b" ")[0]))


logger = logging.getLogger(__name__)

POLL_INTERVAL = 15.0
"""Seconds without a notification after which a waiter reads the log."""

PING_EVERY = 3.0
"""Seconds without a message after which the listener sends a PING."""

SILENCE = 10.0
"""Seconds without a message after which the connection counts as broken. A NAT gateway or a failover can drop a
connection silently."""

RECONNECT_EVERY = 0.2
"""Seconds between two attempts to reconnect."""

COUNT_EVERY = 1.0
"""Seconds between two updates of the published number of signals on each reply channel of this process."""


class LogSignal:
    """Wake-up signal for one waiter. Repeated notifications are coalesced.

    Args:
        final_only: True if only final states wake the waiter.
    """

    __slots__ = ("_final_only", "_flag", "_inline", "_version")  # each open stream has a signal

    def __init__(self, *, final_only: bool = False) -> None:
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
            async with asyncio.timeout(timeout):
                while self._version <= after:
                    self._flag.clear()
                    await self._flag.wait()
        self._version = 0.0


class PubSubListener:
    """Pub/sub subscriptions of this process. The first signal opens the connection, and `stop` closes it.

    Only one background task uses the connection, so a cancelled waiter does not break the connection.
    """

    def __init__(self, url: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
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
        self._signals: dict[str, set[LogSignal]] = {}
        self._multiplexed: dict[str, dict[str, LogSignal]] = {}  # reply channel → signals by task channel
        self._counted: set[str] = set()  # channels whose names carry the number of signals
        self._handlers: dict[str, Callable[[bytes], None]] = {}
        self._changed = asyncio.Event()  # a signal was added or removed
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
        """Close the connection, and notify every signal one last time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
        self._notify_all()
        await aclose_client(self._redis)

    @property
    def channels(self) -> int:
        """Number of channels with a signal or a handler."""
        return len(self._signals) + len(self._handlers) + len(self._multiplexed)

    def listen(
        self, channel: str, *, through: str = "", final_only: bool = False
    ) -> AbstractAsyncContextManager[LogSignal]:
        """Subscribe to a channel for the duration of a ``with`` block.

        The `LogSignal` of the ``with`` statement is notified of each message of the channel and of each reconnect of
        the listener.

        A reply channel of this process carries the messages of many channels, each preceded by the channel's name. The
        subscription to a reply channel stays open, so listening through it takes no round trip.

        Args:
            channel: Name of the channel.
            through: Reply channel that carries the messages, or "" to subscribe to `channel` itself. Only one
                `LogSignal` for each channel may listen through a reply channel.
            final_only: True if only final states notify the `LogSignal`.
        """
        signal = LogSignal(final_only=final_only)
        return self._listen_through(through, channel, signal) if through else self._listen(channel, signal)

    @asynccontextmanager
    async def _listen_through(self, through: str, channel: str, signal: LogSignal) -> AsyncIterator[LogSignal]:
        await self.start()
        signals = self._multiplexed.setdefault(through, {})
        signals[channel] = signal
        try:
            await self._wait_for_confirmation(through)
            yield signal
        finally:
            del signals[channel]

    @asynccontextmanager
    async def _listen(self, channel: str, signal: LogSignal) -> AsyncIterator[LogSignal]:
        await self.start()  # a mounted application receives no startup event
        self._signals.setdefault(channel, set()).add(signal)
        try:
            await self._wait_for_confirmation(channel)
            yield signal
        finally:
            signals = self._signals[channel]
            signals.discard(signal)
            if not signals:
                del self._signals[channel]
                self._changed.set()

    async def on_message(self, channel: str, handler: Callable[[bytes], None]) -> None:
        """Call `handler` with each message of `channel` until `stop` is called. While the connection is down, messages
        are missed."""
        self._handlers[channel] = handler
        await self._wait_for_confirmation(channel)

    async def _wait_for_confirmation(self, channel: str) -> None:
        """Wait until the subscription to `channel` is confirmed or the connection is down."""
        if not self._up or (channel in self._subscribed and channel not in self._unconfirmed):
            return  # the reconnect notifies signals that were added while the connection was down
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
            count_channels = {f"{through}:{len(signals)}" for through, signals in self._multiplexed.items() if signals}
            if count_channels != self._counted:
                self._counted = count_channels
                self._changed.set()
            await asyncio.sleep(COUNT_EVERY)

    async def _update(self, pubsub: Any) -> None:
        """Subscribe to new channels and unsubscribe from unused ones."""
        self._changed.clear()
        channels = self._signals.keys() | self._handlers.keys() | self._multiplexed.keys() | self._counted
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
            message = await pubsub.get_message(timeout=PING_EVERY)
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
            if signal := self._multiplexed[channel].get(name.decode()):
                signal.receive(message)
        for signal in self._signals.get(channel, ()):
            signal.receive(message)
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
        for signal in chain(*self._signals.values(), *(signals.values() for signals in self._multiplexed.values())):
            signal.notify()


async def follow(
    store: AsyncStore,
    keys: Keys,
    signal: LogSignal,
    task_id: str,
    after: EventId,
    *,
    new: bool = False,
    resolve_blobs: bool = True,
    on_page: Callable[[LogPage], None] | None = None,
) -> AsyncGenerator[LogPage, None]:
    """Yield the pages of a log after the event `after`, without gaps or repeats, until the task no longer exists.

    A page is empty if a poll finds no new entry. Polls are at most `POLL_INTERVAL` seconds apart. A slow reader keeps
    one page in memory and does not delay other readers.

    If a restored store has lost entries that were already read, the next page has `restored` set, and contains the
    complete task and its status. Both have the id of the task's newest event, whose version may be lower than the
    version of `after`.

    Args:
        store: Store that contains the log.
        keys: Keys of the deployment.
        signal: Signal that already listens to the task.
        task_id: Id of the task.
        after: Last event that the caller has received.
        new: True if `after` was written while `signal` listened, so that no read of the log is necessary before the
            first wait.
        resolve_blobs: False to leave blob references unresolved.
        on_page: Function that is called with each page before the page is yielded, or None.
    """
    if new:
        await signal.wait(after=after.version)
    while True:
        page = signal.page(after)
        if page is None:
            page = await run_with_retry(store, read_log(keys, task_id, after, resolve_blobs=resolve_blobs))
        if page.restored:
            page = await _restored_page(store, keys, task_id, page, resolve_blobs=resolve_blobs)
        if page.version == 0:
            return
        if page.entries:
            after = page.entries[-1].id
        if on_page is not None:
            on_page(page)
        all_read = page.version <= after.version
        yield page
        del page
        if all_read:
            await signal.wait(after=after.version)


async def _restored_page(store: AsyncStore, keys: Keys, task_id: str, page: LogPage, *, resolve_blobs: bool) -> LogPage:
    """Return a page with the complete task and its status, from which the reader restarts."""
    snapshot = await run_with_retry(store, read_task(keys, None, task_id, resolve_blobs=resolve_blobs))
    if snapshot is None:
        return LogPage([], 0, page.state, running=False)
    task, newest = snapshot
    status = TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status)
    entries = [LogEntry(*newest, task), LogEntry(*newest, status)]
    return LogPage(entries, newest.version, task.status.state, page.running, restored=True)


class LogFollower:
    """Reader of task logs that waits for new entries with the process's pub/sub listener."""

    def __init__(self, store: AsyncStore, keys: Keys, listener: PubSubListener) -> None:
        self.store = store
        self.keys = keys
        self.listener = listener
        self._reply_channel = keys.reply_channel(uuid4().hex)

    def reply_channel(self, *, final_only: bool) -> ReplyChannel:
        """Return the reply channel of this process.

        Args:
            final_only: True if the channel receives final states only.
        """
        return ReplyChannel(self._reply_channel, final_only)

    def listen(
        self, task_id: str, reply_channel: ReplyChannel | None = None, *, final_only: bool = False
    ) -> AbstractAsyncContextManager[LogSignal]:
        """Subscribe to the notifications of a task for the duration of a ``with`` block.

        The `LogSignal` of the ``with`` statement is notified of new log entries. Enter the block before you read the
        log.

        Args:
            task_id: Id of the task.
            reply_channel: Reply channel with which the task was created, or None. A reply channel saves a round trip.
            final_only: True if only final states notify the `LogSignal`.
        """
        return self.listener.listen(
            self.keys.task(task_id).notifications,
            through=reply_channel.channel if reply_channel else "",
            final_only=final_only,
        )

    async def final_task(self, scope: Scope, task_id: str, *, history_length: int | None = None) -> FinalTask | None:
        """Wait until a task is terminal or interrupted, and return the task, or None if the task is not in `scope`.

        Args:
            scope: Scope of the task.
            task_id: Id of the task.
            history_length: Number of history messages to read, or None for all.

        Raises:
            StoreUnavailable: The store was unavailable for `RETRY_TIMEOUT` seconds.
        """
        final = read_final_task(self.keys, scope, task_id, history_length=history_length)
        head = read_task(self.keys, scope, task_id, history_length=0, artifacts=False, resolve_blobs=False)
        async with self.listen(task_id, final_only=True) as signal:
            while (task := await run_with_retry(self.store, final)) is None:
                if await run_with_retry(self.store, head) is None:
                    return None
                await signal.wait()
            return task

    async def pages(self, task_id: str, after: EventId) -> AsyncGenerator[LogPage, None]:
        """Yield the non-empty pages of a task's log after the event `after`; see `follow`."""
        async with self.listen(task_id) as signal:
            async for page in follow(self.store, self.keys, signal, task_id, after):
                if page.entries:
                    yield page
