"""redis-py clients for the URL of a store, and the translation of redis-py's errors to store errors.

A URL contains the address of a server, or of Sentinels that report the primary. redis-py asks the Sentinels for the
primary when it opens a connection, and closes a connection to a server that has become a replica. A client that
reconnects therefore follows a failover.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import (
    AskError,
    ClusterCrossSlotError,
    ClusterDownError,
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import TimeoutError as RedisTimeout
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

from ...clock import SYSTEM_CLOCK
from ...errors import ConfigError, StoreUnavailable
from ...settings.urls import SENTINEL_FORM, SentinelAddress, is_sentinel_url, redis_url
from ..blobs.references import BlobMissing

CONNECT_TIMEOUT = 2.0
"""Seconds that a server may take to accept a connection."""

RETRY_TIMEOUTS = 1.6
"""Number of socket timeouts after which a blocking client no longer retries. The first timeout is retried, because it
may be that of an old connection after a failover. The second timeout is not."""

SENTINEL_TIMEOUT = 1.0
"""Seconds that a Sentinel may take to accept a connection, and to reply, before redis-py asks the next Sentinel."""


def async_client(url: str, **options: Any) -> redis.asyncio.Redis:
    """Return an asyncio client with the redis-py options `options`. Close the client with `aclose_client`."""
    if not is_sentinel_url(url):
        return redis.asyncio.Redis.from_url(redis_url(url), **_supported_options(url, options))
    address = SentinelAddress.of(url)
    sentinels = redis.asyncio.Sentinel([], address.min_other_sentinels)  # type: ignore[no-untyped-call]
    retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
    settings = {**_sentinel_options(address, options), "socket_timeout": None, "retry": retry}
    sentinels.sentinels = [_SentinelClient(host=host, port=port, **settings) for host, port in address.sentinels]
    primary = _read(address.primary_url)
    primary["connection_class"] = _AsyncTLSConnection if primary.pop("ssl", False) else _AsyncConnection
    client: redis.asyncio.Redis = sentinels.master_for(address.master_name, **primary, **options)
    return client


def sync_client(url: str, **options: Any) -> redis.Redis:
    """Return a blocking client with the redis-py options `options`. Close the client with `close_client`."""
    if not is_sentinel_url(url):
        url, options = redis_url(url), _supported_options(url, options)
        if "max_connections" in parse_url(url):  # type: ignore[no-untyped-call]
            return redis.Redis.from_pool(redis.BlockingConnectionPool.from_url(url, **options))  # a thread waits
        return redis.Redis.from_url(url, **options)
    address = SentinelAddress.of(url)
    settings = {**_sentinel_options(address, options), **sentinel_timeouts()}
    sentinels = redis.sentinel.Sentinel(address.sentinels, address.min_other_sentinels, settings)  # type: ignore[no-untyped-call]
    primary = _read(address.primary_url)
    primary["connection_class"] = _TLSConnection if primary.pop("ssl", False) else _Connection
    client: redis.Redis = sentinels.master_for(address.master_name, **primary, **options)  # type: ignore[no-untyped-call]
    return client


def database_of(url: str) -> int:
    """Return the database number in `url`, or 0."""
    url = SentinelAddress.of(url).primary_url if is_sentinel_url(url) else redis_url(url)
    return int(parse_url(url).get("db", 0))  # type: ignore[no-untyped-call]


async def aclose_client(client: redis.asyncio.Redis) -> None:
    """Close the connections of `client`, including its connections to Sentinels."""
    await client.aclose()
    if isinstance(client.connection_pool, redis.asyncio.SentinelConnectionPool):
        await client.connection_pool.sentinel_manager.aclose()


def close_client(client: redis.Redis) -> None:
    """Close the connections of `client`, including its connections to Sentinels."""
    client.close()
    if isinstance(client.connection_pool, redis.sentinel.SentinelConnectionPool):
        client.connection_pool.sentinel_manager.close()


class PrimaryRetry(Retry):
    """Retry after broken connections, for `window` seconds.

    redis-py retries a command, the connect and the ping of a new connection, each within the retry before it. The time
    is that of the outermost retry. Without a limit, a frozen server would be reported after nine timeouts. An
    unsuccessful search for the primary, in which each Sentinel may take `SENTINEL_TIMEOUT`, is not retried.

    Each connection has its own copy, so threads share no object.
    """

    _until: float | None = None
    """Time after which no attempt begins, or None outside of a call."""

    def __init__(self, backoff: Any, retries: int, window: float) -> None:
        super().__init__(backoff, retries)
        self._window = window

    def call_with_retry(self, *arguments: Any, **options: Any) -> Any:
        """Call `Retry.call_with_retry`, whose options depend on the version of redis-py."""
        outer_until = self._until
        if outer_until is None:
            self._until = SYSTEM_CLOCK.monotonic() + self._window
        try:
            return super().call_with_retry(*arguments, **(options | {"is_retryable": self._is_retryable}))
        finally:
            self._until = outer_until

    def _is_retryable(self, error: Exception) -> bool:
        return not isinstance(error, MasterNotFoundError) and SYSTEM_CLOCK.monotonic() < (self._until or 0)


class _Connection(redis.sentinel.SentinelManagedConnection):
    """Connection that asks the Sentinels for the primary each time it connects.

    redis-py 8.1 itself asks the Sentinels only when a connection leaves its pool. A retry on a broken connection would
    therefore reconnect to the previous primary.
    """

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Connect if necessary, and send the command."""
        if not self.is_connected:
            self.connect()  # type: ignore[no-untyped-call]
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]


