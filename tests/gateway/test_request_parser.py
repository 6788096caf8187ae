"""Conversion of JSON to requests, as by protobuf's JSON parser, and the fields that errors name."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.compat.v0_3.a2a_v0_3_pb2 import SendMessageRequest as LegacyMessageRequest
from a2a.types import GetTaskRequest, ListTasksRequest, SendMessageRequest, TaskPushNotificationConfig, TaskState
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import ParseDict

from a2a_celery.gateway.bindings.request_parser import parse_json
from a2a_celery.lifecycle.json_values import INEXACT, MAX_EXACT
from a2a_celery.operations.requests import check_values

LONG = "ä" * 70_000


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
ROLES = "One of ROLE_UNSPECIFIED, ROLE_USER, ROLE_AGENT."
STATES = f"One of {', '.join(TaskState.keys())}."
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
    (SendMessageRequest, of_parts({"data": {"a": 10**400}}), "message.parts[0].data.a", INEXACT),
    (SendMessageRequest, of_message(referenceTaskIds=["t", None]), "message.reference_task_ids[1]", TEXT),
    (SendMessageRequest, of_message(metadata=5), "message.metadata", JSON_OBJECT),
    (SendMessageRequest, of_message(metadata={"a": 10**400}), "message.metadata.a", INEXACT),
    (SendMessageRequest, of_message(role={}), "message.role", ROLES),
    (SendMessageRequest, of_message(role=True), "message.role", ROLES),
    (SendMessageRequest, of_message(role=1.7), "message.role", ROLES),
    (LegacyMessageRequest, of_message(role=True), "message.role", ROLES),
    (ListTasksRequest, {"status": True}, "status", STATES),
    (ListTasksRequest, {"status": False}, "status", STATES),
    (ListTasksRequest, {"status": 1.5}, "status", STATES),
    (ListTasksRequest, {"status": "working"}, "status", STATES),
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


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        (of_parts({"text": "a"}, {"data": {"order_id": 1234567890123456789}}), "message.parts[1].data.order_id"),
        (of_parts({"data": {"rows": [{}, {"id": -MAX_EXACT - 1}]}}), "message.parts[0].data.rows[1].id"),
        (of_parts({"data": 2**53}), "message.parts[0].data"),
        (of_parts({"text": "a", "metadata": {"id": 2**53}}), "message.parts[0].metadata.id"),
        (of_message(metadata={"id": 2**53}), "message.metadata.id"),
        ({**of_message(), "metadata": {"id": 2**53}}, "metadata.id"),
    ],
)
def test_a_whole_number_that_would_change_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParamsError) as exc_info:
        parse_json(fields, SendMessageRequest)

    assert exc_info.value.data["errors"] == [{"field": field, "message": INEXACT}]


def test_the_path_of_a_number_is_shortened() -> None:
    with pytest.raises(InvalidParamsError) as exc_info:
        parse_json(of_parts({"data": {"a" * 10_000: 2**53}}), SendMessageRequest)

    assert len(exc_info.value.data["errors"][0]["field"]) == 300


def test_exact_numbers_and_floats_are_accepted() -> None:
    value = of_parts({"data": {"whole": [MAX_EXACT, -MAX_EXACT], "floats": [1e300, 1e16, 2.5], "yes": True}})

    assert parse_json(value, SendMessageRequest) == ParseDict(value, SendMessageRequest())


def nested(levels: int, kind: type) -> Any:
    value: Any = kind()
    for _ in range(levels - 1):
        value = {"a": value} if kind is dict else [value]
    return value


@pytest.mark.parametrize("place", ["data", "metadata of a part", "metadata of a message", "metadata"])
@pytest.mark.parametrize(("kind", "most"), [(dict, 31), (list, 46)])
def test_data_at_any_depth_beyond_the_limit_gets_the_same_error(place: str, kind: type, most: int) -> None:
    for levels in range(most - 3, 100):
        value = nested(levels, kind)
        match place:
            case "data":
                fields = of_parts({"data": value})
            case "metadata of a part":
                fields = of_parts({"text": "a", "metadata": {"a": value}})
            case "metadata of a message":
                fields = of_message(metadata={"a": value})
            case _:
                fields = {**of_message(), "metadata": {"a": value}}
        try:
            check_values(parse_json(fields, SendMessageRequest))
            assert levels <= most
        except InvalidParamsError as e:
            [error] = e.data["errors"]
            assert (error["field"], levels > most) == ("message", True)
            assert "nested too deeply" in error["message"]
