"""Keyword arguments of a plain Celery task from an A2A message, checked against the task's signature.

A client sends the arguments as a data part with an object. A text becomes the only argument that accepts text. A later
message to the same task adds arguments, so the answer to a question may be the missing argument alone.
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

from ..agents import require_named_arguments

KOMBUS = {"__type__", "__value__"}
"""Keys of kombu's JSON form of a Python value. Workers silently drop a message that has such a value of an unknown
type."""


class BadCall(ValueError):
    """The message is not a valid call. The text tells the client what to send instead."""


@dataclass(frozen=True, slots=True)
class Argument:
    """Argument of a task. `check` validates its type, or is None for any JSON value."""

    name: str
    required: bool
    takes_text: bool
    check: TypeAdapter[Any] | None
    shown: str

    def value(self, given: Any) -> Any:
        """Return `given` as the task receives it, a JSON value: 3.0 becomes 3 for a whole number.

        Raises:
            BadCall: `given` has another type.
        """
        if self.check is None:
            return given
        try:
            return self.check.dump_python(self.check.validate_python(given), mode="json")
        except ValidationError as e:
            raise BadCall(f"{self.name}: {e.errors()[0]['msg']}.") from None


@dataclass(frozen=True, slots=True)
class CallSignature:
    """Named arguments that a task accepts, and any others if `takes_more` is True."""

    arguments: Mapping[str, Argument]
    takes_more: bool

    @classmethod
    def of(cls, task: Task) -> CallSignature:
        """Return the signature of `task`.

        Raises:
            ConfigError: Clients cannot name one of its arguments.
        """
        require_named_arguments(task)
        parameters = inspect.signature(task.run).parameters.values()
        try:
            hints = get_type_hints(task.run)
        except Exception:  # a name that exists for type checkers only
            hints = {}
        found = {}
        for one in parameters:
            if one.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                continue
            found[one.name] = _argument(one, hints.get(one.name, Any))
        return cls(found, any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters))

    def call(self, messages: Sequence[Message]) -> dict[str, Any]:
        """Return the keyword arguments of `messages`. Later messages take precedence.

        Raises:
            BadCall: An argument is unknown, missing or of another type.
        """
        given: dict[str, Any] = {}
        for message in messages:
            given |= self._data(message)
            if any(part.HasField("text") for part in message.parts):
                given[self._text_argument(given)] = get_message_text(message)
        unknown = sorted(set(given) - set(self.arguments))
        if unknown and not self.takes_more:
            raise BadCall(f"There is no argument {unknown[0]!r}: {self._wanted()}")
        missing = [one.name for one in self.arguments.values() if one.required and one.name not in given]
        if missing:
            raise BadCall(f"{missing[0]} is missing: {self._wanted()}")
        _require_no_kombu_value(given)  # several parts or messages may form such an object
        return {name: self.arguments[name].value(v) if name in self.arguments else v for name, v in given.items()}

    @property
    def takes_text(self) -> bool:
        return any(one.takes_text for one in self.arguments.values())

    def __str__(self) -> str:
        return ", ".join(one.shown for one in self.arguments.values())

    def _data(self, message: Message) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for part in message.parts:
            if part.HasField("data"):
                value = _whole(MessageToDict(part.data))
                if not isinstance(value, dict):
                    raise BadCall(f"A data part has to be an object: {self._wanted()}")
                found |= value
            elif not part.HasField("text"):
                raise BadCall(f"Files are no arguments: {self._wanted()}")
        return found

    def _text_argument(self, given: Mapping[str, Any]) -> str:
        """Return the only argument that could take a text; required arguments come first."""
        takes = [one for one in self.arguments.values() if one.takes_text]
        left = [one for one in takes if one.name not in given]
        for candidates in ([one for one in left if one.required], left, takes):
            if len(candidates) == 1:
                return candidates[0].name
            if candidates:
                break
        raise BadCall(f"A text could be several arguments, or none: {self._wanted()}")

    def _wanted(self) -> str:
        if not self.arguments:
            return "send a data part, an object."
        example = {one.name: "…" for one in self.arguments.values() if one.required} or {
            one.name: "…" for one in self.arguments.values()
        }
        return f"send a data part like {json.dumps(example, ensure_ascii=False)}. Arguments: {self}."


def _argument(parameter: inspect.Parameter, hint: Any) -> Argument:
    check = None
    if hint is not Any:
        try:
            check = TypeAdapter(hint)
            check.json_schema()  # a type without a form in JSON is not checked
        except (PydanticSchemaGenerationError, PydanticUserError):
            check = None
    required = parameter.default is inspect.Parameter.empty
    return Argument(parameter.name, required, hint in (str, Any, str | None), check, str(parameter).replace("'", ""))


def _require_no_kombu_value(found: Mapping[str, Any]) -> None:
    if found.keys() == KOMBUS:
        raise BadCall(f"An object with only {' and '.join(sorted(KOMBUS))} is not accepted: rename one of them.")


def _whole(value: Any) -> Any:
    """Return `value` with integers in place of floats without a fraction, because A2A's numbers are floats.

    Raises:
        BadCall: An integer does not fit into a float.
    """
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case dict():
            _require_no_kombu_value(value)
            return {key: _whole(inner) for key, inner in value.items()}
        case list():
            return [_whole(inner) for inner in value]
        case _:
            return value
