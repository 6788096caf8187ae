"""Sections of features that do not depend on options of an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from a2a.types import Message, Part

from ..lifecycle.own_metadata import NAMESPACE, PARENT_TASK_ID
from ..lifecycle.references import RunRef
from ..lifecycle.refusals import Refusal
from ..store.verbs import Section
from .families.section import section_of_message
from .feature import ValidationRequired
from .questions.answer_section import AnswerSection
from .questions.question_section import section_of_pause

CREATION_SECTIONS: Mapping[str, Callable[[Message], Section[Refusal] | None]] = {
    NAMESPACE + PARENT_TASK_ID: section_of_message,
}
"""Functions that return a section of ``create_task`` for the first message of a task, or None for no section, by the
name of the message's metadata that turns the feature on."""

CONTINUATION_SECTIONS: Sequence[Callable[[], Section[ValidationRequired]]] = (AnswerSection,)
"""Functions that return a section of ``continue_task`` for each further message to a task."""

PAUSE_SECTIONS: Sequence[Callable[[RunRef, Sequence[Part], Section[Any] | None], Section[Any] | None]] = (
    section_of_pause,
)
"""Functions that return the section of ``settle_run`` for a run that ends in INPUT_REQUIRED, or None for no section.

The arguments are the run, the parts of the question, and the section of a question that the `Turn` has asked, or None
for any other question."""
