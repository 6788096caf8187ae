"""Outcomes of scripts: which replies a script can have, and which of them sequences reach."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from redis.exceptions import OutOfMemoryError

from a2a_celery.store import operation
from a2a_celery.store.operation import script
from tests.support.store.scripts import script_files

FULL_STORE = "full store"
LIMITS_OF_BYTES = ("memory", "owner_bytes")
LIMITS = {
    "create_task": (*LIMITS_OF_BYTES, "concurrent", "queued", "children", "webhooks"),
    "continue_task": (*LIMITS_OF_BYTES, "concurrent", "queued", "webhooks"),
    "save_push_config": ("webhooks",),
    "send_signal": LIMITS_OF_BYTES,
}
"""Limits that a script checks."""

DETAILED = ("dropped", "limited")
"""Refusals whose second element is the reason."""

WORD = re.compile(r"[a-z][a-z_]+")


def outcome_of(name: str, reply: Any) -> str:
    """Return the outcome in a reply: its first word with the reason of a refusal, or the kind of another reply."""
    match reply:
        case OutOfMemoryError():
            return FULL_STORE
        case Exception():
            return type(reply).__name__
        case None:
            return "nil"
        case int():
            return "number" if reply else "0"
        case bytes():
            text = reply.decode("latin-1")
            return text if WORD.fullmatch(text) else "text"
        case [bytes() as first, bytes() as reason, *_] if first.decode("latin-1") in DETAILED:
            return f"{first.decode()}: {re.sub(r'[0-9]+', 'n', reason.decode())}"
        case [bytes() as first, *_] if _has_words(name) and WORD.fullmatch(first.decode("latin-1")):
            return first.decode()
        case []:
            return "empty"
        case _:
            return "list"


def script_names() -> list[str]:
    """Return the names of all scripts."""
    return sorted(path.stem for path in script_files())


def expected_outcomes(name: str) -> set[str]:
    """Return the outcomes that the header of a script lists, and a full store if the script refuses it."""
    text = operation.script_text(name)
    outcomes = set(_words_of_header(text))
    if "limited" in outcomes:
        outcomes = outcomes - {"limited"} | {f"limited: {limit}" for limit in LIMITS[name]}
    if "dropped" in outcomes:
        reasons = re.findall(r"'dropped', '([^']+?)'( \.\.)?", text)
        outcomes = outcomes - {"dropped"} | {f"dropped: {reason}{'n' if more else ''}" for reason, more in reasons}
    if "refuse_on_full_store(" in script(name).text:
        outcomes.add(FULL_STORE)
    return outcomes


def _words_of_header(text: str) -> Iterator[str]:
    returns = re.search(r"^-- returns (.*?)^(?:-- requires|(?!--))", text, re.MULTILINE | re.DOTALL)
    assert returns is not None
    section = returns[1]
    yield from re.findall(r"'([a-z][a-z_]+)'", re.sub(r"'limited', '[a-z]+'", "'limited'", section))
    if re.search(r"\bnil:", section):
        yield "nil"
    if re.search(r"\bor 0 if\b", section):
        yield "0"


@cache
def _has_words(name: str) -> bool:
    """Return True if the replies of a script begin with a word."""
    return bool(expected_outcomes(name) - {FULL_STORE, "nil", "0"})


UNREACHED: dict[tuple[str, str], str] = {}
"""Outcomes that no sequence reaches, each with the reason."""


def unreached(outcomes: Mapping[tuple[str, str], int]) -> list[str]:
    """Return a line for each script that was not called, and for each outcome that was not reached without a reason in
    `UNREACHED`."""
    called = {name for name, _ in outcomes}
    return [
        *(f"{name} was not called" for name in script_names() if name not in called),
        *(
            f"{name} never replied {outcome!r}"
            for name in script_names()
            for outcome in sorted(expected_outcomes(name))
            if not outcomes.get((name, outcome)) and (name, outcome) not in UNREACHED
        ),
        *(f"{name} replied {outcome!r}" for name, outcome in UNREACHED if outcomes.get((name, outcome))),
    ]
