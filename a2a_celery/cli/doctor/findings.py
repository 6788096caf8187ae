"""Findings of the checks of ``a2a doctor``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from ..output import json_line


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of a check.

    Attributes:
        level: "wrong" if a feature does not work as documented, "note" for a recommendation, otherwise "ok".
        about: Process or subject.
        text: Observation, and the remedy unless the level is "ok".
        check: Name of the check.
        is_summary: True to drop the finding if its check has a finding of another level.
    """

    level: Literal["ok", "note", "wrong"]
    about: str
    text: str
    check: str = ""
    is_summary: bool = False

    def __str__(self) -> str:
        return f"{self.level:<5}  {self.about}: {self.text}"

    def as_json(self) -> str:
        """Return the finding as one line of JSON."""
        return json_line({"check": self.check, "level": self.level, "about": self.about, "text": self.text})


Findings = Iterator[Finding]

ok = partial(Finding, "ok")
note = partial(Finding, "note")
wrong = partial(Finding, "wrong")
all_ok = partial(Finding, "ok", is_summary=True)


def matching(about: str, *rows: tuple[Callable[[str, str], Finding], object, str]) -> Findings:
    """Yield a finding about a subject for each row (level, condition, text) whose condition is true."""
    return (level(about, text) for level, condition, text in rows if condition)
