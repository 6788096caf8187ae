"""Sections of features that do not depend on options of an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from a2a.types import Message, Part

from ..clock import Clock
from ..dispatch import Publisher
from ..lifecycle.own_metadata import NAMESPACE, PARENT_TASK_ID
from ..lifecycle.references import RunRef, Scope
from ..lifecycle.refusals import Refusal
from ..settings import Settings
from ..store import Keys
from ..store.verbs import Section
from .families import LIMIT_TEXTS as CHILD_LIMITS
from .families.section import section_of_message
from .feature import RunSections, ValidationRequired
from .limits.section import LIMIT_TEXTS as TASK_LIMITS
from .limits.section import limits_of
from .publish_on_accept.message_preparer import MessagePusher
from .questions.answer_section import AnswerSection
from .questions.question_section import section_of_pause
from .webhooks.config_section import LIMIT_TEXTS as WEBHOOK_LIMITS

CREATION_SECTIONS: Mapping[str, Callable[[Message], Section[Refusal] | None]] = {
    NAMESPACE + PARENT_TASK_ID: section_of_message,
}
"""Functions that return a section of ``create_task`` for the first message of a task, or None for no section, by the
name of the message's metadata that turns the feature on."""

CONTINUATION_SECTIONS: Sequence[Callable[[], Section[ValidationRequired]]] = (AnswerSection,)
"""Functions that return a section of ``continue_task`` for each further message to a task."""

RUN_SECTIONS: Sequence[Callable[[Publisher, Settings, Clock], RunSections]] = (MessagePusher,)
"""Functions that return the object with the sections of the runs that messages begin. A service calls them once."""

ADMISSION_SECTIONS: Sequence[Callable[[Settings, Keys, Iterable[str]], Callable[[Scope], Section[Any]] | None]] = (
    limits_of,
)
"""Functions that return, for the settings, keys and agents of a process, the function that returns the section of a
client's message or signal for a task in a scope. They return None if no setting turns the feature on."""

LIMIT_TEXTS: Mapping[str, str] = {**CHILD_LIMITS, **WEBHOOK_LIMITS, **TASK_LIMITS}
"""Text of the error by the name of the limit, for the limits that sections check."""

PAUSE_SECTIONS: Sequence[Callable[[RunRef, Sequence[Part], Section[Any] | None], Section[Any] | None]] = (
    section_of_pause,
)
"""Functions that return the section of ``settle_run`` for a run that ends in INPUT_REQUIRED, or None for no section.

The arguments are the run, the parts of the question, and the section of a question that the `Turn` has asked, or None
for any other question."""
