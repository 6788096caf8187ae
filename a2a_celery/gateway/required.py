"""Whether a request has the fields that it must have.

The SDK's own check reads what the .proto says of each field anew, for every message of every request, and looks through
all of a client's structured data, where nothing is required. Here that is read once for each type, and the SDK is
asked only for what it says of a request that lacks something.

Source: A2A specification 5.7; ``google.api.field_behavior``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import validate_proto_required_fields
from google.api.field_behavior_pb2 import FieldBehavior, field_behavior
from google.protobuf.message import Message as Proto

from .faults import invalid_fields

WHAT_TO_SEND = {
    "message.role": 'Send ROLE_USER: A2A 1.0 has no role "user".',
    "message.message_id": "Send an id of your choice that is new, such as a UUID.",
    "message.parts": 'Send one part or more, such as {"text": "hello"}.',
}
"""By required field: the value to send, where the SDK only says that the field is required."""


def require_fields(params: Proto) -> None:
    """Raise InvalidParamsError, which names them, if required fields are missing or empty."""
    if _complete(params):
        return
    try:
        validate_proto_required_fields(params)
    except InvalidParamsError as e:
        errors = (e.data or {}).get("errors", [])
        raise invalid_fields(
            [error | {"message": WHAT_TO_SEND.get(error["field"], error["message"])} for error in errors]
        ) from None


def _complete(message: Proto) -> bool:
    required, below = _checked(message.DESCRIPTOR)
    filled = {field.name: value for field, value in message.ListFields()}
    return required <= filled.keys() and all(
        _complete(inner) for name in below if name in filled for inner in _messages(filled[name])
    )


def _messages(value: Any) -> Iterable[Any]:
    if isinstance(value, Proto):
        return (value,)
    return value.values() if isinstance(value, Mapping) else value


@cache
def _checked(kind: Any) -> tuple[frozenset[str], tuple[str, ...]]:
    """The required fields of a type of message, and those that hold messages with such."""
    required = frozenset(field.name for field in kind.fields if _is_required(field))
    return required, tuple(
        field.name for field in kind.fields if field.message_type is not None and _requires(field.message_type, ())
    )


def _requires(kind: Any, above: tuple[Any, ...]) -> bool:
    """Whether anything is required in a type, or below it; types `above` it are being asked already."""
    return any(
        _is_required(field)
        or (
            field.message_type is not None
            and field.message_type not in above
            and _requires(field.message_type, (*above, kind))
        )
        for field in kind.fields
    )


def _is_required(field: Any) -> bool:
    return FieldBehavior.REQUIRED in field.GetOptions().Extensions[field_behavior]
