"""The two ways to run an operation, and the one place where Redis' exceptions become ours."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import redis
import redis.asyncio
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from ..errors import StoreUnavailable
from .operation import Operation

T = TypeVar("T")

SOCKET_TIMEOUT = 5.0
"""Seconds an answer may take. The scripts take microseconds; what is slower is a server in trouble."""

CONNECT_TIMEOUT = 2.0
RETRIES = 2
"""Every operation answers a repeated call as it answered the first, so a broken connection is simply tried again."""


class AsyncRunner(Protocol):
    """Runs operations from a coroutine."""

    async def run(self, operation: Operation[T]) -> T:
        """The operation's result.

        Raises:
            StoreUnavailable: Redis can't be reached, or refuses (out of memory, read-only replica, loading).
        """
        ...


def redis_url(url: str) -> str:
    """`url` as redis-py reads it; Celery's spellings of a unix socket and of Valkey are understood too."""
    for theirs, ours in (("redis+socket://", "unix://"), ("valkeys://", "rediss://"), ("valkey://", "redis://")):
        if url.startswith(theirs):
            url = ours + url[len(theirs) :]
    url = url.replace("virtual_host=", "db=") if url.startswith("unix://") else url
    for theirs in ("CERT_REQUIRED", "CERT_OPTIONAL", "CERT_NONE"):
        url = url.replace(f"ssl_cert_reqs={theirs}", f"ssl_cert_reqs={theirs.removeprefix('CERT_').lower()}")
    return url


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
    """The store for one event loop: gateway, watcher, the runs of a worker."""

    def __init__(self, url: str, *, max_connections: int = 64) -> None:
        # A blocking pool: more callers than connections wait for one, they don't open another.
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            redis_url(url),
            max_connections=max_connections,
            timeout=SOCKET_TIMEOUT,
            **fit(url, _options(redis.asyncio.retry.Retry(ExponentialWithJitterBackoff(cap=0.5, base=0.05), RETRIES))),
        )
        self.redis: redis.asyncio.Redis = redis.asyncio.Redis(connection_pool=pool)

    async def run(self, operation: Operation[T]) -> T:
        """See `AsyncRunner.run`."""
        s, keys_and_args = operation.script, (*operation.keys, *operation.args)
        try:
            try:
                answer = await self.redis.evalsha(s.sha, len(operation.keys), *keys_and_args)
            except NoScriptError:
                answer = await self.redis.eval(s.text, len(operation.keys), *keys_and_args)
        except RedisError as e:
            raise _translated(e, s.name) from e
        return operation.parse(answer)

    async def ping(self) -> None:
        """Returns when Redis answers.

        Raises:
            StoreUnavailable: it does not.
        """
        try:
            await self.redis.ping()
        except RedisError as e:
            raise _translated(e, "ping") from e

    async def aclose(self) -> None:
        """Closes the connections."""
        await self.redis.aclose()
        await self.redis.connection_pool.disconnect()


class SyncStore:
    """The store for code without an event loop: signal handlers, commands."""

    def __init__(self, url: str) -> None:
        options = fit(url, _options(Retry(ExponentialWithJitterBackoff(cap=0.5, base=0.05), RETRIES)))
        self.redis: redis.Redis = redis.Redis.from_url(redis_url(url), **options)

    def run(self, operation: Operation[T]) -> T:
        """See `AsyncRunner.run`."""
        s, keys_and_args = operation.script, (*operation.keys, *operation.args)
        try:
            try:
                answer = self.redis.evalsha(s.sha, len(operation.keys), *keys_and_args)
            except NoScriptError:
                answer = self.redis.eval(s.text, len(operation.keys), *keys_and_args)
        except RedisError as e:
            raise _translated(e, s.name) from e
        return operation.parse(answer)

    def close(self) -> None:
        """Closes the connections."""
        self.redis.close()


def fit(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """`options` less those that a unix socket doesn't know."""
    if redis_url(url).startswith("unix://"):
        options.pop("socket_keepalive")
        options.pop("socket_connect_timeout")
    return options


def _translated(error: RedisError, what: str) -> Exception:
    """What a Redis error means to us: unavailable, or a bug of ours that must not be hidden as weather."""
    if isinstance(error, ResponseError):
        text = str(error)
        if not text.startswith(
            ("OOM", "READONLY", "MISCONF", "LOADING", "BUSY", "NOREPLICAS", "MASTERDOWN", "NOAUTH", "WRONGPASS")
        ):
            return error
    return StoreUnavailable(f"Redis did not carry out {what}: {type(error).__name__}")
