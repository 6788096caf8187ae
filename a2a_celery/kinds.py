"""What kinds of value a setting may be, as Python's types and in words."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network
from math import isfinite
from typing import Any

KINDS: dict[Any, str] = {
    str: "a text",
    bool: "True or False",
    int: "a whole number",
    float: "a number, and finite",
    str | None: "a text, or None",
    int | None: "a whole number, or None",
    float | None: "a number, and finite, or None",
    Sequence[str]: "a list of texts",
    str | Sequence[str] | None: "a text, a list of texts, or None",
}


def are_networks(texts: Sequence[str]) -> bool:
    """Whether each of `texts` is an IP network."""
    try:
        return all(ip_network(text) is not None for text in texts)
    except ValueError:
        return False


def is_a(value: Any, wanted: Any) -> bool:
    """Whether `value` is of the type `wanted`, one of `KINDS`."""
    if value is None:
        return type(None) in getattr(wanted, "__args__", ())
    if wanted is bool:
        return isinstance(value, bool)
    if float in (wanted, *getattr(wanted, "__args__", ())):
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if Sequence[str] in (wanted, *getattr(wanted, "__args__", ())) and not isinstance(value, str):
        return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
    if wanted == Sequence[str]:
        return False
    if wanted == str | Sequence[str] | None:
        return True
    return isinstance(value, wanted) and not isinstance(value, bool)
