"""JSON values and texts of agents in a form that A2A can carry.

A2A transfers each number as a double, which represents whole numbers up to `MAX_EXACT` exactly. Texts are UTF-8, which
has no halves of surrogate pairs. `portable` converts larger whole numbers and texts with such halves, so that no value
changes silently and no run fails because of a value.
"""

from __future__ import annotations

import json
import logging
from functools import lru_cache
from typing import Any

logger = logging.getLogger(__name__)

MAX_EXACT = 2**53 - 1
"""Largest magnitude up to which all whole numbers are exact as doubles. Source: RFC 8259, section 6."""

INEXACT = "A2A cannot represent whole numbers beyond 2^53 - 1 exactly: send the digits as a text."
"""Error text for a client."""

MAX_VALUE_DEPTH = 90
"""Maximum number of protobuf levels in a value of data or metadata: an object has three levels, a list has two.

protobuf decodes at most 100 levels. The rest is for the messages that contain a value: 7 levels above the metadata of a
part of a status message in a task, and one level for an empty object or list.
"""

TOO_DEEP = (
    f"nested too deeply: at most {MAX_VALUE_DEPTH // 3} levels of objects and lists, or {MAX_VALUE_DEPTH // 2} levels "
    "of lists"
)


class TooDeep(ValueError):
    """Error for a value that exceeds `MAX_VALUE_DEPTH`."""


def portable_text(text: str) -> str:
    """Return `text` with joined surrogate pairs, and with U+FFFD for each half of a pair that has no other half."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def json_bytes(value: Any, *, allow_nan: bool = False) -> bytes:
    """Return `value` as compact JSON, from which `json.loads` restores even texts that are not Unicode.

    Raises:
        TypeError: JSON cannot represent a value.
        ValueError: A number is NaN or infinite, and `allow_nan` is False.
        RecursionError: The value is nested too deeply.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=allow_nan, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which needs an escape
        return json.dumps(value, allow_nan=allow_nan, separators=(",", ":")).encode()


def ends_with_half(text: str) -> bool:
    """Return True if `text` ends with the first half of a surrogate pair."""
    return "\ud800" <= text[-1:] <= "\udbff"


def portable(value: Any, place: str) -> Any:
    """Return the JSON `value` in a form that A2A can carry. Most values are returned unchanged.

    A whole number beyond `MAX_EXACT` becomes a text of its digits, and the log names its place. See `portable_text` for
    texts.

    Args:
        value: JSON value, which may contain values that are not JSON. Those are returned unchanged.
        place: Name of the value for the log, such as "data".

    Raises:
        TooDeep: The value exceeds `MAX_VALUE_DEPTH`.
    """
    return value if _is_portable(value, 0) else _converted(value, place)


def inexact_place(value: Any, levels: int = 0) -> str | None:
    """Return the path of a whole number beyond `MAX_EXACT` in the JSON `value`, such as ``.items[0].id``, or None.

    Args:
        value: JSON value.
        levels: Number of protobuf levels above the value.

    Raises:
        TooDeep: The value exceeds `MAX_VALUE_DEPTH`.
    """
    kind = type(value)
    if kind is int:
        return None if -MAX_EXACT <= value <= MAX_EXACT else ""
    if levels > MAX_VALUE_DEPTH:
        raise TooDeep(TOO_DEEP)
    if kind is dict:
        for key, inner in value.items():
            if type(inner) is not str and (place := inexact_place(inner, levels + 3)) is not None:
                return f".{key}{place}"
    elif kind is list:
        for index, inner in enumerate(value):
            if type(inner) is not str and (place := inexact_place(inner, levels + 2)) is not None:
                return f"[{index}]{place}"
    return None


def is_perhaps_rounded(number: float) -> bool:
    """Return True for a double that may have been an integer of 64 bits beyond `MAX_EXACT`."""
    return MAX_EXACT < abs(number) < 2**64


def report_rounded(value: Any, place: str = "") -> None:
    """Log the places of the doubles in the JSON `value` that `is_perhaps_rounded`, once per place."""
    if isinstance(value, dict):
        for key, inner in value.items():
            report_rounded(inner, f"{place}.{key}")
    elif isinstance(value, list):
        for inner in value:
            report_rounded(inner, f"{place}[]")
    elif isinstance(value, float) and is_perhaps_rounded(value):
        _report_rounded(place[1:])


def _is_portable(value: Any, levels: int) -> bool:
    if levels > MAX_VALUE_DEPTH:
        raise TooDeep(TOO_DEEP)
    if isinstance(value, str):
        return value.isascii() or portable_text(value) is value
    if isinstance(value, int):
        return -MAX_EXACT <= value <= MAX_EXACT
    if isinstance(value, dict):
        for key, inner in value.items():
            if not (_is_portable(key, levels) and _is_portable(inner, levels + 3)):
                return False
    elif isinstance(value, list | tuple):
        for inner in value:
            if not _is_portable(inner, levels + 2):
                return False
    return True


def _converted(value: Any, place: str) -> Any:
    if isinstance(value, str):
        return portable_text(value)
    if isinstance(value, int):
        if -MAX_EXACT <= value <= MAX_EXACT:
            return value
        _report(place)
        return str(int(value))
    if isinstance(value, dict):
        return {_key(key): _converted(inner, f"{place}.{_key(key)}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_converted(inner, f"{place}[]") for inner in value]
    return value


def _key(key: Any) -> Any:
    return portable_text(key) if isinstance(key, str) else key


@lru_cache(maxsize=1000)
def _report(place: str) -> None:
    """Log the place of a converted number, once per place."""
    logger.warning(
        "a whole number at %s is sent as a text of its digits: A2A numbers beyond 2^53 - 1 are not exact", place[:300]
    )


@lru_cache(maxsize=1000)
def _report_rounded(place: str) -> None:
    logger.warning(
        "the agent sent a whole number beyond 2^53 - 1 at %s as a double, which may be rounded: send texts", place[:300]
    )
