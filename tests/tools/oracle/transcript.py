"""Transcript of a sequence: lines of text that do not depend on random ids."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import blake2b
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from a2a_celery.store.runs.journal import RecordedEntries

ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}")
DIGEST_BYTES = 8

LONGEST_TEXT = 400
"""Maximum characters of a text in a line. Of a longer text, the line has the beginning and a digest."""

FIRST_NAMES = {"resubmittable": "dead_letters", "is_resubmittable": "is_dead_letter"}
"""First names of renamed fields. Transcripts have these names, so that a recording of an earlier version still has the
lines of this version."""


class Transcript:
    """Lines of a sequence, in which ids are renamed in the order of their appearance."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[str, str] = {}

    def add(self, name: str, value: Any) -> None:
        """Add a line with the neutral form of a value."""
        self.lines.append(self.line(name, value))

    def line(self, name: str, value: Any) -> str:
        """Return the line for a value."""
        return ID.sub(self._name, f"{name} {json.dumps(neutral(value), sort_keys=True)}")

    def _name(self, match: re.Match[str]) -> str:
        return self._names.setdefault(match[0], f"id{len(self._names)}")


def digest(lines: Iterable[str]) -> str:
    """Return the digest of the lines of a sequence."""
    return blake2b("\n".join(lines).encode(), digest_size=DIGEST_BYTES).hexdigest()


def neutral(value: Any) -> Any:
    """Return a JSON value for a result of an operation, without the time of the read."""
    match value:
        case Message():
            return neutral(MessageToDict(value))
        case BaseException():
            return type(value).__name__
        case Enum():
            return value.name
        case bytes():
            return neutral(value.decode("latin-1"))
        case str() if len(value) > LONGEST_TEXT:
            return f"{value[:20]}… ({len(value)} characters, {digest([value])})"
        case str() | int() | float() | None:
            return value
        case dict():
            return {str(neutral(key)): neutral(content) for key, content in value.items()}
        case set() | frozenset():
            return sorted(map(str, map(neutral, value)))
        case list() | tuple():
            return [neutral(item) for item in value]
        case RecordedEntries():
            return sorted(json.dumps(neutral(entry), sort_keys=True) for entry in value.entries)
        case _ if is_dataclass(value):
            names = [f.name for f in fields(value) if f.name != "now_us"]
            contents = {FIRST_NAMES.get(name, name): neutral(getattr(value, name)) for name in names}
            return [type(value).__name__, contents]
        case _:
            return repr(value)
