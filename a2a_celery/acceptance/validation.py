"""Validation of a message before anything is stored, with the specification's errors.

The SDK's check of required fields is used only to find the missing fields of an incomplete request. This check is slow,
because it reads the .proto's options again for every message of every request and descends into structured data.

Source: A2A specification 3.3.4 (capabilities), 3.4 (identifiers), 5.7 (required fields, ``google.api.field_behavior``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from math import isfinite
from typing import Any

from a2a.types import AgentCard, Message, Role, SendMessageRequest
from a2a.utils.errors import ContentTypeNotSupportedError, ExtensionSupportRequiredError, InvalidParamsError
from a2a.utils.proto_utils import validate_proto_required_fields
from google.api.field_behavior_pb2 import FieldBehavior, field_behavior
from google.protobuf.message import Message as Proto

from ..lifecycle.events import TOO_DEEP, levels_of_values, values_in
from .errors import MAX_ID_LENGTH, invalid, invalid_fields

MAX_JSON_VALUES = 20_000
"""Maximum number of JSON values in a request. Each value blocks the event loop for several microseconds, mostly in
protobuf's parser."""

MAX_REFERENCES = 16
"""Maximum number of tasks that a message may refer to, because the worker reads all of them before the agent starts."""


def require_extensions(card: AgentCard, uris: Collection[str]) -> None:
    """Raise ExtensionSupportRequiredError if the client did not request an extension that the card requires."""
    missing = sorted(
        extension.uri for extension in card.capabilities.extensions if extension.required and extension.uri not in uris
    )
    if missing:
        raise ExtensionSupportRequiredError(
            f"This agent requires the extension {missing[0]}: add its URI to the A2A-Extensions header",
            data={"extension": missing[0]},
        )


def check_message(message: Message) -> None:
    """Raise InvalidParamsError for a role, an id, a reference or a part that a client's message cannot have."""
    if message.role != Role.ROLE_USER:
        raise invalid("message.role", "Must be ROLE_USER in a client's message.")
    _check_ids(message)
    for number, part in enumerate(message.parts):
        if part.WhichOneof("content") is None:
            raise invalid(f"message.parts[{number}]", "Must contain one of: text, raw, url, data.")


def check_media_types(message: Message, card: AgentCard) -> None:
    """Raise ContentTypeNotSupportedError for a part with a media type that neither the card nor one of its skills
    declares. A card without input modes accepts all media types.

    Case and parameters, such as ``charset``, are ignored (RFC 9110, section 8.3.1).
    """
    media_types = [part.media_type for part in message.parts if part.media_type]
    if not media_types:
        return
    input_modes = {*card.default_input_modes, *(mode for skill in card.skills for mode in skill.input_modes)}
    accepted = set(map(_without_parameters, input_modes))
    refused = next((name for name in media_types if _without_parameters(name) not in accepted), None)
    if accepted and refused is not None:
        raise ContentTypeNotSupportedError(
            f"Media type {refused[:MAX_ID_LENGTH]} is not supported. "
            f"Supported input modes: {', '.join(sorted(input_modes))}"
        )


def _without_parameters(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()


def _check_ids(message: Message) -> None:
    for field in ("message_id", "context_id", "task_id"):
        if len(getattr(message, field)) > MAX_ID_LENGTH:
            raise invalid(f"message.{field}", f"At most {MAX_ID_LENGTH} characters.")
    if len(message.reference_task_ids) > MAX_REFERENCES:
        raise invalid("message.reference_task_ids", f"At most {MAX_REFERENCES} tasks.")
    if any(len(task_id) > MAX_ID_LENGTH for task_id in message.reference_task_ids):
        raise invalid("message.reference_task_ids", f"At most {MAX_ID_LENGTH} characters each.")


def check_values(params: SendMessageRequest) -> None:
    """Check the structured values of a request.

    Raises:
        InvalidParamsError: The request has too many values, a number that JSON cannot represent, or a value that is
            nested too deeply; see `MAX_VALUE_DEPTH`. The stored task could not be read.
    """
    message = params.message
    count = sum(map(len, (message.parts, message.extensions, params.configuration.accepted_output_modes)))
    for level, is_too_deep in levels_of_values(values_in(message.parts, params.metadata, message.metadata)):
        if is_too_deep:
            raise invalid("message", f"Data or metadata is {TOO_DEEP}.")
        count += len(level)
        if count > MAX_JSON_VALUES:
            break
        if not all(isfinite(value.number_value) for value in level):
            raise invalid("message", "Numbers must be finite: JSON has neither NaN nor infinity.")
    if count > MAX_JSON_VALUES:
        raise invalid("message.parts", f"At most {MAX_JSON_VALUES} values: send large data as a file part.")


WHAT_TO_SEND = {
    "message.role": 'Send ROLE_USER: A2A 1.0 has no role "user".',
    "message.message_id": "Send a new id of your choice, such as a UUID.",
    "message.parts": 'Send at least one part, such as {"text": "hello"}.',
}
"""Error texts for required fields. The SDK's text only states that a field is required."""


def require_fields(params: Proto) -> None:
    """Raise InvalidParamsError with the names of all required fields that are missing or empty."""
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
    required_names, below = _required_fields(message.DESCRIPTOR)
    values = {field.name: value for field, value in message.ListFields()}
    return required_names <= values.keys() and all(
        _complete(inner) for name in below if name in values for inner in _messages(values[name])
    )


def _messages(value: Any) -> Iterable[Any]:
    if isinstance(value, Proto):
        return (value,)
    return value.values() if isinstance(value, Mapping) else value


@cache
def _required_fields(kind: Any) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the required fields of a message type, and the fields whose message types have required fields."""
    required_names = frozenset(field.name for field in kind.fields if _is_required(field))
    return required_names, tuple(
        field.name for field in kind.fields if field.message_type is not None and _requires(field.message_type, ())
    )


def _requires(kind: Any, above: tuple[Any, ...]) -> bool:
    """Return True if a message type, or a type inside it, has required fields. The recursion ends at the enclosing
    types `above`."""
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
