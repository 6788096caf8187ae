"""Sections of features that do not depend on options of an agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from a2a.types import Part, SendMessageRequest

from ..lifecycle.references import RunRef
from ..lifecycle.refusals import Refusal
from ..store.verbs import Section
from .families.section import section_of_message
from .feature import ValidationRequired
from .questions.answer_section import AnswerSection
from .questions.question_section import section_of_pause

MESSAGE_SECTIONS: Sequence[Callable[[SendMessageRequest], Section[Refusal | ValidationRequired] | None]] = (
    section_of_message,
    AnswerSection.of_message,
)
"""Functions that return a section of ``create_task`` or ``continue_task`` for a message, or None for no section. The
message has the id of a task if it continues the task."""

PAUSE_SECTIONS: Sequence[Callable[[RunRef, Sequence[Part], Section[Any] | None], Section[Any] | None]] = (
    section_of_pause,
)
"""Functions that return the section of ``settle_run`` for a run that ends in INPUT_REQUIRED, or None for no section.

The arguments are the run, the parts of the question, and the section of a question that the `Turn` has asked, or None
for any other question."""
