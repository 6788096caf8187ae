"""Reading what was saved as JSON: nothing is guessed, and an error begins with the field at fault."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, TypeGuard

Scalar = str | int | float | bool | None
"""JSON without structure, and no NaN."""


class InvalidSaved(ValueError):
    """Saved data is invalid; `field` names the place."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field


def is_scalar(value: object) -> TypeGuard[Scalar]:
    """Return True if `value` is a `Scalar`."""
    return isinstance(value, str | int | None) or (isinstance(value, float) and isfinite(value))


def fields_of(value: Any, where: str, wanted: Mapping[str, type]) -> dict[str, Any]:
    """`value`, which is found at `where` ("" for the whole), as an object with exactly the fields `wanted`.

    Raises:
        InvalidSaved: it is none, or one of them is missing, unknown or of another type.
    """
    if not isinstance(value, dict):
        raise InvalidSaved(where or "the whole", f"it is no object but {type(value).__name__}")
    prefix = f"{where}." if where else ""
    for name, kind in wanted.items():
        if name not in value:
            raise InvalidSaved(f"{prefix}{name}", "it is missing")
        if not isinstance(value[name], kind) or isinstance(value[name], bool):
            raise InvalidSaved(f"{prefix}{name}", f"{value[name]!r} is no {kind.__name__}")
    unknown = next((name for name in value if name not in wanted), None)
    if unknown is not None:
        raise InvalidSaved(f"{prefix}{unknown}", "no such field is known")
    return value
