"""An operation is data: a script, its keys, its arguments, and how to read the answer.

So one definition runs on redis-py's asyncio client and on its sync client, and a test can look at it without either.
"""

from __future__ import annotations

import re
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
    """A call of one script. `parse` turns Redis' answer into the caller's type, each time the same.

    What is not wanted `whole` is read without the object store: parts that are there are left as marks, see
    ``references``.
    """

    script: Script
    keys: Sequence[str]
    args: Sequence[Argument]
    parse: Callable[[Any], T]
    whole: bool = True


@cache
def script(name: str) -> Script:
    """The script ``scripts/<name>.lua``, and in front of it what it uses of the transition table and the prelude: Redis
    makes all of that anew for each call, which for a short script is most of its time."""
    package = files(__package__) / "scripts"
    body = (package / f"{name}.lua").read_text(encoding="utf-8")
    prelude = (package / "prelude.lua").read_text(encoding="utf-8")
    text = "\n".join((*_used(_definitions(f"{_tables()}\n{prelude}"), body), body))
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def _definitions(text: str) -> list[tuple[str, str]]:
    """Name and text of each ``local`` at the beginning of a line, which goes on to the next one, in their order."""
    starts = list(_DEFINITION.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return [(start[1], text[start.start() : end]) for start, end in zip(starts, ends, strict=True)]


def _used(definitions: Sequence[tuple[str, str]], body: str) -> list[str]:
    """The texts of those `definitions` that `body` uses, or one of them; each uses only what stands above it."""
    words, used = _words(body), []
    for name, text in reversed(definitions):
        if name in words:
            words |= _words(text)
            used.append(text)
    return used[::-1]


def _words(text: str) -> set[str]:
    return set(_WORD.findall(_COMMENT.sub("", text)))


_DEFINITION = re.compile(r"^local (?:function )?(\w+)", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s)--.*$", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")


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
