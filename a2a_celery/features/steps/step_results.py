"""Encoding of the results and failures of durable steps, as entries of a journal.

A result is a JSON value, bytes, a pydantic model, a dataclass or a protobuf message. The form of an entry identifies
the encoding and, for the last three encodings, the class: ``pydantic acme.models:Page``, ``protobuf acme.v1.Page``. The
module of the class must be loaded when the result is read. No module is imported because of an entry, so that a writer
to the store cannot make a worker run the code of other modules.
"""

from __future__ import annotations

import json
import sys
from dataclasses import is_dataclass
from functools import cache
from typing import Any

from google.protobuf.descriptor_pool import Default
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto
from google.protobuf.message_factory import GetMessageClass
from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError

from ...errors import StepError, StepFailed
from ...lifecycle.json_values import json_bytes, portable_text
from ...lifecycle.saved_json import require_text_keys

FAILURE = "failure"
"""Form of the entry of a failed step."""


class UnreadableResult(Exception):
    """Error for a recorded result that does not fit the agent's code. The message of the error states the reason."""


def encode_result(step: str, value: Any) -> tuple[str, bytes]:
    """Return the form and the content of the journal entry for a step's result.

    Raises:
        StepError: The value cannot be recorded.
    """
    if isinstance(value, bytes):
        return "bytes", value
    kind = _class_kind(type(value))
    if kind is None:
        return "json", _json(step, value)
    name = _name_of(type(value))
    if name is None:
        raise StepError(
            f"step {step!r} returned a {type(value).__qualname__}, which cannot be found by its name: define the "
            "class at the top of a module"
        )
    try:
        content = _dump(kind, value)
    except Exception as error:  # exceptions of the class's serializers
        raise StepError(f"step {step!r}: its {type(value).__qualname__} cannot be serialized: {error}") from error
    try:
        _load(kind, type(value), content)
    except Exception as error:  # exceptions of the class's validators
        text = f"step {step!r}: its {type(value).__qualname__} cannot be read from its JSON: {error}"
        raise StepError(text) from error
    return f"{kind} {name}", content


def decode_result(form: str, content: bytes) -> Any:
    """Return the result of a step from the form and the content of its journal entry.

    Raises:
        UnreadableResult: The class of the result was removed, or does not accept the recorded content.
    """
    kind, _, name = form.partition(" ")
    match kind:
        case "bytes":
            return content
        case "json":
            return json.loads(content)
    cls = _protobuf_class(name) if kind == "protobuf" else _loaded_class(name)
    if cls is None or _class_kind(cls) != kind:
        raise UnreadableResult(f"the class {name} of its result does not exist or is not loaded: import it at the top")
    try:
        return _load(kind, cls, content)
    except (ValueError, TypeError, DecodeError) as error:
        raise UnreadableResult(f"its result does not fit the class {name}: {error}") from error


def encode_failure(step: str, error: Exception) -> tuple[bytes, Exception]:
    """Return the content of the journal entry for a failed step, and the exception that the agent receives.

    The exception is `error` if it can be recreated from its class and arguments, and a `StepFailed` otherwise.
    """
    name = f"{type(error).__module__}:{type(error).__qualname__}"
    content = _failure(name, error.args)
    if content is not None and _is_equal(error, _exception(content)):
        return content, error
    text = portable_text(str(error))  # the text of a file name may not be Unicode
    failure = StepFailed(step, name.replace(":", "."), text)
    failure.__cause__ = error
    content = _failure("a2a_celery.errors:StepFailed", failure.args)
    assert content is not None
    return content, failure


def decode_failure(content: bytes) -> Exception:
    """Return the exception of a failed step from the content of its journal entry.

    Raises:
        UnreadableResult: The class of the exception was removed, or does not accept the recorded arguments.
    """
    error = _exception(content)
    if error is None:
        name = json.loads(content)["class"]
        raise UnreadableResult(f"its exception {name} cannot be created or is not loaded: import it at the top")
    return error


def _class_kind(cls: type) -> str | None:
    if issubclass(cls, BaseModel):
        return "pydantic"
    if issubclass(cls, Proto):
        return "protobuf"
    return "dataclass" if is_dataclass(cls) else None


def _json(step: str, value: Any) -> bytes:
    try:
        text = json_bytes(value)
        require_text_keys(value, f"the result of step {step!r}")
    except (TypeError, ValueError, RecursionError) as error:
        raise StepError(
            f"step {step!r} returned a {type(value).__qualname__} that cannot be recorded: {error}. Return JSON data, "
            "bytes, a pydantic model, a dataclass or a protobuf message"
        ) from None
    return text


def _dump(kind: str, value: Any) -> bytes:
    match kind:
        case "pydantic":
            try:
                text: str = value.model_dump_json(by_alias=True, round_trip=True)
            except PydanticSerializationError:  # perhaps half of a surrogate pair
                return _unicode(value.model_dump(mode="json", by_alias=True, round_trip=True))
            return text.encode()
        case "protobuf":
            content: bytes = value.SerializeToString(deterministic=True)
            return content
        case _:
            cls: type = type(value)
            adapter = _adapter(cls)
            try:
                return adapter.dump_json(value, by_alias=True, round_trip=True)
            except PydanticSerializationError:
                return _unicode(adapter.dump_python(value, mode="json", by_alias=True, round_trip=True))


def _unicode(value: Any) -> bytes:
    """Return the JSON `value` as bytes that Pydantic can read, without halves of surrogate pairs."""
    return portable_text(json.dumps(value, ensure_ascii=False)).encode()


def _load(kind: str, cls: Any, content: bytes) -> Any:
    match kind:
        case "pydantic":
            return cls.model_validate_json(content)
        case "protobuf":
            return cls.FromString(content)
        case _:
            return _adapter(cls).validate_json(content)


@cache
def _adapter(cls: type) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def _name_of(cls: Any) -> str | None:
    """Return the name by which a class can be found ("module:name", or the name of a protobuf type), or None."""
    if issubclass(cls, Proto):
        full_name: str = cls.DESCRIPTOR.full_name
        return full_name if _protobuf_class(full_name) is cls else None
    name = f"{cls.__module__}:{cls.__qualname__}"
    return name if _loaded_class(name) is cls else None


def _protobuf_class(full_name: str) -> Any:
    """Return the class of a protobuf type, or None if there is no such type.

    The class is found by its type name, because the ``__module__`` of a generated class may not be importable.
    """
    try:
        return GetMessageClass(Default().FindMessageTypeByName(full_name))
    except KeyError:
        return None


def _loaded_class(name: str) -> Any:
    """Return the class "module:name" of a loaded module, or None if there is no such class."""
    module, _, path = name.partition(":")
    try:
        value: Any = sys.modules.get(module)
        for attribute in path.split("."):
            value = getattr(value, attribute)
    except Exception:  # the module may define __getattr__, which may raise anything
        return None
    return value if isinstance(value, type) else None


def _failure(name: str, arguments: tuple[Any, ...]) -> bytes | None:
    try:
        return json_bytes({"class": name, "args": arguments})
    except (TypeError, ValueError, RecursionError):
        return None


def _exception(content: bytes) -> Exception | None:
    failure = json.loads(content)
    cls = _loaded_class(failure["class"])
    if cls is None or not issubclass(cls, Exception):
        return None
    try:
        error = cls(*failure["args"])
    except Exception:  # exceptions of the constructor
        return None
    return error if isinstance(error, Exception) else None


def _is_equal(error: Exception, copy: Exception | None) -> bool:
    return type(copy) is type(error) and copy.args == error.args and str(copy) == str(error)
