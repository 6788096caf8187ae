"""Sections of features that do not depend on options of an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from a2a.types import Message, Part

from ..lifecycle.own_metadata import NAMESPACE, PARENT_TASK_ID
from ..lifecycle.references import RunRef
from ..operations.publication import RunPublisher
from ..settings import Settings
from ..store import Keys
from ..store.verbs import Section
from .families import LIMIT_TEXTS as CHILD_LIMITS
from .families.section import section_of_message
from .feature import ServiceFeature
from .limits.section import LIMIT_TEXTS as TASK_LIMITS
from .limits.section import LimitedMessages
from .publish_on_accept.message_preparer import MessagePusher
from .questions.answer_section import section_of_answer
from .questions.question_section import section_of_pause
from .webhooks.config_section import LIMIT_TEXTS as WEBHOOK_LIMITS

TASK_ID = "task_id"
"""Field of the messages that continue a task."""

SERVICE_FEATURES: Sequence[Callable[[Settings, Keys, Iterable[str], RunPublisher], ServiceFeature | None]] = (
    LimitedMessages.of,
    MessagePusher.of,
)
"""Functions that open the features of a `TaskService`, or return None if the settings do not turn the feature on. The
arguments are the settings, the keys, the names of the agents, and the publisher of runs of the service."""

MESSAGE_SECTIONS: Mapping[str, Callable[[Message], Section[Any] | None]] = {
    NAMESPACE + PARENT_TASK_ID: section_of_message,
    TASK_ID: section_of_answer,
}
"""Functions that return a section for a message, or None for no section, by what turns the feature on: the name of a
metadata in the first message of a task, or `TASK_ID` in each further message."""

LIMIT_TEXTS: Mapping[str, str] = {**CHILD_LIMITS, **WEBHOOK_LIMITS, **TASK_LIMITS}
"""Text of the error by the name of the limit, for the limits that sections check."""

PAUSE_SECTIONS: Sequence[Callable[[RunRef, Sequence[Part], Section[Any] | None], Section[Any] | None]] = (
    section_of_pause,
)
"""Functions that return the section of ``settle_run`` for a run that ends in INPUT_REQUIRED, or None for no section.

The arguments are the run, the parts of the question, and the section of a question that the `Turn` has asked, or None
for any other question."""
