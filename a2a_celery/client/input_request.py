"""Question of an agent: its text, the JSON Schema of the answer, and the fields of a form for the answer.

The agent's schema is untrusted. A schema that is invalid or refers to another document is shown but not enforced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal
from urllib.parse import unquote
from uuid import uuid4

from a2a.helpers import new_data_part, new_text_part
from a2a.types import Message, Part, Role, Task, TaskStatusUpdateEvent
from google.protobuf.json_format import MessageToDict, ParseError, SerializeToJsonError
from pydantic_core import to_jsonable_python

from ..lifecycle.answers import AnswerRefused, fitting_answer, require_valid_schema
from ..lifecycle.json_values import inexact_place, portable, portable_text
from ..lifecycle.questions import (
    PROPERTY_ORDER,
    SCHEMA_MEDIA_TYPE,
    checked_schema,
    is_schema_part,
    schema_in,
    whole_numbers,
)
from .event_parser import parse_event
from .result import Result, input_requests, short_repr

FieldKind = Literal["string", "integer", "number", "boolean", "choice", "json"]

MAX_REFERENCES = 8
"""Maximum number of references and alternatives that are resolved for one schema."""

YES, NO = ("y", "yes", "true", "1", "approve"), ("n", "no", "false", "0", "reject")
"""Texts, in any case, that a user may enter for a boolean, including all texts that approvals accept."""


@dataclass(frozen=True, slots=True)
class AnswerField:
    """Field of a form for an answer.

    Attributes:
        name: Key of the value in the answer, or "" if the value is the whole answer.
        kind: Kind of input. "json" stands for any other value, entered as JSON.
        label: Name for the user.
        description: Explanation for the user, or "".
        required: True if the answer must contain the value.
        default: Value that the agent assumes if the answer does not contain one, or None.
        choices: Permitted values if `kind` is "choice", otherwise empty.
    """

    name: str
    kind: FieldKind
    label: str
    description: str = ""
    required: bool = True
    default: Any = None
    choices: tuple[Any, ...] = ()

    def parse(self, text: str) -> Any:
        """Parse the value that a user has entered as `text`.

        Raises:
            ValueError: `text` is not a value of this kind. The text of the error is an instruction to the user.
        """
        stripped_text = text.strip()
        match self.kind:
            case "string":
                return text
            case "integer" | "number":
                return _number(stripped_text, self.kind)
            case "boolean" if stripped_text.lower() in YES + NO:
                return stripped_text.lower() in YES
            case "boolean":
                raise ValueError("enter yes or no")
            case "choice":
                matches = [choice for choice in self.choices if stripped_text == choice_text(choice)]
                if not matches:
                    raise ValueError(f"enter one of: {', '.join(map(choice_text, self.choices))}")
                return matches[0]
            case "json":
                try:
                    value = json.loads(stripped_text)
                    json.dumps(value, allow_nan=False)  # the parser accepts NaN and 1e400
                    return value
                except (ValueError, RecursionError) as e:
                    raise ValueError(f"enter JSON: {e}") from None


def _number(text: str, kind: str) -> int | float:
    try:
        value = int(text) if kind == "integer" else float(text)
        if isfinite(value):
            return value
    except (ValueError, OverflowError):
        pass
    raise ValueError("enter a whole number" if kind == "integer" else "enter a number")


def choice_text(value: Any) -> str:
    """Return the text that a user enters for a choice."""
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True, slots=True, repr=False)
class InputRequest:
    """Open question of an agent.

    Attributes:
        parts: Parts of the question, without its schema.
        schema: JSON Schema of the answer, or None if any message answers the question.
        fields: Fields of a form for the answer, in order. Empty without a schema.
        task_id: Id of the task that waits.
        context_id: Id of the task's context.
    """

    parts: list[Part]
    schema: dict[str, Any] | None = None
    fields: list[AnswerField] = field(default_factory=list)
    task_id: str = ""
    context_id: str = ""

    def __repr__(self) -> str:
        names = [field.name or field.kind for field in self.fields]
        return f"InputRequest(text={short_repr(self.text)}, fields={names}, task_id={self.task_id!r})"

    @classmethod
    def of(cls, answer: object) -> InputRequest | None:
        """Return the question in a response, or None if the agent asks nothing.

        Args:
            answer: A response in any form that `Result.of` accepts. A single status update is sufficient.
        """
        event = answer.raw if isinstance(answer, Result) else parse_event(answer)
        parts = input_requests(event)
        if not parts or not isinstance(event, Task | TaskStatusUpdateEvent):
            return None
        schema = _schema_of(parts)
        return cls(
            parts=[part for part in parts if not _carries_schema(part)],
            schema=schema,
            fields=[] if schema is None else fields_of(schema),
            task_id=event.id if isinstance(event, Task) else event.task_id,
            context_id=event.context_id,
        )

    @property
    def text(self) -> str:
        """Text of the question. Texts of several parts are joined by newlines."""
        return "\n".join(part.text for part in self.parts if part.HasField("text"))

    def answer(self, data: Any) -> Message:
        """Return the message that answers the question with `data`.

        Args:
            data: JSON data, a Pydantic model, a dataclass, or text. Text is sent as text if the question has no schema.

        Raises:
            AnswerRefused: The answer does not fit the schema. The error is a ValueError whose text is the reason.
            TypeError: JSON cannot represent `data`, or a data part cannot.
        """
        try:
            value = to_jsonable_python(data, by_alias=True)
            if self.schema is not None and inexact_place(value) is not None:
                part = new_text_part(json.dumps(value, allow_nan=False))  # exact, unlike the numbers of a data part
            elif self.schema is None and isinstance(value, str):
                part = new_text_part(portable_text(value))
            else:
                part = new_data_part(portable(value, "answer"), media_type="application/json")
            MessageToDict(part)  # refuses NaN and infinite numbers
        except (ValueError, OverflowError, RecursionError, ParseError, SerializeToJsonError) as e:
            raise TypeError(f"an answer cannot carry this {type(data).__name__}: {e}") from None
        message = Message(
            message_id=uuid4().hex,
            role=Role.ROLE_USER,
            task_id=self.task_id,
            context_id=self.context_id,
            parts=[part],
        )
        if self.schema is not None and _is_enforceable(self.schema):
            fitting_answer(self.schema, message)
        return message


def _carries_schema(part: Part) -> bool:
    return is_schema_part(part) or (part.HasField("data") and part.media_type == SCHEMA_MEDIA_TYPE)


def _schema_of(parts: Sequence[Part]) -> dict[str, Any] | None:
    schema = schema_in(parts)
    if schema is None:
        values = [whole_numbers(MessageToDict(part.data)) for part in parts if _carries_schema(part)]
        schema = next((value for value in values if isinstance(value, dict)), None)
    return schema


def _is_enforceable(schema: Mapping[str, Any]) -> bool:
    try:
        require_valid_schema(checked_schema(schema))
    except ValueError:
        return False
    return True


def fields_of(schema: Mapping[str, Any]) -> list[AnswerField]:
    """Return the form fields for answers to `schema`. An object with properties has a field for each property, and any
    other schema has a single field."""
    outer = _simplify(schema, schema)
    properties = outer.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return [_field("", outer, outer, required=True)]
    required_names = outer.get("required")
    names = required_names if isinstance(required_names, list) else []
    return [
        _field(str(name), schema_of_property, _simplify(schema_of_property, schema), required=name in names)
        for name, schema_of_property in sorted(properties.items(), key=_place)
    ]


def _place(item: tuple[str, Any]) -> tuple[float, str]:
    place = item[1].get(PROPERTY_ORDER) if isinstance(item[1], Mapping) else None
    return (place if isinstance(place, int | float) else float("inf")), str(item[0])


def _field(name: str, schema: Any, inner: Mapping[str, Any], *, required: bool) -> AnswerField:
    schema = schema if isinstance(schema, Mapping) else {}
    choices = inner.get("enum")
    kind: Any = inner.get("type")
    if isinstance(choices, list) and choices and not any(isinstance(choice, dict | list) for choice in choices):
        kind = "choice"
    elif kind not in ("string", "integer", "number", "boolean"):
        kind = "json"

    def text(key: str) -> str:
        return next((source[key] for source in (schema, inner) if isinstance(source.get(key), str)), "")

    return AnswerField(
        name,
        kind,
        text("title") or name or "Answer",
        text("description"),
        required,
        schema.get("default"),
        tuple(choices) if kind == "choice" and isinstance(choices, list) else (),
    )


def _simplify(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve the references of `schema`, and remove null from its alternatives. If several types remain, the returned
    schema has no type."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            break
        if isinstance(reference := schema.get("$ref"), str):
            schema = _find_schema(reference, root)
            continue
        types = schema.get("type")
        if isinstance(types, list):
            single = [item for item in types if item != "null"]
            return {**schema, "type": single[0] if len(single) == 1 else None}
        options = next((schema[key] for key in ("anyOf", "oneOf", "allOf") if isinstance(schema.get(key), list)), None)
        if options is None:
            return schema
        alternatives = [item for item in options if not (isinstance(item, Mapping) and item.get("type") == "null")]
        schema = alternatives[0] if len(alternatives) == 1 else None
    return {}


def _find_schema(reference: str, root: Mapping[str, Any]) -> Any:
    """Return the schema to which a reference such as ``#/$defs/Colour`` points, or None if there is no such schema."""
    schema: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        schema = schema.get(key) if isinstance(schema, Mapping) else None
    return schema if reference.startswith("#") else None


__all__ = ["AnswerField", "AnswerRefused", "InputRequest", "choice_text", "fields_of"]
