"""Findings of checks, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from .survey import Survey

Level = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of a check. At the level "wrong", a feature does not work as documented; "note" is a recommendation."""

    level: Level
    about: str
    text: str
    check: str = ""

    def __str__(self) -> str:
        return f"{self.level:<5}  {self.about}: {self.text}"

    def as_json(self) -> str:
        """Return one line of JSON."""
        fields = {"check": self.check, "level": self.level, "about": self.about, "text": self.text}
        return json.dumps(fields, ensure_ascii=False)


def ok(about: str, text: str) -> Finding:
    """Make a finding of the level "ok"."""
    return Finding("ok", about, text)


def note(about: str, text: str) -> Finding:
    """Make a finding of the level "note"."""
    return Finding("note", about, text)


def wrong(about: str, text: str) -> Finding:
    """Make a finding of the level "wrong"."""
    return Finding("wrong", about, text)


Check = Callable[[Survey], Iterator[Finding]]
