"""Conversion of JSON to requests: the fields that errors name, and long texts, which bypass protobuf's JSON parser."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.compat.v0_3.a2a_v0_3_pb2 import SendMessageRequest as LegacyMessageRequest
from a2a.types import GetTaskRequest, ListTasksRequest, SendMessageRequest, TaskPushNotificationConfig
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import ParseDict

from a2a_celery.gateway.bindings.request_parser import LONG_TEXT, parse_json

LONG = "ä" * (LONG_TEXT + 1)


def of_parts(*parts: Any) -> dict[str, Any]:
    return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": list(parts)}}


def test_long_texts_are_parsed_as_short_ones() -> None:
    value = of_parts({"text": "a"}, {"text": LONG, "mediaType": "text/plain"}, {"data": {"text": LONG}}, {"text": LONG})

    assert parse_json(value, SendMessageRequest) == ParseDict(value, SendMessageRequest())


@pytest.mark.parametrize(
    "part", [{"text": LONG, "url": "https://example.com"}, {"text": LONG + "\ud800"}, {"text": LONG, "filename": 1}]
)
def test_a_wrong_part_with_a_long_text_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidParamsError):
        parse_json(of_parts(part), SendMessageRequest)


def of_message(**fields: Any) -> dict[str, Any]:
    return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}], **fields}}


TEXT, NUMBER, BOOLEAN, OBJECT = "A text.", "A whole number.", "true or false.", "An object."
TIME, LIST, JSON_OBJECT = "A time such as 2030-01-01T08:00:00Z.", "A list.", "An object of JSON values."
BOTH = {"text": "hi", "data": {}}
ONE_CONTENT = "Only one of: text, raw, url, data."

WRONG: list[tuple[Any, dict[str, Any], str, str]] = [
    (GetTaskRequest, {"id": 7}, "id", TEXT),
    (GetTaskRequest, {"id": {}}, "id", TEXT),
    (GetTaskRequest, {"id": "t", "historyLength": "some"}, "history_length", NUMBER),
    (GetTaskRequest, {"id": "t", "history_length": 2**40}, "history_length", NUMBER),
    (ListTasksRequest, {"pageSize": 1.5}, "page_size", NUMBER),
    (ListTasksRequest, {"includeArtifacts": "yes"}, "include_artifacts", BOOLEAN),
    (ListTasksRequest, {"statusTimestampAfter": "2030-01-01"}, "status_timestamp_after", TIME),
    (ListTasksRequest, {"statusTimestampAfter": 1}, "status_timestamp_after", TIME),
    (TaskPushNotificationConfig, {"taskId": "t", "authentication": "Bearer"}, "authentication", OBJECT),
    (TaskPushNotificationConfig, {"authentication": {"scheme": 1}}, "authentication.scheme", TEXT),
    (SendMessageRequest, {"message": "hi"}, "message", OBJECT),
    (SendMessageRequest, {"message": []}, "message", OBJECT),
    (SendMessageRequest, of_message(parts="hi"), "message.parts", LIST),
    (SendMessageRequest, of_message(parts=[{"text": "a"}, 1]), "message.parts[1]", OBJECT),
    (SendMessageRequest, of_message(parts=[None]), "message.parts[0]", OBJECT),
    (SendMessageRequest, of_parts({"text": "a"}, {"text": 1}), "message.parts[1].text", TEXT),
    (SendMessageRequest, of_parts({"raw": 5}), "message.parts[0].raw", "Base64, standard or URL-safe."),
    (SendMessageRequest, of_parts({"text": "a", "url": "b"}), "message.parts[0]", ONE_CONTENT),
    (SendMessageRequest, of_parts({"text": LONG, "url": "b"}), "message.parts[0]", ONE_CONTENT),
    (SendMessageRequest, of_parts({"text": LONG, "filename": 1}), "message.parts[0].filename", TEXT),
    (SendMessageRequest, of_parts({"data": {"a": 10**400}}), "message.parts[0].data", "A JSON value."),
    (SendMessageRequest, of_message(referenceTaskIds=["t", None]), "message.reference_task_ids[1]", TEXT),
    (SendMessageRequest, of_message(metadata=5), "message.metadata", JSON_OBJECT),
    (SendMessageRequest, of_message(metadata={"a": 10**400}), "message.metadata", JSON_OBJECT),
    (SendMessageRequest, of_message(role={}), "message.role", "One of ROLE_UNSPECIFIED, ROLE_USER, ROLE_AGENT."),
    (
        SendMessageRequest,
        {**of_message(), "configuration": {"returnImmediately": "true"}},
        "configuration.return_immediately",
        BOOLEAN,
    ),
    (SendMessageRequest, {**of_message(), "configuration": "returnImmediately"}, "configuration", OBJECT),
    (ListTasksRequest, {"pageSize": 5, "page_size": 5}, "params", "The fields of this object, each once."),
    (LegacyMessageRequest, {"message": "hi"}, "message", OBJECT),
    (LegacyMessageRequest, {"message": {"messageId": 1}}, "message.message_id", TEXT),
    (LegacyMessageRequest, {"message": {"content": [BOTH]}}, "message.content[0]", "Only one of: text, file, data."),
]


@pytest.mark.parametrize(("kind", "value", "field", "rule"), WRONG, ids=lambda value: str(value)[:40])
def test_the_error_names_the_field_and_its_rule(kind: Any, value: dict[str, Any], field: str, rule: str) -> None:
    with pytest.raises(InvalidParamsError) as exc_info:
        parse_json(value, kind)

    assert exc_info.value.data["errors"] == [{"field": field, "message": rule}]