class _TLSConnection(_Connection, redis.sentinel.SentinelManagedSSLConnection):
    """Variant of `_Connection` for TLS."""


class _AsyncConnection(redis.asyncio.sentinel.SentinelManagedConnection):
    """Variant of `_Connection` for asyncio."""

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Connect if necessary, and send the command."""
        if not self.is_connected:
            await self.connect()  # type: ignore[no-untyped-call]
        await super().send_packed_command(command, check_health)


class _AsyncTLSConnection(_AsyncConnection, redis.asyncio.sentinel.SentinelManagedSSLConnection):
    """Variant of `_Connection` for asyncio and TLS."""


class _SentinelClient(redis.asyncio.Redis):
    """Client of one Sentinel, with a timeout for each query.

    With ``socket_timeout``, redis-py would write inside ``wait_for``, which may swallow a cancellation on Python 3.11.
    A task that is cancelled during a query would then run forever.
    """

    async def sentinel_masters(self) -> Any:
        """Return the primaries that this Sentinel watches."""
        try:
            async with asyncio.timeout(SENTINEL_TIMEOUT):
                return await super().sentinel_masters()
        except TimeoutError:
            raise RedisTimeout("the Sentinel did not reply") from None


def _supported_options(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that connections to `url` support."""
    is_socket = redis_url(url).startswith("unix://")
    return {
        n: v for n, v in options.items() if not is_socket or n not in ("socket_keepalive", "socket_connect_timeout")
    }


def _read(url: str) -> dict[str, Any]:
    """Return redis-py's options for the Redis URL `url`, without the host."""
    options: dict[str, Any] = dict(parse_url(url))  # type: ignore[no-untyped-call]
    options.pop("host")
    if options.pop("connection_class", None) is not None:
        options["ssl"] = True
    return options


def _sentinel_options(address: SentinelAddress, options: dict[str, Any]) -> dict[str, Any]:
    own = _read(address.sentinel_url)
    own.pop("db")
    return {**own, "socket_connect_timeout": SENTINEL_TIMEOUT, "protocol": options["protocol"]}


def sentinel_timeouts() -> dict[str, Any]:
    """Return redis-py options of a blocking client of a Sentinel, which limit the time of each query and disable
    retries."""
    retry = Retry(NoBackoff(), 0)
    return {"socket_timeout": SENTINEL_TIMEOUT, "socket_connect_timeout": SENTINEL_TIMEOUT, "retry": retry}


