"""What is refused before anything is stored, each with the specification's error.

Source: A2A specification 3.3.4 (capabilities), 3.4 (identifiers), 4.6.3 (required extensions).
"""

from __future__ import annotations

from a2a.server.context import ServerCallContext
from a2a.types import AgentCard, ListTasksRequest, Message, Role, SendMessageRequest, TaskState
from a2a.utils.errors import (
    ExtensionSupportRequiredError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)
from a2a.utils.input_mode_validator import validate_input_modes
from google.protobuf.json_format import MessageToDict, SerializeToJsonError
from google.protobuf.message import Message as Proto
from google.protobuf.struct_pb2 import Value

from .auth.identity import Identity
from .bodies import MAX_JSON_VALUES
from .faults import MAX_ID_LENGTH, PermissionDeniedError, invalid

LAST_EVENT_ID = "last-event-id"

BOUNDS = {**dict.fromkeys(("tenant", "id", "task_id", "context_id"), MAX_ID_LENGTH), "page_token": 1024}
"""How long the fields of requests may be that name something: most become a part of a key."""

MAX_REFERENCES = 16
"""How many tasks a message may refer to: the worker reads each of them before the agent begins."""


def require_tenant(context: ServerCallContext) -> None:
    """Raises PermissionDeniedError for a tenant that the caller may not use, whether there is anything in it or not."""
    if isinstance(context.user, Identity) and not context.user.may_use(context.tenant):
        raise PermissionDeniedError("Not permitted in this tenant: name one of yours")


def require_extended_card(card: AgentCard, context: ServerCallContext) -> None:
    """Raises UnsupportedOperationError unless the card says there is an extended one, and PermissionDeniedError for
    nobody's request, where somebody else's authentication is around this application and lets these through."""
    if not card.capabilities.extended_agent_card:
        raise UnsupportedOperationError("This agent has no extended card")
    if "auth" in context.state and not context.user.is_authenticated:
        raise PermissionDeniedError("The extended card is for authenticated callers")


def require_streaming(card: AgentCard) -> None:
    """Raises UnsupportedOperationError unless the card says streaming."""
    if not card.capabilities.streaming:
        raise UnsupportedOperationError("Streaming is not supported by this agent")


def require_push(card: AgentCard) -> None:
    """Raises PushNotificationNotSupportedError unless the card says push notifications."""
    if not card.capabilities.push_notifications:
        raise PushNotificationNotSupportedError("Push notifications are not supported by this agent")


def require_extensions(card: AgentCard, context: ServerCallContext) -> None:
    """Raises ExtensionSupportRequiredError when the client did not declare an extension that the card requires."""
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
    """Everything that can be wrong with a message before its task is looked at.

    Raises:
        A2AError: the first of them.
    """
    require_extensions(card, context)
    message, configuration = params.message, params.configuration
    if message.role != Role.ROLE_USER:
        raise invalid("message.role", "A client's message has the role ROLE_USER.")
    _check_ids(message)
    for number, part in enumerate(message.parts):
        if part.WhichOneof("content") is None:
            raise invalid(f"message.parts[{number}]", "A part holds one of: text, raw, url, data.")
    if configuration.HasField("task_push_notification_config"):
        require_push(card)
    check_history_length(configuration, "configuration.history_length")
    validate_input_modes(message, card)
    _require_json(params)


def check_bounds(params: Proto, context: ServerCallContext) -> None:
    """Raises InvalidParamsError for a name or a page token that is longer than any that this service has given, and for
    a message with more values than a body of JSON may have: over gRPC nothing else has counted them."""
    if isinstance(params, SendMessageRequest) and _values_of(params) > MAX_JSON_VALUES:
        raise invalid("message.parts", f"At most {MAX_JSON_VALUES} values: send large data as a file part.")
    given = [(name, getattr(params, name)) for name in BOUNDS if name in params.DESCRIPTOR.fields_by_name]
    for name, value in [*given, ("tenant", context.tenant)]:  # which a path has, and not the request in it
        if len(value) > BOUNDS[name]:
            raise invalid(name, f"At most {BOUNDS[name]} characters.")


def check_history_length(holder: Proto, field: str = "history_length") -> None:
    """Raises InvalidParamsError for a negative history length."""
    if getattr(holder, "history_length", 0) < 0:
        raise invalid(field, "A number of messages: 0 for none, or more.")


def last_event_id(context: ServerCallContext) -> int | None:
    """The version behind which a stream goes on; None: its client asks for none.

    Raises:
        InvalidParamsError: it is no number.
    """
    given = context.state.get("headers", {}).get(LAST_EVENT_ID)
    if not given:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > 15:
        raise invalid(LAST_EVENT_ID, "The id of an event of this task's stream: a number.")
    return int(given)


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


def _require_json(params: SendMessageRequest) -> None:
    """Protobuf carries numbers that JSON has no words for; stored, they would make the task unreadable."""
    structured = params.metadata.fields or params.message.metadata.fields
    if structured or any(part.HasField("data") or part.metadata.fields for part in params.message.parts):
        try:
            MessageToDict(params)
        except (SerializeToJsonError, ValueError):
            raise invalid(
                "message", "Values must be finite numbers and valid text: JSON has no NaN, no infinity."
            ) from None


def _values_of(params: SendMessageRequest) -> int:
    """How many parts, texts in lists and structured values a message has; see `_values_in`."""
    message = params.message
    count = len(message.parts) + len(message.extensions) + len(params.configuration.accepted_output_modes)
    if count > MAX_JSON_VALUES:
        return count
    structs = [params.metadata, message.metadata, *(part.metadata for part in message.parts)]
    data = [part.data for part in message.parts if part.HasField("data")]
    return count + _values_in([*data, *(value for struct in structs for value in struct.fields.values())])


def _values_in(level: list[Value]) -> int:
    """How many values those of `level` hold in all; more than `MAX_JSON_VALUES` are not counted to the end."""
    count = 0
    while level and count <= MAX_JSON_VALUES:
        count += len(level)
        level = [inner for outer in level for inner in (*outer.list_value.values, *outer.struct_value.fields.values())]
    return count
