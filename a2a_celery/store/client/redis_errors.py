"""Map Redis errors to errors of the store: the store is unavailable, or the configuration is wrong."""

from __future__ import annotations

import re

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
from redis.sentinel import MasterNotFoundError

from ...errors import ConfigError, StoreUnavailable
from ...settings.urls import NO_CLUSTER, SENTINEL_FORM

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
)
"""Error codes that describe the state of the server."""

_CODES_WITH_CLASS: dict[type[RedisError], str] = {
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
    MasterDownError: "MASTERDOWN",
}
"""redis-py removes the code from an error that has its own class."""

_UNAVAILABLE = re.compile(
    r"(?:Error running script \(call to f_[0-9a-f]{40}\): )?(?:@user_script: ?\d+: )*-?"
    rf"({'|'.join(UNAVAILABLE_CODES)})\b"
)
"""Error reply that starts with a code.

Redis 7 replies ``OOM …`` when a command in a script fails. Redis 6.2 replies ``ERR Error running script (call to
f_<sha>): @user_script:1: @user_script: 1: -OOM …``. redis-py removes ``ERR``. An error that a script raises itself
starts with ``user_script:1:``, without the at sign.
"""


_CLUSTER_ERRORS = (AskError, ClusterCrossSlotError, ClusterDownError, TryAgainError)
"""Replies of a node of a cluster. redis-py derives MasterDownError of a replica from one; its code is checked first."""

_UNKNOWN_TO_SENTINEL = re.compile(r"unknown command [`'](evalsha|eval|select)['`]", re.IGNORECASE)
"""Reply of a Sentinel to a command that all other servers support."""


def translated(error: Exception, operation: str) -> Exception:
    """Return the error that the store raises for `error`.

    Returns:
        StoreUnavailable for an error of the connection or of the server's state; `operation` names the call in it.
        ConfigError if the server is a Sentinel or a node of a cluster, or lacks the database.
        `error` itself for all others: a script that is wrong must not look like an unavailable store.
    """
    if not isinstance(error, RedisError):
        return error
    code = _code(error)
    if code:
        return StoreUnavailable(f"Redis did not carry out {operation}: {code}")
    if isinstance(error, _CLUSTER_ERRORS) or "not allowed in cluster mode" in str(error):
        return ConfigError(f"a2a_store_url leads to a node of a cluster. {NO_CLUSTER}")
    if "DB index is out of range" in str(error):
        return ConfigError("a2a_store_url names a database that its server does not have: see its option databases")
    if _UNKNOWN_TO_SENTINEL.search(str(error)):
        return ConfigError(f"a2a_store_url leads to a Sentinel: write {SENTINEL_FORM}")
    if isinstance(error, ResponseError):
        return error
    if isinstance(error, MasterNotFoundError):
        return StoreUnavailable(f"Redis did not carry out {operation}: the Sentinels name no primary that is up")
    return StoreUnavailable(f"Redis did not carry out {operation}: {type(error).__name__}")


def _code(error: RedisError) -> str:
    for error_type, code in _CODES_WITH_CLASS.items():
        if isinstance(error, error_type):
            return code
    found = _UNAVAILABLE.match(str(error))
    return found[1] if found else ""
