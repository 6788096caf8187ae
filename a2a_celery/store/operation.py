"""Store operations as data: a script, its keys, its arguments and the parser of its reply.

The same operation runs on redis-py's asyncio client and on its sync client. A test can inspect an operation without a
client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..lifecycle import states
from ..lifecycle.own_metadata import DELAY_KEYS, outdated_keys
from ..lifecycle.states import INTERRUPTED, LEGAL, TERMINAL
from .keys import Keys, TaskKeys

T = TypeVar("T")

SCRIPTS = Path(__file__).parent / "scripts"
FEATURES = Path(__file__).parents[1] / "features"
"""Folder of the features, whose folders contain the scripts of their own verbs."""

BOUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""Upper bounds of the histogram buckets, in seconds."""

FIRST_PUBLISH_GRACE_US = 5_000_000
"""µs after which a watcher publishes a run that its creator has not published."""

Argument = str | bytes | int


@dataclass(frozen=True, slots=True)
class Script:
    """Lua script, preceded by the library definitions that the script uses.

    Attributes:
        name: Name of the script.
        text: Text of the script.
        sha: SHA-1 digest of the text.
        keeps_blobs: True if the script makes the blobs of its call permanent; see ``scripts/lib/blobs.lua``.
    """

    name: str
    text: str
    sha: str
    keeps_blobs: bool = False


@dataclass(frozen=True, slots=True)
class Operation(Generic[T]):
    """Call to a Lua script, and the parser of the script's reply.

    Attributes:
        script: Script to call.
        keys: Keys that the script receives in ``KEYS``.
        args: Arguments that the script receives in ``ARGV``.
        parse: Function that converts the reply to the result.
        resolve_blobs: False to leave blob references in the reply unresolved.
        size: Function that returns the size of the reply in bytes, or None if the reply is always small. An
            `AsyncStore` parses large replies in a thread.
        ends_task: True if this call ends a task, although other calls of the script do not.
    """

    script: Script
    keys: Sequence[str]
    args: Sequence[Argument]
    parse: Callable[[Any], T]
    resolve_blobs: bool = True
    size: Callable[[Any], int] | None = None
    ends_task: bool = False


HEADERS: dict[str, Callable[[tuple[type[Any], ...]], str]] = {}
"""Functions that return the Lua lines before a script with sections, by the name of the script; see
``store/verbs.py``."""


@cache
def script(name: str, sections: tuple[type[Any], ...] = ()) -> Script:
    """Return a script, preceded by its header and by the library definitions that the script and the header use.

    Redis executes the definitions in each call. The omission of unused definitions cuts the CPU time of `create_task`
    by about 8 %.

    Args:
        name: Name of the script; see `script_text`.
        sections: Classes of the sections of a call.

    Raises:
        ValueError: There is no script `name`, a required library does not exist, or libraries require each other.
    """
    text = link_script(name, HEADERS[name](sections) + script_text(name), libraries())
    digest = sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name, text, digest, keeps_blobs="keep_blobs(" in text)


def script_text(name: str) -> str:
    """Return the text of the file ``<name>.lua`` in a folder of ``scripts``, or in the folder of a feature.

    Raises:
        ValueError: There is no script `name`, or there are several.
    """
    paths = [*SCRIPTS.glob(f"*/{name}.lua"), *FEATURES.rglob(f"{name}.lua")]
    if len(paths) != 1:
        raise ValueError(f"there must be one script {name!r}, not {len(paths)}")
    return paths[0].read_text("utf-8")


@cache
def defined_names() -> frozenset[str]:
    """Return the names that the libraries define."""
    definitions = _DEFINITION.findall("\n".join(map(_without_comments, libraries().values())))
    return frozenset(name for _, name in definitions)


@cache
def libraries() -> dict[str, str]:
    """Return the texts of all libraries by name: the files in ``scripts/lib``, also of features, and the generated
    libraries."""
    paths = [*SCRIPTS.glob("lib/*.lua"), *FEATURES.glob("*/scripts/lib/*.lua")]
    return _generated_libraries() | {path.stem: path.read_text("utf-8") for path in paths}


