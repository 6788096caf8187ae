"""Execution of store operations through redis-py: `AsyncStore` for asyncio, `TracedStore` with spans, and `SyncStore`
for code without an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import redis
import redis.asyncio
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import NoScriptError, RedisError

from ...clock import SYSTEM_CLOCK
from ...errors import StoreUnavailable
from ...telemetry.names import SpanName
from ...telemetry.tracing import tracing
from ..blobs.blob_store import Blobs, read, require
from ..blobs.redis_blobs import CALLS_AT_ONCE, RedisBlobs, SyncRedisBlobs
from ..blobs.references import BlobMissing
from ..codec import LongSnapshot
from ..log.long_tasks import LogIncomplete, fold_log, mark_unreadable
from ..operation import Operation
from ..runs.commands import Written
from .redis_clients import (
    CONNECT_TIMEOUT,
    RETRY_TIMEOUTS,
    PrimaryRetry,
    aclose_client,
    async_client,
    close_client,
    sync_client,
    translate_error,
)
from .round_trips import Command, RoundTrips, command_of

if TYPE_CHECKING:
    from .replication import Replicas

T = TypeVar("T")

SOCKET_TIMEOUT = 5.0
"""Seconds that Redis may take to reply. Scripts normally take microseconds."""

RETRY_TIMEOUT = 30.0
"""Seconds for which `run_with_retry` retries while the store is unavailable."""

RETRY_INTERVAL = 0.5

REPLICA_TIMEOUT_MS = 1000
"""Milliseconds that replicas may take to confirm a write."""

SHOWN = frozenset({"create_task", "continue_task", "request_cancel", "claim_run", "settle_run", "release_run"})
"""Scripts whose executions have their own spans."""

RECORDED = "append"
"""Script whose executions are events of the current span, because a long stream makes thousands of appends."""

MAX_SENDERS = 4
"""Maximum number of concurrent pipelines of a lane. A large read in one pipeline does not delay the other pipelines."""

MAX_BATCH = 64

SEND_TIMEOUT = 17.0
"""Seconds that a pipeline may take, including retries."""

LARGE_REPLY = 1 << 18
"""Bytes above which an `AsyncStore` parses a reply in a thread, because parsing takes milliseconds."""

SCANNED = 1000
"""COUNT of each SCAN call. One call blocks Redis for about a millisecond."""

RETRIES = 2
"""Number of retries after a broken connection. Operations are idempotent, but a retry may charge a token bucket
twice."""


def _options(retry: Any, timeout: float | None) -> dict[str, Any]:
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_keepalive": True,
        "health_check_interval": 30,
        "retry": retry,
        "protocol": 2,
    }


class _Lane:
    """Queue of operations, with the asyncio tasks that send the operations."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Operation[Any], asyncio.Future[Any]]] = deque()
        self.senders: set[asyncio.Task[None]] = set()


