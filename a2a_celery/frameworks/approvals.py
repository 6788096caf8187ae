"""Questions that ask the client for decisions on a framework's pending tool calls.

The status message has a line for each call, and the JSON Schema of the answer. The answer is an object that maps the id
of each call to a value. The gateway refuses an answer that does not match the schema; see ``lifecycle.answers``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from a2a.types import Role

from ..errors import Failed, InputRequired
from ..execution.agents.turn import Turn
from ..lifecycle.answers import AnswerRefused, AnswerTypes
from ..lifecycle.questions import Question, schema_in, schema_part

APPROVAL = "approval"
"""Kind of a question whose answer is True or False."""

RESULT = "result"
"""Kind of a question whose answer is the result of the call, a JSON value."""

SCHEMAS: dict[str, dict[str, Any]] = {APPROVAL: {"type": "boolean"}, RESULT: {}}
TITLES = {APPROVAL: "Approve {}?", RESULT: "Result of {}?"}

NOTHING_WAITS = "The question is no longer open."


def pending_call(kind: str, call_id: str, tool: str, arguments: Any, details: Any = None) -> dict[str, Any]:
    """Return the question for one call, as a JSON object that a session can store.

    Args:
        kind: `APPROVAL` or `RESULT`.
        call_id: Id of the call in the framework.
        tool: Name of the tool.
        arguments: Arguments of the call, as a JSON value or as JSON text.
        details: Further data for the client, or None.
    """
    arguments_text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    text = TITLES[kind].format(f"{tool}({arguments_text})")
    if details:
        text += f" {json.dumps(details, ensure_ascii=False, default=str)}"
    return {"id": call_id, "kind": kind, "tool": tool, "text": text}


def asking(pending: Sequence[dict[str, Any]], reason: str = "") -> InputRequired:
    """Return the exception that ends the run with a question about all `pending` calls.

    Args:
        pending: Questions that `pending_call` returned.
        reason: Reason why the last answer was refused, or "".
    """
    lines = [call["text"] if len(pending) == 1 else f"{call['id']}: {call['text']}" for call in pending]
    return InputRequired("\n".join([reason, *lines] if reason else lines), parts=[schema_part(_types(pending).schema)])


def decisions(turn: Turn, pending: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the client's decisions from the message of the turn, keyed by call id.

    Raises:
        InputRequired: The message does not contain a valid decision on each call.
    """
    try:
        return _types(pending).parse(turn.message)
    except AnswerRefused as refusal:
        raise asking(pending, f"The answer was not accepted. {refusal}") from None


def refuse_late_answer(turn: Turn) -> None:
    """Refuse a message that answers a question of `asking`. Call this function when no question is open.

    Raises:
        Failed: The message answers a question that is no longer stored.
    """
    history = list(turn.task.history)
    earlier_messages = [message for message in history if message.message_id != turn.message.message_id]
    question = earlier_messages[-1] if earlier_messages and earlier_messages[-1].role == Role.ROLE_AGENT else None
    if question is not None and schema_in(question.parts) is not None:
        raise Failed(NOTHING_WAITS)


def _types(pending: Sequence[dict[str, Any]]) -> AnswerTypes:
    questions = {
        item["id"]: Question(TITLES[item["kind"]].format(item["tool"]), SCHEMAS[item["kind"]]) for item in pending
    }
    return AnswerTypes(questions)
