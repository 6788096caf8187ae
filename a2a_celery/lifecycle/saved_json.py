"""Checks of JSON values that are saved in the store or restored from it, such as sessions and execution histories."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, TypeGuard

Scalar = str | int | float | bool | None
"""JSON value that is neither an object nor a list. NaN and infinity are not allowed."""


class InvalidSaved(ValueError):
    """Error for invalid saved data. The message begins with `field`, the path of the invalid field."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field


def is_scalar(value: object) -> TypeGuard[Scalar]:
    return isinstance(value, str | int | None) or (isinstance(value, float) and isfinite(value))


def fields_of(value: Any, path: str, types: Mapping[str, type]) -> dict[str, Any]:
    """Check that `value` is an object with exactly the fields in `types`, and return `value`.

    Args:
        value: Value to check.
        path: Path of the value for error messages, or "" for the root.
        types: Type of each field by name.

    Raises:
        InvalidSaved: `value` is not an object, or a field is missing, unknown or of the wrong type.
    """
    if not isinstance(value, dict):
        raise InvalidSaved(path or "root", f"must be an object, not {type(value).__name__}")
    prefix = f"{path}." if path else ""
    for name, kind in types.items():
        if name not in value:
            raise InvalidSaved(f"{prefix}{name}", "is missing")
        if not isinstance(value[name], kind) or isinstance(value[name], bool):
            raise InvalidSaved(f"{prefix}{name}", f"{value[name]!r} is not of type {kind.__name__}")
    unknown = next((name for name in value if name not in types), None)
    if unknown is not None:
        raise InvalidSaved(f"{prefix}{unknown}", "is unknown")
    return value


def require_text_keys(value: Any, owner: str) -> None:
    """Check that all keys in `value` are strings, because ``json.dumps`` silently converts some other keys.

    Args:
        value: JSON-like data.
        owner: Name of the value in the error message.

    Raises:
        ValueError: A key is not a string.
    """
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            invalid_key = next((key for key in item if not isinstance(key, str)), None)
            if invalid_key is not None or None in item:
                raise ValueError(f"keys of {owner} must be strings, not {invalid_key!r}")
            todo.extend(item.values())
        elif isinstance(item, list | tuple):
            todo.extend(item)
