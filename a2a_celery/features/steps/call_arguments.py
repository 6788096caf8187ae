"""Arguments of recorded calls: digests, which identify calls without a fixed order, and beginnings, which a timeline
shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any

from google.protobuf.message import Message as Proto
from pydantic import BaseModel

from ...lifecycle.json_values import portable_text

MAX_ARGUMENTS = 200
"""Maximum number of bytes of the recorded beginning of a call's arguments."""

_NUMBERS = frozenset({int, float, bool, type(None)})


def digest(arguments: Any) -> str:
    """Return a digest of `arguments`. A value that cannot be serialized, such as a client object, is represented by the
    name of its type."""
    try:
        text = json.dumps(arguments, default=_plain, skipkeys=True)
    except (TypeError, ValueError, RecursionError):
        text = ""
    return sha256(text.encode()).hexdigest()[:16]


def beginning(arguments: Any) -> str:
    """Return the first `MAX_ARGUMENTS` bytes of `arguments` as JSON, or "" without arguments. The cost is bounded."""
    value = arguments
    match arguments:
        case (tuple() as positional, dict() as named):  # of a durable step
            value = [*positional, named] if positional and named else positional or named or None
    if value is None:
        return ""
    try:
        values = _first_values(value, iter(range(MAX_ARGUMENTS // 2)))
        text = json.dumps(values, ensure_ascii=False, separators=(",", ":"), skipkeys=True)
    except Exception:  # exceptions of the attributes of a class
        return ""
    encoded = portable_text(text).encode()
    if len(encoded) > MAX_ARGUMENTS:
        return encoded[: MAX_ARGUMENTS - len("…".encode())].decode(errors="ignore") + "…"
    return "" if text in ("[]", "{}") else encoded.decode()


def _first_values(value: Any, budget: Iterator[int]) -> Any:
    """Return `value` with at most as many inner values as `budget` has items, and with the beginnings of its texts. A
    value that is neither JSON nor a model or dataclass is represented by the name of its type."""
    if isinstance(value, str):
        return _first_text(value)
    if type(value) in _NUMBERS:
        return value
    if isinstance(value, list | tuple):
        pairs = zip(value, budget, strict=False)
        return [inner if type(inner) in _NUMBERS else _first_values(inner, budget) for inner, _ in pairs]
    if isinstance(value, BaseModel):
        value = dict(value)
    elif is_dataclass(value) and not isinstance(value, type):
        value = _fields_of(value)
    if isinstance(value, dict):
        items = zip(value.items(), budget, strict=False)
        return {_first_text(key): _first_values(inner, budget) for (key, inner), _ in items}
    return f"<{type(value).__qualname__}>"


def _first_text(value: Any) -> Any:
    return value[: MAX_ARGUMENTS + 1] if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return sha256(value).hexdigest()
        case BaseModel():
            return value.model_dump_json()
        case Proto():
            return sha256(value.SerializeToString(deterministic=True)).hexdigest()
        case set() | frozenset():
            return sorted(map(str, value))
        case _ if is_dataclass(value) and not isinstance(value, type):
            return _fields_of(value)
        case _:
            return type(value).__qualname__


def _fields_of(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}
