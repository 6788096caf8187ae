"""Features in the settlement of runs: the sections of ``settle_run``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from a2a.types import Part

from ..lifecycle.references import RunRef
from ..store.verbs import Section
from .questions.question_section import section_of_pause

PAUSE_SECTIONS: Sequence[Callable[[RunRef, Sequence[Part], Section[Any] | None], Section[Any] | None]] = (
    section_of_pause,
)
"""Functions that return the section of a run that ends with a question, or None for no section.

The arguments are the run, the parts of the question, and the section of a question that the `Turn` has asked, or None
for any other question."""