def link_script(name: str, text: str, available: Mapping[str, str]) -> str:
    """Return the text of a script, preceded by the definitions that it uses.

    The definitions come from the libraries that the script requires. A library may require other libraries.

    Args:
        name: Name of the script, for error messages.
        text: Text of the script.
        available: Texts of all libraries by name.

    Raises:
        ValueError: A header requires an unknown library, or libraries require each other.
    """
    definitions: dict[str, str] = {}

    def include(user: str, user_text: str, users: tuple[str, ...]) -> None:
        for library in required_libraries(user_text):
            if library not in available:
                raise ValueError(f"script {name}: {user} requires {library!r}, which is not a library")
            if library in users:
                raise ValueError(f"script {name}: these libraries require each other: {', '.join((*users, library))}")
            if library not in definitions:
                include(library, available[library], (*users, library))
                definitions[library] = available[library]

    include(name, text, ())
    return _used_definitions("".join(f"{library}\n" for library in definitions.values()), text) + text


def _used_definitions(libraries_text: str, text: str) -> str:
    """Return the definitions that `text` uses, directly or through other definitions, without comments."""
    names = set(_NAME.findall(_without_comments(text)))
    used_names: list[str] = []
    for definition, name in reversed(_DEFINITION.findall(_without_comments(libraries_text))):
        if name in names:
            used_names.append(definition)
            names.update(_NAME.findall(definition))
    return "".join(reversed(used_names))


def _without_comments(text: str) -> str:
    return re.sub(r"^ *--.*\n| +--.*$", "", text, flags=re.MULTILINE)


_NAME = re.compile(r"[A-Za-z_]\w*")

_DEFINITION = re.compile(r"^(local (?:function )?(\w+).*\n(?:(?!local ).*\n)*)", re.MULTILINE)
"""Definition in a library: the lines from a ``local`` to the next ``local``. Lines in a function are indented."""


def required_libraries(text: str) -> list[str]:
    """Return the names of the required libraries, from the lines ``-- requires: a, b`` of a script and its sections."""
    return list(dict.fromkeys(library for line in _REQUIRES.findall(text) for library in line.split(", ")))


_REQUIRES = re.compile(r"^-- requires: (.+)$", re.MULTILINE)


def _generated_libraries() -> dict[str, str]:
    """Return the libraries that are generated from constants of this module and the tables of ``lifecycle``.

    Scripts and ``lifecycle.states`` therefore agree on the legal transitions.
    """

    def lua_set(members: frozenset[Any]) -> str:
        return "{" + ", ".join(f"[{int(member)}]=true" for member in sorted(members)) + "}"

    def lua_list(items: Sequence[str]) -> str:
        return "{" + ", ".join(items) + "}"

    def lua_strings(names: Sequence[str]) -> str:
        return lua_list([f"'{name}'" for name in names])

    legal = lua_list([f"[{int(state)}]={lua_set(next_states)}" for state, next_states in LEGAL.items()])
    suffixes = [key.rpartition("}:")[2] for key in Keys().task("")]
    key_names = [f"{name} = '{suffix}'" for name, suffix in zip(TaskKeys.__annotations__, suffixes, strict=True)]
    bounds = lua_list([str(int(bound * 1_000_000)) for bound in BOUNDS])
    names = ("SUBMITTED", "WORKING", "INPUT_REQUIRED", "COMPLETED", "FAILED", "CANCELED")
    return {
        "transitions": f"local LEGAL = {legal}",
        "states": "\n".join(
            [
                f"local TERMINAL = {lua_set(TERMINAL)}",
                f"local INTERRUPTED = {lua_set(INTERRUPTED)}",
                *(f"local {name} = {int(getattr(states, name))}" for name in names),
            ]
        ),
        "buckets": f"local BOUNDS = {bounds}",
        "publication": f"local FIRST_PUBLISH_GRACE_US = {FIRST_PUBLISH_GRACE_US}",
        "key_names": f"local KEY_NAMES = {lua_list(key_names)}",
        "own_metadata": "\n".join(
            [
                f"local OUTDATED_IN_WORKING = {lua_strings(outdated_keys(states.WORKING))}",
                f"local OUTDATED_ELSE = {lua_strings(outdated_keys(states.COMPLETED))}",
                f"local DELAY_KEYS = {lua_strings(DELAY_KEYS)}",
            ]
        ),
    }
