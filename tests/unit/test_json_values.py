"""Whole numbers beyond 2^53 − 1, halves of characters and deep nesting in the values of agents."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import click
import pytest
from a2a.helpers import new_data_part
from a2a.types import Artifact, Task, TaskArtifactUpdateEvent
from a2a.utils.errors import InvalidAgentResponseError
from google.protobuf.json_format import MessageToDict

from a2a_celery.cli.client.task_commands import parts_of as command_parts
from a2a_celery.execution.events.translator import Translator
from a2a_celery.lifecycle.events import data_part, jsonable, parts_of, portable_metadata
from a2a_celery.lifecycle.json_values import json_bytes, portable, portable_text
from a2a_celery.lifecycle.questions import checked_schema
from a2a_celery.submission import Submission

LARGEST = 2**53 - 1
HIGH, LOW = "\ud83d", "\ude00"


def sent(value: Any) -> Any:
    """Return the JSON value that a client receives for `value`."""
    [part] = parts_of(value)
    part = type(part).FromString(part.SerializeToString())
    return MessageToDict(part)["data"] if part.HasField("data") else part.text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"id": 2**60 + 1}, {"id": "1152921504606846977"}),
        ({"rows": [{"id": -(2**53)}, {"id": LARGEST}]}, {"rows": [{"id": "-9007199254740992"}, {"id": LARGEST}]}),
        ([1, 10**400], [1, "1" + "0" * 400]),
        (2**64, "18446744073709551616"),
        ([LARGEST, -LARGEST, 0], [LARGEST, -LARGEST, 0]),
        ({"huge": 1e300, "whole": 2.0**60}, {"huge": 1e300, "whole": 2.0**60}),
        ({"yes": True, "no": None}, {"yes": True, "no": None}),
        (("a", 2**60), ["a", str(2**60)]),
    ],
)
def test_a_whole_number_that_a_double_cannot_represent_is_sent_as_text(value: Any, expected: Any) -> None:
    assert sent(jsonable(value)) == expected


def test_the_log_names_the_place_of_a_converted_number_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            data_part({"orders": [{"id of this test": 2**60 + number}]})

    [line] = [record.getMessage() for record in caplog.records if "id of this test" in record.getMessage()]
    assert line.startswith("a whole number at data.orders[].id of this test is sent as a text of its digits")


def test_numbers_in_metadata_are_sent_as_text() -> None:
    assert portable_metadata({"at": 2**60, "nested": {"at": [2**60]}, "n": 1}) == {
        "at": str(2**60),
        "nested": {"at": [str(2**60)]},
        "n": 1,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("naïve 😀", "naïve 😀"),
        (f"ok {HIGH}{LOW}", "ok 😀"),
        (f"ok {HIGH}", "ok �"),
        (f"{LOW} ok", "� ok"),
        (f"{HIGH}{HIGH}{LOW}x{LOW}", "�😀x�"),
        ("a\udcff", "a�"),
    ],
)
def test_halves_of_characters_are_joined_or_replaced(text: str, expected: str) -> None:
    assert portable_text(text) == expected
    assert sent(text) == expected
    assert sent({"file": text, text: [text]}) == {"file": expected, expected: [expected]}
    assert sent(jsonable({"file": text, text: [text]})) == {"file": expected, expected: [expected]}


def test_a_value_without_such_numbers_and_texts_is_not_copied() -> None:
    value = {"a": [1, 2.5, "text", {"b": None}]}

    assert portable(value, "data") is value


def test_a_recorded_value_keeps_texts_that_are_not_unicode() -> None:
    value = {"file": "a\udcff", "id": 2**60 + 1, "name": "naïve"}

    assert json.loads(json_bytes(value)) == value
    assert "ï".encode() in json_bytes({"name": "naïve"})


def nested(levels: int, kind: type) -> Any:
    value: Any = kind()
    for _ in range(levels - 1):
        value = {"a": value} if kind is dict else [value]
    return value


@pytest.mark.parametrize(("kind", "most"), [(dict, 31), (list, 46)])
def test_all_values_that_are_too_deep_get_the_same_error(kind: type, most: int) -> None:
    messages = set()
    for levels in [*range(1, 130), 2000]:
        try:
            parts_of(nested(levels, kind))
            assert levels <= most
        except InvalidAgentResponseError as e:
            assert levels > most
            messages.add(e.message)

    [message] = messages
    assert "nested too deeply: at most 30 levels of objects and lists, or 45 levels of lists" in message


def test_metadata_that_is_too_deep_gets_the_same_error() -> None:
    for levels in range(40, 130):
        with pytest.raises(InvalidAgentResponseError, match="nested too deeply"):
            portable_metadata({"meta": nested(levels, dict)})


def test_a_list_that_contains_itself_is_refused() -> None:
    endless: list[Any] = ["a"]
    endless.append(endless)

    with pytest.raises(InvalidAgentResponseError, match="nested too deeply"):
        parts_of(endless)


@pytest.mark.parametrize("keyword", ["const", "default", "enum"])
def test_a_question_cannot_name_numbers_that_no_answer_can_carry(keyword: str) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer", keyword: [2**60 + 1]}}}

    with pytest.raises(ValueError, match=f"{keyword} in the schema of a question has a whole number beyond"):
        checked_schema(schema)


def test_a_question_may_limit_a_number_to_64_bits() -> None:
    assert checked_schema({"type": "integer", "maximum": 2**63 - 1, "enum": [2**53 - 1]})["maximum"] == 2**63 - 1


def test_a_message_of_this_package_has_large_whole_numbers_as_texts() -> None:
    submission = Submission.of("plan", {"id": 2**60 + 1}, metadata={"id": 2**60 + 1})

    assert MessageToDict(submission.params.message.parts[0])["data"] == {"id": "1152921504606846977"}
    assert dict(submission.params.metadata) == {"id": "1152921504606846977"}


def test_the_command_line_refuses_a_whole_number_that_would_change() -> None:
    with pytest.raises(click.BadParameter, match=re.escape("order.id: A2A cannot represent")):
        command_parts(None, '{"order": {"id": 1234567890123456789}}')


def test_the_log_names_the_place_of_a_number_that_an_executor_may_have_rounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    part = new_data_part({"orders": [{"rounded": 2**60 + 1, "float": 1e300, "exact": 2**53 - 1}]})
    event = TaskArtifactUpdateEvent(artifact=Artifact(artifact_id="a", parts=[part]))

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            Translator(Task(id="t"), message_allowed=False).translate(event)

    [line] = [record.getMessage() for record in caplog.records]
    assert "beyond 2^53 - 1 at artifact.parts[].data.orders[].rounded as a double" in line