class AsyncStore:
    """Store client on one event loop, for gateways, watchers and the runs of a worker.

    Concurrent operations share a pipeline, which saves round trips. Background tasks send the pipelines, so a cancelled
    caller does not break a connection.

    Args:
        url: URL of the store.
        blobs: Access to blobs, or None to write large parts through Lua.
        wait_replicas: Number of replicas that must confirm a write that accepts a message or may end a task. With 0, no
            write waits for replicas.
        replica_timeout_ms: Milliseconds that replicas may take to confirm a write.
    """

    first: Callable[[], Awaitable[None]] | None = None
    """Check that runs before the first operation, through `run_raw`. None if there is no check or if the check has
    passed."""

    def __init__(
        self,
        url: str,
        blobs: Blobs | None = None,
        *,
        wait_replicas: int = 0,
        replica_timeout_ms: int = REPLICA_TIMEOUT_MS,
    ) -> None:
        self._blobs = blobs
        self._replicas = _replicas_of(wait_replicas, replica_timeout_ms)
        retry = redis.asyncio.retry.Retry(ExponentialWithJitterBackoff(cap=0.5, base=0.05), RETRIES)
        options = _options(retry, timeout=None)  # see `RoundTrips`
        # sufficient connections for the senders, the blobs, and a ping
        self.redis = async_client(url, max_connections=2 * MAX_SENDERS + CALLS_AT_ONCE + 4, **options)
        self._round_trips = RoundTrips(self.redis.connection_pool, SOCKET_TIMEOUT)
        self._redis_blobs = RedisBlobs(blobs.keys, self._round_trips) if blobs is not None else None
        self._lane, self._confirmed_lane = _Lane(), _Lane()  # so that slow replicas do not delay reads
        self._turn = asyncio.Lock()

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation.

        Large parts are written as blobs before the operation, and read after the operation. If a blob is missing, the
        operation runs again, because its task may have expired since, or its blobs before it. Operations are
        idempotent.

        Raises:
            StoreUnavailable: Redis cannot be reached, or refuses the command, for example because Redis is out of
                memory, read-only or loading.
            ConfigError: The server is a Sentinel or a cluster node, or does not have the database.
            BlobsUnavailable: A blob is missing, or the object store cannot be reached. If a part could not be written,
                the operation did not run.
        """
        if self.first is not None:
            await self.first()
            self.first = None
        try:
            return await self._run_with_blobs(operation)
        except (BlobMissing, LogIncomplete):
            return await self._run_with_blobs(operation)

    async def _run_with_blobs(self, operation: Operation[T]) -> T:
        if self._blobs is None or not self._blobs.is_for(operation):
            return await self._resolve(operation, await self._ask(operation))
        # if the caller is cancelled, the script runs nevertheless, or the blobs would stay until their first expiry
        reply = await asyncio.shield(self._ask_with_blobs(operation, self._blobs))
        return await self._resolve(operation, reply)

    async def _ask_with_blobs(self, operation: Operation[Any], blobs: Blobs) -> Any:
        return await self._ask(await blobs.put(operation, require(self._redis_blobs), self.run_raw))

    async def _resolve(self, operation: Operation[T], reply: Any) -> T:
        try:
            if operation.size is not None and operation.size(reply) > LARGE_REPLY:
                result, missing = await asyncio.to_thread(read, operation, reply, {})
            else:
                result, missing = read(operation, reply, {})
        except LongSnapshot as long:
            for snapshot in long.snapshots:
                await self._fold_log(snapshot)
            result, missing = read(operation, reply, {})
        if missing:
            contents = await require(self._blobs).get(missing, require(self._redis_blobs))
            if sum(map(len, contents.values())) > LARGE_REPLY:
                result, _ = await asyncio.to_thread(read, operation, reply, contents)
            else:
                result, _ = read(operation, reply, contents)
        return result

    async def _fold_log(self, snapshot: list[Any]) -> None:
        """Read the contents of a long task, and let the event loop run other tasks after each page and each slice."""
        steps = fold_log(snapshot)
        reply = None
        with mark_unreadable(snapshot), suppress(StopIteration):
            while True:
                async with self._turn:
                    request = steps.send(reply)
                    reply = await (asyncio.sleep(0) if request is None else self.run_raw(request))

    async def run_raw(self, operation: Operation[T]) -> T:
        """Run an operation without large parts, and without the check `first`.

        Raises:
            StoreUnavailable: Redis cannot be reached, or refuses the command.
        """
        return operation.parse(await self._ask(operation))

    async def _ask(self, operation: Operation[Any]) -> Any:
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        lane = self._confirmed_lane if self._replicas is not None and self._replicas.confirm(operation) else self._lane
        lane.waiting.append((operation, reply))
        if len(lane.senders) < MAX_SENDERS:
            sender = asyncio.create_task(self._send_waiting(lane), name="a2a-store")
            lane.senders.add(sender)
            sender.add_done_callback(lane.senders.discard)
        return await reply

    async def ping(self) -> None:
        """Wait for a reply from Redis.

        Raises:
            StoreUnavailable: Redis does not reply.
        """
        try:
            await self._round_trips.make([("PING",)])
        except RedisError as e:
            raise translate_error(e, "ping") from e

    async def aclose(self) -> None:
        """Close the connections after pending operations have been sent."""
        senders = self._lane.senders | self._confirmed_lane.senders
        if senders:
            await asyncio.wait(senders)
        await self._round_trips.aclose()
        await aclose_client(self.redis)
        if self._blobs is not None:
            await self._blobs.aclose()

    async def _send_waiting(self, lane: _Lane) -> None:
        while lane.waiting:
            batch = [lane.waiting.popleft() for _ in range(min(len(lane.waiting), MAX_BATCH))]
            batch = [(operation, reply) for operation, reply in batch if not reply.done()]
            if not batch:
                continue
            try:
                # redis-py's timeouts do not apply to a frozen server on a unix socket
                async with asyncio.timeout(SEND_TIMEOUT):
                    await self._send(batch)
            except TimeoutError:
                self._refuse(batch, StoreUnavailable(f"Redis did not reply within {SEND_TIMEOUT:g} s"))
            except Exception as e:
                self._refuse(batch, e)

    def _refuse(self, batch: list[tuple[Operation[Any], asyncio.Future[Any]]], error: Exception) -> None:
        for operation, reply in batch:
            if not reply.done():
                reply.set_exception(translate_error(error, operation.script.name))

    async def _send(self, batch: list[tuple[Operation[Any], asyncio.Future[Any]]]) -> None:
        results = await self._run_pipeline([o for o, _ in batch], with_text=False)
        unknown = [i for i, result in enumerate(results) if isinstance(result, NoScriptError)]
        if unknown:
            replies_with_text = await self._run_pipeline([batch[i][0] for i in unknown], with_text=True)
            for i, result in zip(unknown, replies_with_text, strict=True):
                results[i] = result
        for (operation, reply), result in zip(batch, results, strict=True):
            if reply.done():  # the caller was cancelled
                continue
            if isinstance(result, Exception):
                reply.set_exception(translate_error(result, operation.script.name))
            else:
                reply.set_result(result)

    async def _run_pipeline(self, operations: list[Operation[Any]], *, with_text: bool) -> list[Any]:
        """Send operations in one pipeline, wait for replicas if necessary, and return the replies or errors."""
        commands = [command_of(operation, with_text=with_text) for operation in operations]
        if self._replicas is None or not self._replicas.confirm(operations[0]):  # all operations belong to one lane
            return await self._round_trips.make(commands)
        *results, confirmations = await self._round_trips.make([*commands, self._replicas.command])
        return self._replicas.checked(operations, results, confirmations)


def _replicas_of(count: int, timeout_ms: int = REPLICA_TIMEOUT_MS) -> Replicas | None:
    if not count:
        return None
    from .replication import Replicas  # noqa: PLC0415 - most deployments do not wait for replicas

    return Replicas(count, timeout_ms)


async def run_with_retry(store: AsyncStore, operation: Operation[T]) -> T:
    """Run an operation, and retry it while the store is unavailable.

    Raises:
        StoreUnavailable: The store was unavailable for `RETRY_TIMEOUT` seconds.
    """
    until = SYSTEM_CLOCK.monotonic() + RETRY_TIMEOUT
    while True:
        try:
            return await store.run(operation)
        except StoreUnavailable:
            if SYSTEM_CLOCK.monotonic() > until:
                raise
        await asyncio.sleep(RETRY_INTERVAL)


class TracedStore(AsyncStore):
    """Store client that traces appends and the scripts in `SHOWN` if tracing is enabled."""

    async def run(self, operation: Operation[T]) -> T:
        """See `AsyncStore.run`."""
        verb = operation.script.name
        spans = tracing() if verb == RECORDED or verb in SHOWN else None
        if spans is None:
            return await super().run(operation)
        if verb in SHOWN:
            with spans.spanning(SpanName.STORE.format(verb=verb), {}):
                return await super().run(operation)
        reply = await super().run(operation)
        if isinstance(reply, Written):
            spans.record_append(reply.version)
        return reply


class SyncStore:
    """Store client for code without an event loop, such as operator commands and handlers of Celery signals.

    Args:
        url: See `AsyncStore`.
        blobs: See `AsyncStore`.
        wait_replicas: See `AsyncStore`.
        timeout: Seconds that Redis may take to reply.
    """

    def __init__(
        self, url: str, blobs: Blobs | None = None, *, wait_replicas: int = 0, timeout: float = SOCKET_TIMEOUT
    ) -> None:
        self._blobs = blobs
        self._replicas = _replicas_of(wait_replicas)
        retry = PrimaryRetry(ExponentialWithJitterBackoff(cap=0.5, base=0.05), RETRIES, RETRY_TIMEOUTS * timeout)
        self.redis = sync_client(url, **_options(retry, timeout))
        self._redis_blobs = SyncRedisBlobs(blobs.keys, self.redis) if blobs is not None else None

    def run(self, operation: Operation[T]) -> T:
        """See `AsyncStore.run`."""
        try:
            return self._run_with_blobs(operation)
        except (BlobMissing, LogIncomplete):
            return self._run_with_blobs(operation)

    def _run_with_blobs(self, operation: Operation[T]) -> T:
        if self._blobs is None or not self._blobs.is_for(operation):
            return self._resolve(operation, self._ask(operation))
        call = self._blobs.put_now(operation, require(self._redis_blobs), self._run_raw)
        return self._resolve(operation, self._ask(call))

    def _run_raw(self, operation: Operation[T]) -> T:
        return operation.parse(self._ask(operation))

    def _resolve(self, operation: Operation[T], reply: Any) -> T:
        try:
            result, missing = read(operation, reply, {})
        except LongSnapshot as long:
            for snapshot in long.snapshots:
                self._fold_log(snapshot)
            result, missing = read(operation, reply, {})
        if missing:
            contents = require(self._blobs).get_now(missing, require(self._redis_blobs))
            result, _ = read(operation, reply, contents)
        return result

    def _fold_log(self, snapshot: list[Any]) -> None:
        steps = fold_log(snapshot)
        reply = None
        with mark_unreadable(snapshot), suppress(StopIteration):
            while True:
                request = steps.send(reply)
                reply = None if request is None else request.parse(self._ask(request))

    def _ask(self, operation: Operation[Any]) -> Any:
        try:
            try:
                return self._execute(operation, command_of(operation))
            except NoScriptError:
                return self._execute(operation, command_of(operation, with_text=True))
        except RedisError as e:
            raise translate_error(e, operation.script.name) from e

    def _execute(self, operation: Operation[Any], command: Command) -> Any:
        if self._replicas is None or not self._replicas.confirm(operation):
            return self.redis.execute_command(*command)  # type: ignore[no-untyped-call]
        with self.redis.pipeline(transaction=False) as pipeline:
            pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
            pipeline.execute_command(*self._replicas.command)  # type: ignore[no-untyped-call]
            reply, confirmations = pipeline.execute(raise_on_error=False)
        [reply] = self._replicas.checked([operation], [reply], confirmations)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def ping(self) -> None:
        """Wait for a reply from Redis.

        Raises:
            StoreUnavailable: Redis does not reply.
        """
        try:
            self.redis.ping()
        except RedisError as e:
            raise translate_error(e, "ping") from e

    def names(self, pattern: str) -> list[str]:
        """Return the names of all sorted sets that match the SCAN pattern `pattern`.

        Raises:
            StoreUnavailable: Redis cannot be reached, or refuses the command.
        """
        try:
            return sorted({name.decode() for name in self.redis.scan_iter(pattern, count=SCANNED, _type="zset")})
        except RedisError as e:
            raise translate_error(e, "scan") from e

    def close(self) -> None:
        """Close the connections."""
        close_client(self.redis)
