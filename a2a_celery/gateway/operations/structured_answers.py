"""Answers to questions of `Turn.ask`. If a question has a JSON Schema, its answer is validated before it is stored. An
answer is not used as arguments of a plain Celery task, because `Turn.ask` returns the answer."""

from __future__ import annotations

import asyncio
import json

from a2a.types import Message, Role, Task

from ...acceptance.errors import invalid_fields
from ...lifecycle.answers import AnswerRefused, fitting_answer
from ...lifecycle.own_metadata import ASKED, NAMESPACE
from ...lifecycle.questions import schema_in


async def require_fitting_answer(schema: bytes, message: Message) -> None:
    """Check that `message` contains an answer that fits `schema`, the JSON Schema of a question.

    The validation runs in a thread, because it may take a second for a large answer.

    Raises:
        InvalidParamsError: The message has no answer, or the answer does not fit. The error lists each violation.
    """
    try:
        await asyncio.to_thread(fitting_answer, json.loads(schema), message)
    except AnswerRefused as e:
        violations = [{"field": e.field + violation.path, "message": violation.text} for violation in e.violations]
        raise invalid_fields(violations) from None


def messages_with_arguments(task: Task, message: Message | None) -> list[Message]:
    """Return the client messages that may contain arguments of a plain Celery task: those of `task`, and the new
    `message` unless it is None.

    Answers to questions of `Turn.ask` are excluded, because `Turn.ask` returns them. A question that a worker of an
    earlier release asked is recognized only if it has a schema.
    """
    messages, is_answer = [], False
    question = [task.status.message] if task.status.HasField("message") else []
    for candidate in [*task.history, *question, *([] if message is None else [message])]:
        if candidate.role == Role.ROLE_AGENT:
            is_answer = NAMESPACE + ASKED in candidate.metadata or schema_in(candidate.parts) is not None
        elif not is_answer:
            messages.append(candidate)
        else:
            is_answer = False
    return messages
