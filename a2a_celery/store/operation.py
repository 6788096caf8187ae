"""An operation is data: a script, its keys, its arguments, and how to read the answer.

So one definition runs on redis-py's asyncio client and on its sync client, and a test can look at it without either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, Generic, TypeVar

from ..lifecycle import states
from ..lifecycle.states import INTERRUPTED, LEGAL, TERMINAL

T = TypeVar("T")

BOUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""Seconds: the upper bounds of the buckets that times are counted in, see ``figures``."""

Argument = str | bytes | int


@dataclass(frozen=True, slots=True)
class Script:
    """One verb's Lua, complete with what every script begins with."""

    name: str
    text: str
    sha: str


@dataclass(frozen=True, slots=True)
class Operation(Generic[T]):
    """A call of one script. `parse` turns Redis' answer into the caller's type."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Argument]
    parse: Callable[[Any], T]


@cache
def script(name: str) -> Script:
    """The script ``scripts/<name>.lua`` with the prelude and the transition table in front."""
    package = files(__package__) / "scripts"
    body = (package / f"{name}.lua").read_text(encoding="utf-8")
    prelude = (package / "prelude.lua").read_text(encoding="utf-8")
    text = "\n".join((_tables(), prelude, body))
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())


@cache
def _tables() -> str:
    """The lifecycle's tables as Lua, so that a transition is legal here exactly when it is legal there."""

    def lua_set(members: frozenset[Any]) -> str:
        return "{" + ", ".join(f"[{int(m)}]=true" for m in sorted(members)) + "}"

    legal = ", ".join(f"[{int(state)}]={lua_set(after)}" for state, after in LEGAL.items())
    names = ("SUBMITTED", "WORKING", "COMPLETED", "FAILED", "CANCELED")
    return "\n".join(
        [
            f"local LEGAL = {{{legal}}}",
            f"local BOUNDS = {{{', '.join(str(int(bound * 1_000_000)) for bound in BOUNDS)}}}",
            f"local TERMINAL = {lua_set(TERMINAL)}",
            f"local INTERRUPTED = {lua_set(INTERRUPTED)}",
            *(f"local {name} = {int(getattr(states, name))}" for name in names),
        ]
    )
