"""Validation of answers against the JSON Schema of a question.

An answer is one data part or a text. A text is parsed as JSON. If the text is not JSON, or its JSON does not match the
schema, the text itself is the answer, provided that the schema accepts a string.

The size and the depth of an answer are limited, so that the duration of the validation is bounded. See
``schema_validation``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from a2a.helpers import get_message_text
from a2a.types import Message
from google.protobuf.json_format import MessageToDict
from pydantic import TypeAdapter, ValidationError

from .questions import (
    MAX_DEPTH,
    MAX_TEXT,
    Question,
    Violation,
    checked_schema,
    combined_schema,
    depth_exceeds,
    type_schema,
    whole_numbers,
)

MAX_ANSWER_BYTES = 131_072
"""Maximum size of an answer as JSON, in bytes."""

MAX_REASONS = 20
"""Maximum number of validation errors of a type that an `AnswerRefused` reports."""


class AnswerRefused(ValueError):
    """Error for an answer that does not match the schema of its question.

    Attributes:
        field: Field of the request that contains the answer, such as ``message.parts[0].data``.
        violations: Rules that the answer breaks.
    """

    def __init__(self, field: str, violations: Sequence[Violation]) -> None:
        self.field = field
        self.violations = violations
        super().__init__(field, violations)  # pickle calls the constructor with these arguments

    def __str__(self) -> str:
        return " ".join(map(_sentence, self.violations))


def _sentence(violation: Violation) -> str:
    place = violation.path.lstrip(".")
    return f"{place}: {violation.text}" if place else violation.text


def fitting_answer(schema: Mapping[str, Any], message: Message, *, pause: Callable[[], object] = lambda: None) -> Any:
    """Return the answer in `message`, a JSON value that matches `schema`. See `violations_of` for `pause`.

    Raises:
        AnswerRefused: The message contains no answer, or the answer does not match the schema.
    """
    field, candidates = _candidates(message)
    results = [violations_of(schema, candidate, pause=pause) for candidate in candidates]
    for candidate, violations in zip(candidates, results, strict=True):
        if not violations:
            return candidate
    if _accepts_text(schema):
        pairs = zip(candidates, results, strict=True)
        raise AnswerRefused(field, next((broken for value, broken in pairs if isinstance(value, str)), results[0]))
    if field.endswith(".text") and (examples := example_texts(schema)):
        text = f"Send {' or '.join(examples)}, or a data part that matches the schema."
        raise AnswerRefused(field, [Violation("", text)])
    if field.endswith(".text") and len(candidates) == 1:
        raise AnswerRefused(field, [Violation("", "This text is not JSON: send a data part, or JSON as text.")])
    raise AnswerRefused(field, results[0])


def _accepts_text(schema: Mapping[str, Any]) -> bool:
    """Return True if `schema` accepts a string, so that a refused text breaks another rule of `schema`."""
    return schema.get("type") == "string" or any(isinstance(value, str) for value in schema.get("enum", ()))


def example_texts(schema: Mapping[str, Any]) -> list[str]:
    """Return the examples of an answer that is a text, if `schema` accepts a text besides other types."""
    types, examples = schema.get("type"), schema.get("examples")
    if not isinstance(types, list) or "string" not in types or not isinstance(examples, list):
        return []
    return [example[:MAX_TEXT] for example in examples if isinstance(example, str)][:MAX_REASONS]


def violations_of(schema: Mapping[str, Any], value: Any, *, pause: Callable[[], object]) -> list[Violation]:
    """See `schema_validation.violations_of`."""
    from . import schema_validation  # noqa: PLC0415 -- a late import, because most processes never validate an answer

    return schema_validation.violations_of(schema, value, pause=pause)


def require_valid_schema(schema: Mapping[str, Any]) -> None:
    """Check that `schema` is a JSON Schema whose references resolve.

    Raises:
        ValueError: `schema` is not a JSON Schema, or a reference does not resolve.
    """
    from . import schema_validation  # noqa: PLC0415 -- see `violations_of`

    schema_validation.require_valid_schema(schema)


def _candidates(message: Message) -> tuple[str, list[Any]]:
    """Return the field that contains the answer, and the values that the answer may have, in order of preference."""
    data = [number for number, part in enumerate(message.parts) if part.HasField("data")]
    if len(data) > 1:
        raise AnswerRefused("message.parts", [Violation("", "Send one data part with the complete answer.")])
    if data:
        field = f"message.parts[{data[0]}].data"
        return field, [_require_bounded(field, whole_numbers(MessageToDict(message.parts[data[0]].data)))]
    texts = [number for number, part in enumerate(message.parts) if part.HasField("text")]
    text = get_message_text(message)
    if not text.strip():
        raise AnswerRefused("message.parts", [Violation("", "Send the answer as a data part, or as JSON text.")])
    field = f"message.parts[{texts[0]}].text"
    _require_bounded(field, text)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return field, [text]
    return field, [_require_bounded(field, whole_numbers(value)), text]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _require_bounded(field: str, value: Any) -> Any:
    if depth_exceeds(value):
        raise AnswerRefused(field, [Violation("", f"The answer is nested deeper than {MAX_DEPTH} levels.")])
    if len(json.dumps(value)) > MAX_ANSWER_BYTES:
        text = f"The answer is larger than {MAX_ANSWER_BYTES} bytes: send a shorter one."
        raise AnswerRefused(field, [Violation("", text)])
    return value


class AnswerType:
    """Type of the answers to a question.

    Args:
        schema: A type that Pydantic validates, or a JSON Schema.

    Raises:
        ValueError: `checked_schema` refuses the schema.
    """

    def __init__(self, schema: Any) -> None:
        self._adapter: TypeAdapter[Any] | None = None
        if not isinstance(schema, Mapping):
            self._adapter = TypeAdapter(schema)
            schema = type_schema(self._adapter)
        self.schema = checked_schema(schema)

    def parse(self, message: Message) -> Any:
        """Return the answer in `message` as an instance of the type or, for a JSON Schema, as a JSON value.

        Raises:
            AnswerRefused: The answer does not match the schema or the type.
        """
        return self.validated(fitting_answer(self.schema, message))

    def validated(self, value: Any, path: str = "") -> Any:
        """Convert a JSON `value` that matches the schema to an instance of the type.

        Raises:
            AnswerRefused: A validator of the type refuses the value.
        """
        if self._adapter is None:
            return value
        try:
            return self._adapter.validate_json(json.dumps(value))
        except ValidationError as e:
            errors = e.errors(include_url=False, include_context=False, include_input=False)[:MAX_REASONS]
            raise AnswerRefused("message.parts", [_refusal(path, error) for error in errors]) from None


class AnswerTypes:
    """Types of the answers to several questions. The client answers with one JSON object, which maps the key of each
    question to a value.

    Args:
        questions: Questions by key.

    Raises:
        ValueError: There is no question, a key is empty or not a string, or `checked_schema` refuses a schema.
    """

    def __init__(self, questions: Mapping[str, Question]) -> None:
        if not questions or not all(isinstance(key, str) and key for key in questions):
            raise ValueError("ask_all requires at least one question, and each key must be a non-empty string")
        self._types = {key: AnswerType(_schema_of(question)) for key, question in questions.items()}
        combined_fields = {key: (questions[key].text, answer_type.schema) for key, answer_type in self._types.items()}
        self.schema = checked_schema(combined_schema(combined_fields))

    def parse(self, message: Message) -> dict[str, Any]:
        """Return the answers in `message`, keyed like the questions.

        Raises:
            AnswerRefused: An answer is missing, or does not match its schema or type.
        """
        values = fitting_answer(self.schema, message)
        answers: dict[str, Any] = {}
        violations: list[Violation] = []
        for key, answer_type in self._types.items():
            try:
                answers[key] = answer_type.validated(values[key], f".{key}")
            except AnswerRefused as e:
                violations += e.violations
        if violations:
            raise AnswerRefused("message.parts", violations)
        return answers


def _schema_of(question: Question) -> Any:
    return {"type": "string"} if question.schema is None else question.schema


def _refusal(path: str, error: Mapping[str, Any]) -> Violation:
    inner = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error["loc"])
    text = str(error["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return Violation(path + inner, f"{text[:MAX_TEXT].rstrip('.')}.")
