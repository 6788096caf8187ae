"""Answers to questions that carry a JSON Schema: validated before anything is stored."""

from __future__ import annotations

import asyncio
import json

from a2a.types import Message, Role, Task

from ...acceptance.errors import invalid_fields
from ...lifecycle.answers import AnswerRefused, fitting_answer
from ...lifecycle.questions import schema_in


async def require_fitting_answer(schema: bytes, message: Message) -> None:
    """Require that `message` answers a question whose answers fit `schema`.

    The validation runs in a thread, because it may take a second for a large answer.

    Raises:
        InvalidParamsError: The message has no answer, or the answer does not fit. The error names each broken rule.
    """
    try:
        await asyncio.to_thread(fitting_answer, json.loads(schema), message)
    except AnswerRefused as e:
        violations = [{"field": e.field + one.path, "message": one.text} for one in e.violations]
        raise invalid_fields(violations) from None


def messages_with_arguments(task: Task, message: Message) -> list[Message]:
    """Return the client's messages of a task, with the new `message`, that may carry arguments of a plain Celery task.

    An answer to a question with a schema carries none: `Turn.ask` returns it.
    """
    found, is_answer = [], False
    for one in [*task.history, *([task.status.message] if task.status.HasField("message") else []), message]:
        if one.role == Role.ROLE_AGENT:
            is_answer = schema_in(one.parts) is not None
        elif not is_answer:
            found.append(one)
        else:
            is_answer = False
    return found
