"""Data that is stored with a question until the client answers: the JSON Schema of the answer, and reminders."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from a2a.types import Part, TaskStatusUpdateEvent

from ...lifecycle.answers import require_valid_schema
from ...lifecycle.questions import checked_schema, schema_in
from ...lifecycle.references import RunRef
from ...store import Keys
from ...store.blobs.references import encode
from ...store.codec import pack_metadata
from ...store.verbs import Section, section
from ..webhooks.config_section import MAX_PUSH_CONFIGS, ConfigSection, NewPushConfig, config_section

logger = logging.getLogger(__name__)


class Reminder(NamedTuple):
    """Reminder of a question.

    Attributes:
        after_us: µs between the question and the reminder.
        event: Bytes that are appended to the question's status event. Two concatenated protobuf messages are one merged
            message.
        metadata: Packed metadata of the reminder.
    """

    after_us: int
    event: bytes
    metadata: bytes

    @classmethod
    def of(cls, after_us: int, event: TaskStatusUpdateEvent) -> Reminder:
        """Return a reminder whose status event differs from the question in the message id and the metadata of
        `event`."""
        return cls(after_us, encode(event), pack_metadata(event.metadata))


@section(Path(__file__).with_suffix(".lua"))
class QuestionSection(NamedTuple):
    """Section of ``settle_run`` for a run that ends with a question.

    Attributes:
        answer_schema: JSON Schema of the answer, or None if any message answers the question.
        escalation: Config of the webhook that receives the last reminder and all later events, or None.
        reminders: Reminders in the order of their times.
    """

    answer_schema: str | None = None
    escalation: ConfigSection | None = None
    reminders: Sequence[Reminder] = ()

    def parse(self, task_id: str, reply: Sequence[bytes]) -> None:
        """Return None, because this section has no reply."""


def escalation_section(keys: Keys, config: NewPushConfig) -> ConfigSection:
    """Return the config of an escalation, which does not count toward the limits of configs."""
    return config_section(keys, config, max_configs=MAX_PUSH_CONFIGS + 1)


def answer_schema(question: Sequence[Part], ref: RunRef) -> str | None:
    """Return the JSON Schema in the parts of a question, or None if there is none.

    An invalid schema is not enforced, because clients could not give any answer.
    """
    schema = schema_in(question)
    if schema is None:
        return None
    try:
        require_valid_schema(checked_schema(schema))
    except ValueError as e:
        logger.error("run %s: answers to its question are not validated: %s", ref.name, e)
        return None
    return json.dumps(schema)


def section_of_pause(ref: RunRef, question: Sequence[Part], asked: Section[Any] | None) -> QuestionSection | None:
    """Return the section of a run that ends with a question, or None for a question without schema and reminders.

    Args:
        ref: The run.
        question: Parts of the question.
        asked: Section of the question that `Turn.ask` has asked, or None for any other question.
    """
    question_section = asked if isinstance(asked, QuestionSection) else QuestionSection()
    question_section = question_section._replace(answer_schema=answer_schema(question, ref))
    return question_section if question_section.answer_schema or question_section.reminders else None
