"""Redis errors and what they mean: the store is unavailable, or the call is wrong."""

from __future__ import annotations

import re

from redis.exceptions import MasterDownError, OutOfMemoryError, ReadOnlyError, RedisError, ResponseError

from ..errors import StoreUnavailable

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


def translated(error: Exception, operation: str) -> Exception:
    """Return StoreUnavailable for an error of the connection or of the server's state, else `error` unchanged.

    A script that is wrong must not look like an unavailable store. `operation` names the call in the message.
    """
    if not isinstance(error, RedisError):
        return error
    code = _code(error)
    if isinstance(error, ResponseError) and not code:
        return error
    return StoreUnavailable(f"Redis did not carry out {operation}: {code or type(error).__name__}")


def _code(error: RedisError) -> str:
    for error_type, code in _CODES_WITH_CLASS.items():
        if isinstance(error, error_type):
            return code
    found = _UNAVAILABLE.match(str(error))
    return found[1] if found else ""
