"""What a check finds: a line for people, and the same for scripts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ..survey import Survey

Level = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: "ok"; "note", worth knowing; "wrong", something does not work as promised. `check` is what found it."""

    level: Level
    about: str
    text: str
    check: str = ""

    def __str__(self) -> str:
        return f"{self.level:<5}  {self.about}: {self.text}"

    def as_json(self) -> str:
        """For scripts."""
        fields = {"check": self.check, "level": self.level, "about": self.about, "text": self.text}
        return json.dumps(fields, ensure_ascii=False)


def ok(about: str, text: str) -> Finding:
    """It is as it should be."""
    return Finding("ok", about, text)


def note(about: str, text: str) -> Finding:
    """It is worth knowing."""
    return Finding("note", about, text)


def wrong(about: str, text: str) -> Finding:
    """Something does not work as promised."""
    return Finding("wrong", about, text)


Check = Callable[[Survey], Iterator[Finding]]