UNAVAILABLE_CODES = (
    "OOM",
    "READONLY",
    "MISCONF",
    "LOADING",
    "BUSY",
    "NOREPLICAS",
    "MASTERDOWN",
    "NOAUTH",
    "WRONGPASS",
    "DENIED",
)
"""Error codes that report a state of the server instead of a mistake in the command."""

PROTECTED_MODE = "the server is in protected mode: set a password, or protected-mode no in a private network"
"""Explanation of the error DENIED, with which Redis refuses clients of other hosts."""

_CODES_WITH_CLASS: dict[type[RedisError], str] = {
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
    MasterDownError: "MASTERDOWN",
}
"""Codes of the errors that have their own class in redis-py, which removes the code from the error's text."""

_UNAVAILABLE = re.compile(
    r"(?:Error running script \(call to f_[0-9a-f]{40}\): )?(?:@user_script: ?\d+: )*-?"
    rf"({'|'.join(UNAVAILABLE_CODES)})\b"
)
"""Error replies that begin with one of `UNAVAILABLE_CODES`.

If a command in a script fails, Redis 7 replies ``OOM …``, and Redis 6.2 replies ``ERR Error running script (call to
f_<sha>): @user_script:1: @user_script: 1: -OOM …``. redis-py removes ``ERR``. An error that the script itself raises
begins with ``user_script:1:``, without the at sign.
"""


_CLUSTER_ERRORS = (AskError, ClusterCrossSlotError, ClusterDownError, TryAgainError)
"""Errors of a cluster node. MasterDownError, an error of a replica, is a subclass of ClusterDownError, so the code of
an error is checked first."""

_UNKNOWN_TO_SENTINEL = re.compile(r"unknown command [`'](evalsha|eval|select)['`]", re.IGNORECASE)
"""Reply of a Sentinel to a command that every Redis server supports."""


NO_PRIMARY = "the Sentinels report no available primary"


def translate_error(error: Exception, operation: str) -> Exception:
    """Translate `error` to the exception that the store raises.

    Args:
        error: Exception of redis-py, or any other exception.
        operation: Name of the operation, for the message of the exception.

    Returns:
        StoreUnavailable if the connection failed or the server is in a state in which it refuses commands. ConfigError
        if the server is a Sentinel or a cluster node, or does not have the database. BlobMissing if the script refused
        the call because of its blobs; see ``scripts/lib/blobs.lua``. Any other error unchanged, so that a faulty script
        is not reported as an unavailable store.
    """
    if not isinstance(error, RedisError):
        return error
    code = _code(error)
    if code:
        hint = f" ({PROTECTED_MODE})" if code == "DENIED" else ""
        return StoreUnavailable(f"the Redis operation {operation} failed: {code}{hint}")
    if isinstance(error, _CLUSTER_ERRORS) or "not allowed in cluster mode" in str(error):
        return ConfigError(
            "a2a_store_url is the address of a cluster node. Redis Cluster is not supported: set the URL of a single "
            "primary, such as redis://host:6379/0"
        )
    if "DB index is out of range" in str(error):
        return ConfigError(
            "a2a_store_url selects a database that the Redis server does not have: use a smaller number, or raise the "
            "option databases of the server"
        )
    if _UNKNOWN_TO_SENTINEL.search(str(error)):
        return ConfigError(f"a2a_store_url is the address of a Sentinel: use the form {SENTINEL_FORM}")
    if isinstance(error, ResponseError):
        return BlobMissing(f"{operation}: {error}") if str(error).startswith("BLOBMISSING") else error
    if isinstance(error, MasterNotFoundError):
        return StoreUnavailable(f"the Redis operation {operation} failed: {NO_PRIMARY}")
    return StoreUnavailable(f"the Redis operation {operation} failed: {type(error).__name__}")


def _code(error: RedisError) -> str:
    for error_type, code in _CODES_WITH_CLASS.items():
        if isinstance(error, error_type):
            return code
    match = _UNAVAILABLE.match(str(error))
    return match[1] if match else ""
