"""Requests without a required field. The gateway rejects the same requests as the SDK, and names the missing fields."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf.message import Message as Proto
from hypothesis import given
from hypothesis import strategies as st

from a2a_celery.operations.requests import require_fields

MESSAGE_TYPES = (
    SendMessageRequest,
    GetTaskRequest,
    ListTasksRequest,
    CancelTaskRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    GetTaskPushNotificationConfigRequest,
    DeleteTaskPushNotificationConfigRequest,
    Task,
    AgentCard,
)
DEPTH = 4


def filled_message(draw: Any, message: Proto, depth: int = 0) -> Any:
    """Return `message` with a random subset of its fields filled, including maps and lists."""
    for field in message.DESCRIPTOR.fields:
        if depth > DEPTH or draw(st.integers(0, 3)) == 0:
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            if inner.message_type is not None:
                filled_message(draw, value["key"], depth + 1)
        elif field.message_type is not None and field.is_repeated:
            filled_message(draw, value.add(), depth + 1)
        elif field.message_type is not None:
            value.SetInParent()
            filled_message(draw, value, depth + 1)
        elif field.is_repeated and field.type == field.TYPE_STRING:
            value.append("one")
        elif not field.is_repeated and field.type == field.TYPE_STRING:
            setattr(message, field.name, draw(st.sampled_from(["", "text"])))
        elif field.type == field.TYPE_ENUM:
            setattr(message, field.name, draw(st.integers(0, 1)))
    return message


@st.composite
def requests(draw: Any) -> Proto:
    """Draw a complete or incomplete request."""
    request: Proto = filled_message(draw, draw(st.sampled_from(MESSAGE_TYPES))())
    return request


def refused_fields(check: Any, request: Proto) -> list[str] | None:
    try:
        check(request)
    except InvalidParamsError as e:
        return [error["field"] for error in (e.data or {})["errors"]]
    return None


@given(requests())
def test_the_gateway_refuses_the_same_requests_as_the_sdk(request: Proto) -> None:
    assert refused_fields(require_fields, request) == refused_fields(validate_proto_required_fields, request)


def test_a_whole_message_is_fine_and_one_without_parts_is_not() -> None:
    message = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="hello")])
    require_fields(SendMessageRequest(message=message))
    message.ClearField("parts")
    with pytest.raises(InvalidParamsError) as exc_info:
        require_fields(SendMessageRequest(message=message))
    rule = 'Send at least one part, such as {"text": "hello"}.'
    assert (exc_info.value.data or {})["errors"] == [{"field": "message.parts", "message": rule}]
    assert exc_info.value.message == f"message.parts: {rule}"


def test_a_text_names_three_fields_and_counts_the_others() -> None:
    message = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="hello")])
    configs = [TaskPushNotificationConfig(), TaskPushNotificationConfig(task_id="t")]
    with pytest.raises(InvalidParamsError, match=r"^message: Field is required\.$"):
        require_fields(SendMessageRequest())
    with pytest.raises(InvalidParamsError, match=r"^url: Field is required\.$"):
        require_fields(configs[1])
    several = Task(history=[Message(), Message()])
    pattern = r"^id: .* status: .* history\[0\]\.message_id: .* 5 more fields are wrong\.$"
    with pytest.raises(InvalidParamsError, match=pattern):
        require_fields(several)
    require_fields(SendMessageRequest(message=message))
