"""Validation of requests before anything is stored. Each failure raises the error that the specification defines.

Required fields are checked without the SDK, whose check reads the options of the .proto again for every message and
descends into structured data. For an incomplete request, the SDK's check names the missing fields.

Source: A2A specification 3.3.4 (capabilities), 3.4 (identifiers), 4.6.3 (required extensions), 5.7 (required fields,
``google.api.field_behavior``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from math import isfinite
from typing import Any

from a2a.server.context import ServerCallContext
from a2a.types import AgentCard, ListTasksRequest, Message, Role, SendMessageRequest, TaskState
from a2a.utils.errors import (
    ExtensionSupportRequiredError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)
from a2a.utils.input_mode_validator import validate_input_modes
from a2a.utils.proto_utils import validate_proto_required_fields
from google.api.field_behavior_pb2 import FieldBehavior, field_behavior
from google.protobuf.message import Message as Proto
from google.protobuf.struct_pb2 import Value

from ...lifecycle import EventId
from ..auth.schemes import Identity
from ..middleware.bodies import MAX_JSON_VALUES
from ..protocol_errors import LAST_EVENT_ID, MAX_ID_LENGTH, PermissionDeniedError, invalid, invalid_fields

BOUNDS = {**dict.fromkeys(("tenant", "id", "task_id", "context_id"), MAX_ID_LENGTH), "page_token": 1024}
"""Maximum length of each identifier field. Most identifiers become part of a Redis key."""

MAX_REFERENCES = 16
"""Maximum number of tasks that a message may refer to, because the worker reads all of them before the agent starts."""


def require_tenant(context: ServerCallContext) -> None:
    """Raise PermissionDeniedError for a tenant that the caller may not use, whether or not the tenant has tasks."""
    if isinstance(context.user, Identity) and not context.user.may_use(context.tenant):
        raise PermissionDeniedError("Not permitted in this tenant: use a tenant that your credentials allow")


def require_extended_card(card: AgentCard, context: ServerCallContext) -> None:
    """Raise UnsupportedOperationError unless the card declares an extended card.

    Raise PermissionDeniedError for an unauthenticated request that the authentication of an outer application accepted.
    """
    if not card.capabilities.extended_agent_card:
        raise UnsupportedOperationError("This agent has no extended card")
    if "auth" in context.state and not context.user.is_authenticated:
        raise PermissionDeniedError("The extended card is for authenticated callers")


def require_streaming(card: AgentCard) -> None:
    """Raise UnsupportedOperationError unless the card declares streaming."""
    if not card.capabilities.streaming:
        raise UnsupportedOperationError("Streaming is not supported by this agent")


def require_push(card: AgentCard) -> None:
    """Raise PushNotificationNotSupportedError unless the card declares push notifications."""
    if not card.capabilities.push_notifications:
        raise PushNotificationNotSupportedError("Push notifications are not supported by this agent")


def require_extensions(card: AgentCard, context: ServerCallContext) -> None:
    """Raise ExtensionSupportRequiredError if the client did not declare an extension that the card requires."""
    missing = sorted(
        extension.uri
        for extension in card.capabilities.extensions
        if extension.required and extension.uri not in context.requested_extensions
    )
    if missing:
        raise ExtensionSupportRequiredError(
            f"This agent requires the extension {missing[0]}: name it in A2A-Extensions", data={"extension": missing[0]}
        )


def check_send(params: SendMessageRequest, card: AgentCard, context: ServerCallContext) -> None:
    """Validate a message as far as that is possible without its task.

    Raises:
        A2AError: The first failure.
    """
    require_extensions(card, context)
    message, configuration = params.message, params.configuration
    if message.role != Role.ROLE_USER:
        raise invalid("message.role", "Must be ROLE_USER in a client's message.")
    _check_ids(message)
    for number, part in enumerate(message.parts):
        if part.WhichOneof("content") is None:
            raise invalid(f"message.parts[{number}]", "Must contain one of: text, raw, url, data.")
    if configuration.HasField("task_push_notification_config"):
        require_push(card)
    check_history_length(configuration, "configuration.history_length")
    validate_input_modes(message, card)


def check_bounds(params: Proto, context: ServerCallContext) -> None:
    """Raise InvalidParamsError for an identifier or page token that is too long."""
    values = [(name, getattr(params, name)) for name in BOUNDS if name in params.DESCRIPTOR.fields_by_name]
    for name, value in [*values, ("tenant", context.tenant)]:  # the tenant may be in the path and not in the request
        if len(value) > BOUNDS[name]:
            raise invalid(name, f"At most {BOUNDS[name]} characters.")


def check_history_length(holder: Proto, field: str = "history_length") -> None:
    """Raise InvalidParamsError for a negative history length."""
    if getattr(holder, "history_length", 0) < 0:
        raise invalid(field, "A number of messages, 0 or more.")


def last_event_id(context: ServerCallContext) -> EventId | None:
    """Return the event after which a stream resumes, or None if the client sent no event id.

    Raises:
        InvalidParamsError: The header is not an event id.
    """
    text = context.state.get("headers", {}).get(LAST_EVENT_ID)
    if not text:
        return None
    try:
        return EventId.parse(text)
    except ValueError:
        raise invalid(
            LAST_EVENT_ID, "The id of an event of this task's stream, such as 7 or 7-1767225600000000."
        ) from None


def check_list(params: ListTasksRequest) -> None:
    """Raise InvalidParamsError for an unknown status, or a page size or history length out of range."""
    check_history_length(params)
    if params.status not in TaskState.values():
        raise invalid("status", f"One of {', '.join(TaskState.keys())}.")
    if params.HasField("page_size") and not 1 <= params.page_size <= 100:
        raise invalid("page_size", "A number of tasks from 1 to 100.")
    if params.HasField("status_timestamp_after"):
        try:
            params.status_timestamp_after.ToDatetime()
        except (ValueError, OverflowError):
            raise invalid("status_timestamp_after", "A time between the years 1 and 9999.") from None


def _check_ids(message: Message) -> None:
    for field in ("message_id", "context_id", "task_id"):
        if len(getattr(message, field)) > MAX_ID_LENGTH:
            raise invalid(f"message.{field}", f"At most {MAX_ID_LENGTH} characters.")
    if len(message.reference_task_ids) > MAX_REFERENCES:
        raise invalid("message.reference_task_ids", f"At most {MAX_REFERENCES} tasks.")
    if any(len(task_id) > MAX_ID_LENGTH for task_id in message.reference_task_ids):
        raise invalid("message.reference_task_ids", f"At most {MAX_ID_LENGTH} characters each.")


def check_values(params: SendMessageRequest) -> None:
    """Reject values that protobuf allows in a message but JSON does not. A JSON body is checked before it is parsed.

    Raises:
        InvalidParamsError: The message has too many values, or a number that JSON cannot represent, which would make
            the stored task unreadable.
    """
    message = params.message
    lists = (message.parts, message.extensions, params.configuration.accepted_output_modes)
    structs = [params.metadata, message.metadata, *(part.metadata for part in message.parts)]
    level = [part.data for part in message.parts if part.HasField("data")]
    level += [value for struct in structs for value in struct.fields.values()]
    count = sum(map(len, lists))
    while True:
        count += len(level)
        if count > MAX_JSON_VALUES:
            raise invalid("message.parts", f"At most {MAX_JSON_VALUES} values: send large data as a file part.")
        if not level:
            return
        inner: list[Value] = []
        for value in level:
            match value.WhichOneof("kind"):
                case "number_value" if not isfinite(value.number_value):
                    raise invalid("message", "Numbers must be finite: JSON has neither NaN nor infinity.")
                case "list_value":
                    inner += value.list_value.values
                case "struct_value":
                    inner += value.struct_value.fields.values()
        level = inner


WHAT_TO_SEND = {
    "message.role": 'Send ROLE_USER: A2A 1.0 has no role "user".',
    "message.message_id": "Send a new id of your choice, such as a UUID.",
    "message.parts": 'Send at least one part, such as {"text": "hello"}.',
}
"""Instructions for required fields, because the SDK only says that a field is required."""


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
    """Return the required fields of a message type, and the fields whose message types have required fields."""
    required = frozenset(field.name for field in kind.fields if _is_required(field))
    return required, tuple(
        field.name for field in kind.fields if field.message_type is not None and _requires(field.message_type, ())
    )


def _requires(kind: Any, above: tuple[Any, ...]) -> bool:
    """Return True if a message type, or a type inside it, has required fields. `above` contains the enclosing types, at
    which the recursion ends."""
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
