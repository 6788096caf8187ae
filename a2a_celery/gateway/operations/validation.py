"""Validation of requests before anything is stored. Each failure raises the error that the specification defines.

``operations.requests`` checks what a message contains.

Source: A2A specification 3.3.4 (capabilities), 3.4 (identifiers), 4.6.3 (required extensions).
"""

from __future__ import annotations

from a2a.server.context import ServerCallContext
from a2a.types import AgentCard, ListTasksRequest, SendMessageRequest, TaskState
from a2a.utils.errors import (
    ExtendedAgentCardNotConfiguredError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)
from google.protobuf.message import Message as Proto

from ...agents import Agent
from ...lifecycle import EventId
from ...operations.errors import MAX_ID_LENGTH, invalid
from ...operations.requests import check_request
from ...store.tasks.listing import MAX_TOKEN_LENGTH
from ..auth.schemes import Identity
from ..call import Call
from ..protocol_errors import LAST_EVENT_ID, Denial, PermissionDeniedError

BOUNDS = {**dict.fromkeys(("tenant", "id", "task_id", "context_id"), MAX_ID_LENGTH), "page_token": MAX_TOKEN_LENGTH}
"""Maximum length of the identifiers and page tokens in a request, by field. Most identifiers become part of a Redis
key."""


def require_tenant(context: ServerCallContext) -> None:
    """Raise PermissionDeniedError for a tenant that the caller may not use, whether or not the tenant has tasks."""
    if isinstance(context.user, Identity) and not context.user.may_use(context.tenant):
        raise PermissionDeniedError(
            "Not permitted in this tenant: use a tenant that your credentials allow", Denial.TENANT
        )


def require_extended_card(card: AgentCard, extended_card: AgentCard | None, context: ServerCallContext) -> AgentCard:
    """Return `extended_card` if the caller may read it.

    Raises:
        UnsupportedOperationError: `card` declares no extended card.
        ExtendedAgentCardNotConfiguredError: The agent has no extended card.
        PermissionDeniedError: The caller is not authenticated, because the gateway has no authentication, or because
            the authentication of an outer application lets anonymous callers in (A2A specification 13.3).
    """
    if not card.capabilities.extended_agent_card:
        raise UnsupportedOperationError("This agent has no extended card")
    if extended_card is None:
        raise ExtendedAgentCardNotConfiguredError
    if not context.user.is_authenticated:
        raise PermissionDeniedError(
            "The extended card is for authenticated callers: configure authentication", Denial.EXTENDED_CARD
        )
    return extended_card


def require_streaming(card: AgentCard) -> None:
    """Raise UnsupportedOperationError unless the card declares streaming."""
    if not card.capabilities.streaming:
        raise UnsupportedOperationError("Streaming is not supported by this agent")


def require_push(card: AgentCard) -> None:
    """Raise PushNotificationNotSupportedError unless the card declares push notifications."""
    if not card.capabilities.push_notifications:
        raise PushNotificationNotSupportedError("Push notifications are not supported by this agent")


def check_send(params: SendMessageRequest, card: AgentCard, context: ServerCallContext) -> None:
    """Check a SendMessage request, except for rules that depend on the state of its task.

    Raises:
        A2AError: The request is invalid. The error describes the first problem.
    """
    check_request(params, card, context.requested_extensions)
    configuration = params.configuration
    if configuration.HasField("task_push_notification_config"):
        require_push(card)
    check_history_length(configuration, "configuration.history_length")


def check_bounds(params: Proto, call: Call) -> None:
    """Raise InvalidParamsError for an identifier or page token that is too long."""
    values = [(name, getattr(params, name)) for name in BOUNDS if name in params.DESCRIPTOR.fields_by_name]
    for name, value in [*values, ("tenant", call.tenant)]:  # the tenant may be in the path and not in the request
        if len(value) > BOUNDS[name]:
            raise invalid(name, f"At most {BOUNDS[name]} characters.")


def check_history_length(holder: Proto, field: str = "history_length") -> None:
    """Raise InvalidParamsError for a negative history length."""
    if getattr(holder, "history_length", 0) < 0:
        raise invalid(field, "A number of messages, 0 or more.")


def last_event_id(call: Call) -> EventId | None:
    """Return the event id in the request's ``Last-Event-ID`` header, or None if the header is missing or empty.

    The stream of the response resumes after the event with this id.

    Raises:
        InvalidParamsError: The value of the header is not an event id.
    """
    text = call.headers.get(LAST_EVENT_ID)
    if not text:
        return None
    try:
        return EventId.parse(text)
    except ValueError:
        raise invalid(
            LAST_EVENT_ID, "The id of an event of this task's stream, such as 7 or 7-1767225600000000."
        ) from None


def check_list(params: ListTasksRequest) -> None:
    """Raise InvalidParamsError for an unknown status, or for a page size, history length or time out of range."""
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


def require_signal(agent: Agent, name: str) -> None:
    """Raise UnsupportedOperationError unless the agent accepts the signal `name` from clients."""
    if agent.kind != "function":
        raise UnsupportedOperationError("This agent cannot wait for signals: only function agents can.")
    if name not in agent.signals:
        raise UnsupportedOperationError(f"This agent does not accept the signal {name!r} from clients.")
