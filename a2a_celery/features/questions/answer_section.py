"""Validation of a message that answers a question with a JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import sleep
from typing import NamedTuple

from a2a.types import Message

from ...lifecycle.answers import AnswerRefused, fitting_answer
from ...operations.errors import invalid_fields
from ...store.verbs import section
from ..feature import RunInThread, ValidationRequired

RELEASE_GIL = partial(sleep, 0.0001)
"""Function that releases the GIL during a validation, so that the event loop does not wait for the GIL."""


@section(Path(__file__).with_suffix(".lua"))
class AnswerSection(NamedTuple):
    """Section of ``continue_task``.

    Attributes:
        validated_run: Run whose question the message answers, if the answer is valid, or None before the validation.
    """

    validated_run: int | None = None

    def parse(self, task_id: str, reply: Sequence[bytes]) -> OpenQuestion | None:
        """Parse the reply of the section's ``validate``, or return None for any other reply."""
        return OpenQuestion(int(reply[1]), reply[2]) if reply[0] == b"question" else None


def section_of_answer(message: Message) -> AnswerSection:
    """Return the section for a message that may answer a question."""
    return AnswerSection()


@dataclass(frozen=True)
class OpenQuestion(ValidationRequired):
    """Open question that a message answers.

    Attributes:
        run: Run that asked the question.
        schema: JSON Schema of the answer.
    """

    run: int
    schema: bytes

    async def validate(self, message: Message, run_in_thread: RunInThread) -> AnswerSection:
        """Check that `message` contains an answer that fits the schema.

        The validation runs in a thread, because it may take a second for a large answer.

        Raises:
            InvalidParamsError: The message has no answer, or the answer does not fit. The error lists each violation.
            LimitExceededError: Too many answers of the owner are being checked.
        """
        try:
            await run_in_thread(partial(fitting_answer, json.loads(self.schema), message, pause=RELEASE_GIL))
        except AnswerRefused as e:
            violations = [{"field": e.field + violation.path, "message": violation.text} for violation in e.violations]
            raise invalid_fields(violations) from None
        return AnswerSection(self.run)
