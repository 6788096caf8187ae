"""Conversion of an A2A message to validated keyword arguments of a plain Celery task.

A client sends the arguments as a data part that contains an object. The text of a text part is assigned to the only
argument that accepts text. A later message to the same task adds arguments, so the answer to a question may contain
only the missing argument.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from a2a.helpers import get_message_text
from a2a.types import Message
from celery import Task
from google.protobuf.json_format import MessageToDict
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from ...agents import require_named_arguments
from ...lifecycle.json_values import INEXACT, MAX_EXACT

KOMBUS = {"__type__", "__value__"}
"""Keys of a Python value in kombu's JSON format. Workers silently drop a message that contains such a value of an
unknown type."""


MAX_DEPTH = 5
"""Maximum depth of an example of an argument."""


class BadCall(ValueError):
    """Error for a message that is not a valid call. The text of the exception tells the client what to send instead."""


@dataclass(frozen=True, slots=True)
class Argument:
    """Argument of a task.

    Attributes:
        name: Name of the argument.
        required: True if the argument has no default.
        takes_text: True if a text can be the value.
        check: Validator of the value, or None if any JSON value is accepted.
        shown: Argument with its type and default, as clients see it.
    """

    name: str
    required: bool
    takes_text: bool
    check: TypeAdapter[Any] | None
    shown: str

    def example(self) -> Any:
        """Return a value of the type of the argument, or "…" for a text or an unknown type."""
        if self.check is None:
            return "…"
        schema = self.check.json_schema()
        return _example(schema, schema.get("$defs", {}))

    def value(self, value: Any) -> Any:
        """Validate `value`, and return it as the JSON value that the task receives.

        Raises:
            BadCall: `value` is invalid for the type of the argument.
        """
        if self.check is None:
            return value
        try:
            json_value = self.check.dump_python(self.check.validate_python(value), mode="json")
        except ValidationError as e:
            raise BadCall(f"{self.name}: {e.errors()[0]['msg']}.") from None
        if not _large_numbers(value, float).isdisjoint(_large_numbers(json_value, int)):
            raise BadCall(f"{self.name}: {INEXACT}")
        return json_value


@dataclass(frozen=True, slots=True)
class CallSignature:
    """Arguments that a plain Celery task accepts.

    Attributes:
        arguments: Arguments by name.
        takes_more: True if the task also accepts any other keyword arguments.
    """

    arguments: Mapping[str, Argument]
    takes_more: bool

    @classmethod
    def of(cls, task: Task) -> CallSignature:
        """Return the signature of `task`.

        Raises:
            ConfigError: The task has an argument that cannot be passed by name.
        """
        require_named_arguments(task)
        parameters = inspect.signature(task.run).parameters.values()
        try:
            hints = get_type_hints(task.run)
        except Exception:  # for example, a name that exists for type checkers only
            hints = {}
        arguments = {
            parameter.name: _argument(parameter, hints.get(parameter.name, Any))
            for parameter in parameters
            if parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        }
        takes_more = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
        return cls(arguments, takes_more)

    def call(self, messages: Sequence[Message]) -> dict[str, Any]:
        """Return the keyword arguments in `messages`. Arguments in later messages take precedence.

        Raises:
            BadCall: An argument is unknown, missing or invalid, or a part of a message is not an argument.
        """
        values: dict[str, Any] = {}
        for message in messages:
            values |= self._data(message)
            if any(part.HasField("text") for part in message.parts):
                values[self._text_argument(values)] = get_message_text(message)
        unknown = sorted(set(values) - set(self.arguments))
        if unknown and not self.takes_more:
            raise BadCall(f"There is no argument {unknown[0]!r}: {self._expected_content()}")
        required_names = [argument.name for argument in self.arguments.values() if argument.required]
        missing = [name for name in required_names if name not in values]
        if missing:
            raise BadCall(f"{missing[0]} is missing: {self._expected_content()}")
        _require_no_kombu_value(values)  # several parts or messages may form such an object
        return {name: self.arguments[name].value(v) if name in self.arguments else v for name, v in values.items()}

    @property
    def takes_text(self) -> bool:
        return any(argument.takes_text for argument in self.arguments.values())

    def __str__(self) -> str:
        return ", ".join(argument.shown for argument in self.arguments.values())

    def _data(self, message: Message) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for part in message.parts:
            if part.HasField("data"):
                value = _whole(MessageToDict(part.data))
                if not isinstance(value, dict):
                    raise BadCall(f"A data part must be an object: {self._expected_content()}")
                data |= value
            elif not part.HasField("text"):
                raise BadCall(f"A file cannot be an argument of the task: {self._expected_content()}")
        return data

    def _text_argument(self, values: Mapping[str, Any]) -> str:
        """Return the name of the argument to which the text of a message is assigned.

        Arguments without a value in `values` take precedence over arguments with a value. Among arguments without a
        value, required arguments take precedence over optional arguments.

        Raises:
            BadCall: No argument accepts text, or several arguments with the same precedence do.
        """
        accepting = [argument for argument in self.arguments.values() if argument.takes_text]
        missing = [argument for argument in accepting if argument.name not in values]
        for candidates in ([argument for argument in missing if argument.required], missing, accepting):
            if len(candidates) == 1:
                return candidates[0].name
            if candidates:
                break
        raise BadCall(f"The text does not match exactly one argument of the task: {self._expected_content()}")

    def _expected_content(self) -> str:
        if not self.arguments:
            return "send a data part, an object."
        required_names = [argument.name for argument in self.arguments.values() if argument.required]
        example = {name: self.arguments[name].example() for name in required_names or self.arguments}
        return f"send a data part like {json.dumps(example, ensure_ascii=False)}. Arguments: {self}."


_EXAMPLES: Mapping[str, Any] = {"integer": 0, "number": 0.0, "boolean": False, "array": [], "object": {}, "null": None}
"""Example value for each type of JSON schema except "string"."""


def _example(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int = 0) -> Any:
    """Return an example of the type of a JSON `schema`, with the required properties of an object."""
    schema = definitions.get(schema.get("$ref", "").rpartition("/")[2], schema)
    if "anyOf" in schema and depth < MAX_DEPTH:
        return _example(schema["anyOf"][0], definitions, depth + 1)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if schema.get("type") == "object" and depth < MAX_DEPTH:
        properties = schema.get("properties", {})
        return {name: _example(properties[name], definitions, depth + 1) for name in schema.get("required", ())}
    return _EXAMPLES.get(schema.get("type", ""), "…")


def _argument(parameter: inspect.Parameter, hint: Any) -> Argument:
    check = None
    if hint is not Any:
        try:
            check = TypeAdapter(hint)
            check.json_schema()  # a type that JSON cannot represent is not checked
        except (PydanticSchemaGenerationError, PydanticUserError):
            check = None
    is_required = parameter.default is inspect.Parameter.empty
    return Argument(parameter.name, is_required, hint in (str, Any, str | None), check, str(parameter).replace("'", ""))


def _large_numbers(value: Any, kind: type) -> set[float]:
    """Return the whole numbers of the type `kind` in the JSON `value` that a double may not represent exactly."""
    match value:
        case int() | float() if isinstance(value, kind) and abs(value) > MAX_EXACT:
            return {value}
        case dict():
            return set().union(*(_large_numbers(inner, kind) for inner in value.values()))
        case list():
            return set().union(*(_large_numbers(inner, kind) for inner in value))
        case _:
            return set()


def _require_no_kombu_value(value: Mapping[str, Any]) -> None:
    if value.keys() == KOMBUS:
        raise BadCall(f"An object with only {' and '.join(sorted(KOMBUS))} is not accepted: rename one of them.")


def _whole(value: Any) -> Any:
    """Convert whole floats in the JSON `value` to integers, because A2A transfers every number as a float.

    Raises:
        BadCall: An object in `value` has exactly the keys in `KOMBUS`, so kombu would decode it as a Python value.
    """
    match value:
        case float() if value.is_integer() and abs(value) <= MAX_EXACT:
            return int(value)
        case dict():
            _require_no_kombu_value(value)
            return {key: _whole(inner) for key, inner in value.items()}
        case list():
            return [_whole(inner) for inner in value]
        case _:
            return value
