"""The two ways to run an operation: on an event loop, and without one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from ..clock import SYSTEM_CLOCK
from ..errors import StoreUnavailable
from ..store_urls import redis_url
from .blobs import Blobs, read, require
from .codec import LongSnapshot
from .long_tasks import LogGone, fold_log
from .object_store import Missing
from .operation import Operation
from .redis_errors import translated
from .round_trips import Command, RoundTrips

T = TypeVar("T")

SOCKET_TIMEOUT = 5.0
"""Seconds an answer may take. The scripts take microseconds; what is slower is a server in trouble."""

CONNECT_TIMEOUT = 2.0
PATIENCE = 30.0
"""Seconds for which a store that is away is asked again, by who would rather wait than give up."""

TRY_AGAIN_AFTER = 0.5

MAX_SENDERS = 4
"""Pipelines under way at once: a large read in one of them does not hold up the rest."""

MAX_BATCH = 64

SEND_TIMEOUT = 17.0
"""Seconds a pipeline may take in all, tries included."""

SCANNED = 1000
"""Names of keys that a step looks at: Redis does nothing else meanwhile, for about a millisecond."""

RETRIES = 2
"""Every operation answers a repeated call as it answered the first, so a broken connection is simply tried again."""


def _options(retry: Any) -> dict[str, Any]:
    return {
        "socket_timeout": SOCKET_TIMEOUT,
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_keepalive": True,
        "health_check_interval": 30,
        "retry": retry,
        "protocol": 2,
    }


class AsyncStore:
    """The store for one event loop: gateway, watcher, the runs of a worker.

    Operations that are asked for at the same time go in one pipeline: round trips are what is felt, not Redis. They are
    sent by tasks of the store's own, so a caller that is cancelled leaves no connection half read and none missing.
    """

    first: Callable[[], Awaitable[None]] | None = None
    """What must have been done before anything else is, by `straight`; None: nothing, or it has been."""

    def __init__(self, url: str, blobs: Blobs | None = None) -> None:
        self._blobs = blobs
        retry = redis.asyncio.retry.Retry(ExponentialWithJitterBackoff(cap=0.5, base=0.05), RETRIES)
        options = {**fit(url, _options(retry)), "socket_timeout": None}  # see `RoundTrips`
        # Never more connections than senders, and one for a ping.
        self.redis: redis.asyncio.Redis = redis.asyncio.Redis.from_url(
            redis_url(url), max_connections=MAX_SENDERS + 4, **options
        )
        self._round_trips = RoundTrips(self.redis.connection_pool, SOCKET_TIMEOUT)
        self._waiting: deque[tuple[Operation[Any], asyncio.Future[Any]]] = deque()
        self._senders: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    async def run(self, operation: Operation[T]) -> T:
        """The operation's result. Large parts go to the object store before, and come from there behind it.

        Raises:
            StoreUnavailable: Redis can't be reached, or refuses (out of memory, read-only replica, loading).
            BlobsUnavailable: the object store can't be reached; if a part was to be written, nothing was.
        """
        if self.first is not None:
            await self.first()
            self.first = None
        if self._blobs is not None and self._blobs.is_for(operation):
            operation = await self._blobs.put(operation, self.straight)
        try:
            return await self._whole(operation, await self._ask(operation))
        except (Missing, LogGone):  # its task may have expired meanwhile; a call that is repeated changes nothing
            return await self._whole(operation, await self._ask(operation))

    async def _whole(self, operation: Operation[T], answer: Any) -> T:
        try:
            said, missing = read(operation, answer, {})
        except LongSnapshot as long:
            for snapshot in long.snapshots:
                await self._fold_log(snapshot)
            said, missing = read(operation, answer, {})
        if missing:
            said, _ = read(operation, answer, await require(self._blobs).get(missing))
        return said

    async def _fold_log(self, snapshot: list[Any]) -> None:
        """Read the contents of a long task. Several readers take turns: one page or slice a turn of the event loop."""
        steps = fold_log(snapshot)
        reply = None
        with suppress(StopIteration):
            while True:
                async with self._turn:
                    request = steps.send(reply)
                    reply = await (asyncio.sleep(0) if request is None else self.straight(request))

    async def straight(self, operation: Operation[T]) -> T:
        """The result of an operation without large parts, which waits for nothing else. Raises StoreUnavailable, as
        `run`."""
        return operation.parse(await self._ask(operation))

    async def _ask(self, operation: Operation[Any]) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((operation, answer))
        if len(self._senders) < MAX_SENDERS:
            sender = asyncio.create_task(self._send_waiting(), name="a2a-store")
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        return await answer

    async def ping(self) -> None:
        """Returns when Redis answers.

        Raises:
            StoreUnavailable: it does not.
        """
        try:
            await self._round_trips.make([("PING",)])
        except RedisError as e:
            raise translated(e, "ping") from e

    async def aclose(self) -> None:
        """Closes the connections, when what is under way has been sent."""
        if self._senders:
            await asyncio.wait(set(self._senders))
        await self._round_trips.aclose()
        await self.redis.aclose()
        if self._blobs is not None:
            await self._blobs.aclose()

    async def _send_waiting(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH))]
            batch = [(operation, answer) for operation, answer in batch if not answer.done()]
            if not batch:
                continue
            try:
                # redis-py's own timeouts leave a frozen server on a unix socket alone
                async with asyncio.timeout(SEND_TIMEOUT):
                    await self._send(batch)
            except TimeoutError:
                self._refuse(batch, StoreUnavailable(f"Redis did not answer within {SEND_TIMEOUT:g} s"))
            except Exception as e:
                self._refuse(batch, translated(e, batch[0][0].script.name))

    def _refuse(self, batch: list[tuple[Operation[Any], asyncio.Future[Any]]], error: Exception) -> None:
        for _, answer in batch:
            if not answer.done():
                answer.set_exception(error)

    async def _send(self, batch: list[tuple[Operation[Any], asyncio.Future[Any]]]) -> None:
        results = await self._pipelined([o for o, _ in batch], with_text=False)
        unknown = [i for i, result in enumerate(results) if isinstance(result, NoScriptError)]
        if unknown:
            again = await self._pipelined([batch[i][0] for i in unknown], with_text=True)
            for i, result in zip(unknown, again, strict=True):
                results[i] = result
        for (operation, answer), result in zip(batch, results, strict=True):
            if answer.done():  # its caller was cancelled
                continue
            if isinstance(result, Exception):
                answer.set_exception(translated(result, operation.script.name))
            else:
                answer.set_result(result)

    async def _pipelined(self, operations: list[Operation[Any]], *, with_text: bool) -> list[Any]:
        commands: list[Command] = []
        for operation in operations:
            call = ("EVAL", operation.script.text) if with_text else ("EVALSHA", operation.script.sha)
            commands.append((*call, len(operation.keys), *operation.keys, *operation.args))
        return await self._round_trips.make(commands)


async def patiently(store: AsyncStore, operation: Operation[T]) -> T:
    """What the operation gives, also when the store has just been restarted.

    Raises:
        StoreUnavailable: it has been away for `PATIENCE` seconds.
    """
    until = SYSTEM_CLOCK.monotonic() + PATIENCE
    while True:
        try:
            return await store.run(operation)
        except StoreUnavailable:
            if SYSTEM_CLOCK.monotonic() > until:
                raise
        await asyncio.sleep(TRY_AGAIN_AFTER)


class SyncStore:
    """The store for code without an event loop: signal handlers, commands."""

    def __init__(self, url: str, blobs: Blobs | None = None) -> None:
        self._blobs = blobs
        options = fit(url, _options(Retry(ExponentialWithJitterBackoff(cap=0.5, base=0.05), RETRIES)))
        self.redis: redis.Redis = redis.Redis.from_url(redis_url(url), **options)

    def run(self, operation: Operation[T]) -> T:
        """See `AsyncStore.run`."""
        if self._blobs is not None and self._blobs.is_for(operation):
            operation = self._blobs.put_now(operation, lambda small: small.parse(self._ask(small)))
        try:
            return self._whole(operation, self._ask(operation))
        except (Missing, LogGone):
            return self._whole(operation, self._ask(operation))

    def _whole(self, operation: Operation[T], answer: Any) -> T:
        try:
            said, missing = read(operation, answer, {})
        except LongSnapshot as long:
            for snapshot in long.snapshots:
                self._fold_log(snapshot)
            said, missing = read(operation, answer, {})
        if missing:
            said, _ = read(operation, answer, require(self._blobs).get_now(missing))
        return said

    def _fold_log(self, snapshot: list[Any]) -> None:
        steps = fold_log(snapshot)
        reply = None
        with suppress(StopIteration):
            while True:
                request = steps.send(reply)
                reply = None if request is None else request.parse(self._ask(request))

    def _ask(self, operation: Operation[Any]) -> Any:
        s, keys_and_args = operation.script, (*operation.keys, *operation.args)
        try:
            try:
                return self.redis.evalsha(s.sha, len(operation.keys), *keys_and_args)
            except NoScriptError:
                return self.redis.eval(s.text, len(operation.keys), *keys_and_args)
        except RedisError as e:
            raise translated(e, s.name) from e

    def ping(self) -> None:
        """Return when Redis has answered.

        Raises:
            StoreUnavailable: Redis can't be reached, or refuses.
        """
        try:
            self.redis.ping()
        except RedisError as e:
            raise translated(e, "ping") from e

    def names(self, pattern: str) -> list[str]:
        """The names of all sorted sets that `pattern` matches, in SCAN's language; read in steps, for operators.

        Raises:
            StoreUnavailable: Redis can't be reached, or refuses.
        """
        try:
            return sorted({name.decode() for name in self.redis.scan_iter(pattern, count=SCANNED, _type="zset")})
        except RedisError as e:
            raise translated(e, "scan") from e

    def close(self) -> None:
        """Closes the connections."""
        self.redis.close()


def fit(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """`options` less those that a unix socket doesn't know."""
    if redis_url(url).startswith("unix://"):
        options.pop("socket_keepalive")
        options.pop("socket_connect_timeout")
    return options
