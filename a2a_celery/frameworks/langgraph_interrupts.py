"""Interrupts of a LangGraph graph as questions to the client.

The interrupt of LangChain's ``HumanInTheLoopMiddleware`` lists tool calls, and the decisions that each call allows. The
question has a JSON Schema, so that the gateway refuses an answer that the middleware cannot process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from a2a.types import Part
from google.protobuf.json_format import MessageToDict
from langgraph.types import Interrupt

from ..features.questions.answer import Answer
from ..lifecycle.events import data_part
from ..lifecycle.outcomes import NEEDS_INPUT
from ..lifecycle.questions import Question, whole_numbers
from .approvals import call_text, words_pattern

APPROVE, EDIT, REJECT, RESPOND = "approve", "edit", "reject", "respond"
"""Types of decisions about a tool call."""

WORDS = {APPROVE: ("approve", "yes"), REJECT: ("reject", "no")}
"""Texts that stand for the same decision about all tool calls, in any case."""


class ToolReview(NamedTuple):
    """Tool call that waits for a decision.

    Attributes:
        name: Name of the tool.
        text: Description of the call.
        decisions: Types of the allowed decisions.
    """

    name: str
    text: str
    decisions: list[str]


class InterruptQuestion:
    """Question to the client about an interrupt.

    Attributes:
        id: Id of the interrupt.
        text: Text of the question.
        schema: JSON Schema of the answer, or None if any message answers the question.
        parts: Further parts of the question: the value of the interrupt, unless the value is text.
    """

    def __init__(self, interrupt: Interrupt[Any]) -> None:
        self._is_text = isinstance(interrupt.value, str | None)
        self._reviews = _tool_reviews(interrupt.value)
        self.id = interrupt.id
        self.text, self.schema = _text_of(interrupt.value), interrupt.response_schema
        if self._reviews:
            self.text, self.schema = _text_about(self._reviews), _decisions_schema(self._reviews)
        self.parts = [] if self._is_text else [_interrupt_part(interrupt)]

    def with_others(self) -> Question:
        """Return the question for `Turn.ask_all`. Any JSON value answers an interrupt whose value is not text."""
        return Question(self.text, {} if self.schema is None and not self._is_text else self.schema)

    def result(self, answer: Any) -> Any:
        """Return the result of `interrupt` for an answer that `Turn.ask` or `Turn.ask_all` returned."""
        if isinstance(answer, Answer):
            return self._value_of(answer)
        if not self._reviews or not isinstance(answer, str):
            return answer
        if _takes_any_text(self._reviews):
            return {"decisions": [{"type": RESPOND, "message": answer}]}
        [decision] = [decision for decision, words in WORDS.items() if answer.strip().lower() in words]
        return {"decisions": [{"type": decision} for _ in self._reviews]}

    def _value_of(self, answer: Answer) -> Any:
        """Return the value of the data part if the answer has one data part and no text. Otherwise, return the text.

        If the value of the interrupt is not text, a text that is a JSON object or list is parsed.
        """
        data = [whole_numbers(MessageToDict(part.data)) for part in answer.message.parts if part.HasField("data")]
        if len(data) == 1 and not answer:
            return data[0]
        if not self._is_text:
            try:
                value = json.loads(answer)
            except (ValueError, RecursionError):
                return str(answer)
            if isinstance(value, dict | list):
                return value
        return str(answer)


def _tool_reviews(value: Any) -> list[ToolReview]:
    """Return the tool calls in the interrupt of the middleware, or an empty list for any other interrupt."""
    match value:
        case {"action_requests": [*requests], "review_configs": [*configs]}:
            pass
        case _:
            return []
    allowed = {
        config["action_name"]: [str(decision) for decision in config["allowed_decisions"]]
        for config in configs
        if isinstance(config, dict) and {"action_name", "allowed_decisions"} <= config.keys()
    }
    if not all(isinstance(request, dict) and request.get("name") in allowed for request in requests):
        return []
    return [
        ToolReview(
            request["name"],
            request.get("description") or call_text(request["name"], request.get("args", {})),
            allowed[request["name"]],
        )
        for request in requests
    ]


def _text_about(reviews: Sequence[ToolReview]) -> str:
    """Return the descriptions of the calls, and the allowed answers."""
    lines = [review.text for review in reviews]
    if len(reviews) > 1:
        lines = [f"{number}. {text}" for number, text in enumerate(lines, 1)]
    if _takes_any_text(reviews):
        return lines[0]
    words = [decision for decision in WORDS if _is_allowed(decision, reviews)]
    if words:
        lines.append(
            f"Answer {' or '.join(words)}{' for all calls' if len(reviews) > 1 else ''}, or send the decisions."
        )
    return "\n\n".join(lines)


def _decisions_schema(reviews: Sequence[ToolReview]) -> dict[str, Any]:
    """Return the JSON Schema of an object with one decision for each call. Short texts are also accepted."""
    decisions = [_decision_schema(review) for review in reviews]
    names = ", ".join(review.name for review in reviews)
    schema: dict[str, Any] = {
        "type": ["object", "string"],
        "properties": {
            "decisions": {
                "type": "array",
                "title": "Decisions",
                "description": f"One decision for each call, in order: {names}.",
                "prefixItems": decisions,
                "minItems": len(decisions),
                "maxItems": len(decisions),
            }
        },
        "required": ["decisions"],
        "additionalProperties": False,
    }
    if not _takes_any_text(reviews):
        words = [word for decision in WORDS if _is_allowed(decision, reviews) for word in WORDS[decision]]
        if words:
            schema |= {"pattern": words_pattern(words), "examples": words}
        else:
            schema["type"] = "object"
    return schema


def _decision_schema(review: ToolReview) -> dict[str, Any]:
    properties: dict[str, Any] = {"type": {"type": "string", "enum": review.decisions}}
    requirements = []
    if {REJECT, RESPOND} & set(review.decisions):
        properties["message"] = {"type": "string"}
    if RESPOND in review.decisions:
        requirements.append(_required_for(RESPOND, "message"))
    if EDIT in review.decisions:
        properties["edited_action"] = {
            "type": "object",
            "properties": {"name": {"type": "string", "enum": [review.name]}, "args": {"type": "object"}},
            "required": ["name", "args"],
            "additionalProperties": False,
        }
        requirements.append(_required_for(EDIT, "edited_action"))
    return {
        "type": "object",
        "properties": properties,
        "required": ["type"],
        "additionalProperties": False,
        **({"allOf": requirements} if requirements else {}),
    }


def _required_for(decision: str, name: str) -> dict[str, Any]:
    """Return the JSON Schema that requires the property `name` in a decision of the type `decision`."""
    condition = {"properties": {"type": {"const": decision}}, "required": ["type"]}
    return {"if": condition, "then": {"required": [name]}}


def _is_allowed(decision: str, reviews: Sequence[ToolReview]) -> bool:
    """Return True if all calls allow the decision."""
    return all(decision in review.decisions for review in reviews)


def _takes_any_text(reviews: Sequence[ToolReview]) -> bool:
    """Return True if the answer to a single call is a text."""
    return [review.decisions for review in reviews] == [[RESPOND]]


def _text_of(value: Any) -> str:
    """Return the value of an interrupt as the text of a question."""
    if isinstance(value, dict):
        texts = [value[key] for key in ("question", "message", "description") if isinstance(value.get(key), str)]
        value = texts[0] if texts else value
    if isinstance(value, str):
        return value or NEEDS_INPUT
    return json.dumps(value, ensure_ascii=False, default=str) if value else NEEDS_INPUT


def _interrupt_part(interrupt: Interrupt[Any]) -> Part:
    value = json.loads(json.dumps(interrupt.value, default=str))
    return data_part({"interrupts": [{"id": interrupt.id, "value": value}]}, media_type="")
