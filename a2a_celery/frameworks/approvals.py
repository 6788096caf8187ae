"""Questions that ask the client for decisions on a framework's pending tool calls.

The status message has a line for each call, and the JSON Schema of the answer. The answer is an object that maps the id
of each call to a value. If all calls only need an approval, a text such as "yes", or a boolean, is the answer for all
calls. The gateway refuses an answer that does not match the schema; see ``lifecycle.answers``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from a2a.types import Role

from ..errors import Failed, InputRequired
from ..execution.agents.turn import Turn
from ..lifecycle.answers import AnswerRefused, fitting_answer
from ..lifecycle.questions import MAX_TEXT, checked_schema, combined_schema, schema_in, schema_part

APPROVAL = "approval"
"""Kind of a question whose answer is True or False."""

RESULT = "result"
"""Kind of a question whose answer is the result of the call, a JSON value."""

SCHEMAS: dict[str, dict[str, Any]] = {APPROVAL: {"type": "boolean"}, RESULT: {}}
TITLES = {APPROVAL: "Approve {}?", RESULT: "Result of {}?"}

WORDS = {"yes": True, "approve": True, "no": False, "reject": False}
"""Texts, in any case, that are the same decision on all calls."""

NOTHING_WAITS = "The question is no longer open."


def call_text(tool: str, arguments: Any) -> str:
    """Return a call as a person reads it, such as ``book(what='hotel')``.

    Args:
        tool: Name of the tool.
        arguments: Arguments of the call, as a JSON value or as JSON text.
    """
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return f"{tool}({arguments!r})"
    if not isinstance(arguments, Mapping):
        return f"{tool}({'' if arguments is None else json.dumps(arguments, ensure_ascii=False, default=str)})"
    return f"{tool}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def decision_lines(texts: Sequence[str]) -> list[str]:
    """Return the lines of a question about one or several calls, to which "yes" or "no" is an answer."""
    if len(texts) == 1:
        return [f"{texts[0]} (yes or no)"]
    lines = [f"{number}. {text}" for number, text in enumerate(texts, 1)]
    return [*lines, "Answer yes or no for all calls, or send a decision on each call."]


def words_pattern(words: Iterable[str]) -> str:
    """Return the pattern of a text that is one of `words` in any case. Not all dialects of patterns have flags."""
    patterns = ["".join(f"[{character.upper()}{character}]" for character in word) for word in words]
    return rf"^\s*({'|'.join(patterns)})\s*$"


def pending_call(kind: str, call_id: str, tool: str, arguments: Any, details: Any = None) -> dict[str, Any]:
    """Return the question for one call, as a JSON object that a session can store.

    Args:
        kind: `APPROVAL` or `RESULT`.
        call_id: Id of the call in the framework.
        tool: Name of the tool.
        arguments: Arguments of the call, as a JSON value or as JSON text.
        details: Further data for the client, or None.
    """
    text = TITLES[kind].format(call_text(tool, arguments))
    if details:
        text += f" {call_text('', details)}"
    return {"id": call_id, "kind": kind, "tool": tool, "text": text}


def asking(pending: Sequence[dict[str, Any]], reason: str = "") -> InputRequired:
    """Return the exception that ends the run with a question about all `pending` calls.

    Args:
        pending: Questions that `pending_call` returned.
        reason: Reason why the last answer was refused, or "".
    """
    lines = [call["text"] for call in pending]
    if _are_approvals(pending):
        lines = decision_lines(lines)
    elif len(lines) > 1:
        lines = [f"{number}. {line}" for number, line in enumerate(lines, 1)]
    return InputRequired("\n".join([reason, *lines] if reason else lines), parts=[schema_part(_schema(pending))])


def decisions(turn: Turn, pending: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the client's decisions from the message of the turn, keyed by call id.

    Raises:
        InputRequired: The message does not contain a valid decision on each call.
    """
    try:
        answer = fitting_answer(_schema(pending), turn.message)
        if not isinstance(answer, Mapping):
            decision = WORDS[answer.strip().lower()] if isinstance(answer, str) else bool(answer)
            return dict.fromkeys((call["id"] for call in pending), decision)
        return dict(answer)
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


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _are_approvals(pending: Sequence[dict[str, Any]]) -> bool:
    return all(call["kind"] == APPROVAL for call in pending)


def _schema(pending: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON Schema of the answer. The title of each property is the question about its call."""
    questions = {call["id"]: ("", SCHEMAS[call["kind"]] | {"title": _shortened(call["text"])}) for call in pending}
    schema = combined_schema(questions)
    if _are_approvals(pending):
        schema |= {"type": ["object", "boolean", "string"], "pattern": words_pattern(WORDS), "examples": ["yes", "no"]}
    return checked_schema(schema)
