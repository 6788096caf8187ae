"""Questions that a client shows and answers, including questions of peers whose JSON contains nulls."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from a2a.types import Role
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from a2a_celery.cli.client.call import filled_form
from a2a_celery.client import AnswerField, AnswerRefused, InputRequest, Result, Session
from a2a_celery.frameworks.approvals import APPROVAL, asking, pending_call, words_pattern
from a2a_celery.lifecycle.answers import AnswerType
from a2a_celery.lifecycle.questions import schema_in
from tests.support.agents.structured_agents import Meal, Table

KEY = {"a2a_celery/answer_schema": True}


def task_with_question(schema: Any, state: str = "INPUT_REQUIRED", **part: Any) -> dict[str, Any]:
    """Return the JSON of a task with a question, as a server sends it."""
    parts = [{"text": "Which table?"}, {"data": schema, "metadata": KEY, **part}, {"text": "Thank you."}]
    message = {"messageId": "q", "role": "ROLE_AGENT", "parts": parts}
    return {"id": "t", "contextId": "c", "status": {"state": f"TASK_STATE_{state}", "message": message}}


def question(schema: Any, **part: Any) -> InputRequest:
    input_request = InputRequest.of(task_with_question(schema, **part))
    assert input_request is not None
    return input_request


TABLE = AnswerType(Table).schema


def test_a_question_has_its_text_its_schema_and_its_fields() -> None:
    input_request = question(TABLE)

    assert (input_request.text, input_request.task_id, input_request.context_id) == (
        "Which table?\nThank you.",
        "t",
        "c",
    )
    assert input_request.schema == TABLE
    assert input_request.fields == [
        AnswerField("people", "integer", "People", "How many of you are coming?"),
        AnswerField("meal", "choice", "Meal", required=False, default="dinner", choices=("lunch", "dinner")),
        AnswerField("name", "string", "Your name"),
        AnswerField("smoking", "boolean", "Smoking", required=False, default=False),
        AnswerField("budget", "number", "Budget", required=False),
        AnswerField("guests", "json", "Guests", required=False, default=[]),
    ]


@pytest.mark.parametrize("data", [{"people": 2, "name": "Ada"}, Table(people=2, name="Ada", meal=Meal.LUNCH)])
def test_an_answer_is_a_message_to_the_task(data: Any) -> None:
    message = question(TABLE).answer(data)

    assert (message.task_id, message.context_id, message.role) == ("t", "c", Role.ROLE_USER)
    assert message.message_id
    assert message.parts[0].data.struct_value.fields["people"].number_value == 2
    assert Session().message(message) == message


def test_an_answer_that_does_not_fit_is_refused_here() -> None:
    with pytest.raises(AnswerRefused, match=r"people: 30 is greater than the maximum of 20"):
        question(TABLE).answer({"people": 30})
    with pytest.raises(TypeError, match="cannot carry this object"):
        question(TABLE).answer(object())


NESTED = json.loads("[" * 200 + "]" * 200)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), NESTED], ids=["nan", "inf", "list"])
@pytest.mark.parametrize("schema", [{"type": "number"}, {"not": "a schema", "pattern": "("}])
def test_a_value_that_a_data_part_cannot_carry_is_a_type_error(schema: Any, value: Any) -> None:
    with pytest.raises(TypeError, match="an answer cannot carry this"):
        question(schema).answer(value)


def test_a_question_without_a_schema_is_answered_with_text_or_data() -> None:
    @dataclass
    class Point:
        x: int

    input_request = InputRequest.of(
        task_with_question({"not": "a schema"}) | {"status": {"state": "TASK_STATE_INPUT_REQUIRED"}}
    )
    assert input_request is not None
    assert (input_request.schema, input_request.fields) == (None, [])
    assert input_request.text == "The agent needs your input to continue."
    assert input_request.answer("Oslo").parts[0].text == "Oslo"
    assert input_request.answer(Point(1)).parts[0].data.struct_value.fields["x"].number_value == 1


@pytest.mark.parametrize("state", ["COMPLETED", "WORKING"])
def test_a_task_that_asks_nothing(state: str) -> None:
    assert InputRequest.of(task_with_question(TABLE, state)) is None
    assert InputRequest.of(Result.of(task_with_question(TABLE, state))) is None
    assert InputRequest.of(None) is None


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "object", "properties": None, "required": None}, ["json"]),
        ({"type": "object", "properties": {"a": None, "b": {"type": None, "enum": None}}}, ["json", "json"]),
        ({"properties": {"a": {"type": "string", "title": None}}, "required": None, "$defs": None}, ["string"]),
        ({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": None}, ["json"]),
        ({"anyOf": None, "type": "integer"}, ["integer"]),
        ({"anyOf": [None, {"type": "string"}]}, ["json"]),
        ({"type": ["string", "null"]}, ["string"]),
        ({"$ref": "#"}, ["json"]),
        ({"$ref": "https://example.com/schema"}, ["json"]),
        ({"enum": [1, "a", None]}, ["choice"]),
        ({"enum": [{}]}, ["json"]),
        ({"allOf": [{"type": "boolean"}]}, ["boolean"]),
        ({}, ["json"]),
    ],
)
def test_a_schema_of_a_peer_may_have_nulls_and_anything_else(schema: Any, expected: list[str]) -> None:
    input_request = question(schema)

    assert [answer_field.kind for answer_field in input_request.fields] == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": None, "required": None},
        {"type": "integer", "$ref": "https://example.com/schema"},
        {"type": "integer", "pattern": "(?=x)"},
    ],
)
def test_a_schema_that_cannot_be_enforced_refuses_no_answer(schema: Any) -> None:
    assert question(schema).answer({"a": 1}).parts[0].HasField("data")


def test_a_schema_that_is_no_object_is_no_schema() -> None:
    assert question(None).schema is None
    assert question([1]).schema is None


def test_the_media_type_alone_marks_a_schema_of_another_agent() -> None:
    input_request = question({"type": "integer"}, metadata=None, mediaType="application/schema+json")

    assert input_request.fields == [AnswerField("", "integer", "Answer")]
    assert input_request.text == "Which table?\nThank you."


def test_several_questions_are_fields_with_the_texts_as_descriptions() -> None:
    schema = {
        "type": "object",
        "properties": {
            "b": {"type": "string", "description": "Which town?", "propertyOrder": 1},
            "a": {"type": "integer", "description": "How many?", "propertyOrder": 2},
        },
        "required": ["b", "a"],
    }

    fields = question(schema).fields

    assert [(answer_field.name, answer_field.description) for answer_field in fields] == [
        ("b", "Which town?"),
        ("a", "How many?"),
    ]


@pytest.mark.parametrize(
    ("kind", "input_text", "value"),
    [
        ("string", " Oslo ", " Oslo "),
        ("integer", " 3 ", 3),
        ("number", "1.5", 1.5),
        ("boolean", "Yes", True),
        ("boolean", "n", False),
        *(("boolean", text, True) for text in ("approve", "true")),
        *(("boolean", text, False) for text in ("Reject", "false")),
        ("choice", "red", "red"),
        ("choice", "2", 2),
        ("json", "[1]", [1]),
    ],
)
def test_what_a_reader_enters_becomes_a_value(kind: Any, input_text: str, value: Any) -> None:
    assert AnswerField("a", kind, "A", choices=("red", 2)).parse(input_text) == value


@pytest.mark.parametrize(
    ("kind", "input_text", "remedy"),
    [
        ("integer", "1.5", "enter a whole number"),
        ("number", "many", "enter a number"),
        ("boolean", "perhaps", "enter yes or no"),
        ("choice", "green", "enter one of: red, 2"),
        ("json", "[", "enter JSON"),
        *(("number", text, "enter a number") for text in ("nan", "-inf", "1e400")),
        *(("json", text, "enter JSON") for text in ("[NaN]", '{"a": 1e400}')),
        ("integer", "1" + "0" * 400, "enter a whole number"),
    ],
)
def test_an_invalid_value_is_reported_with_a_remedy(kind: Any, input_text: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        AnswerField("a", kind, "A", choices=("red", 2)).parse(input_text)


KEYWORDS = st.sampled_from(
    [
        *("$defs", "$ref", "$schema", "additionalProperties", "allOf", "anyOf", "default", "description", "enum"),
        *("items", "maximum", "minLength", "pattern", "properties", "propertyOrder", "required", "title", "type"),
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["#", "#/$defs/title", "string", "object", "("]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=4),
    max_leaves=12,
)


@given(schema=st.dictionaries(KEYWORDS, VALUES, max_size=5), answer=VALUES)
def test_no_schema_of_a_peer_breaks_the_client(schema: dict[str, Any], answer: Any) -> None:
    input_request = question(schema)

    assert input_request.fields
    with suppress(AnswerRefused):
        assert input_request.answer(answer).parts


def fill_form(request: InputRequest, monkeypatch: pytest.MonkeyPatch, *lines: str) -> Any:
    """Enter `lines` at the prompts for an answer to `request`, and return the data of the answer."""
    entered_lines = iter(lines)
    monkeypatch.setattr("builtins.input", lambda: next(entered_lines))
    answer = filled_form(request)
    assert next(entered_lines, None) is None, "each line is needed"
    return MessageToDict(answer.parts[0].data)


def test_prompts_contain_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    color, code = "red\x1b[2J", "^\x1b$"
    properties = {"code": {"type": "string", "pattern": code}, "color": {"enum": [color, "blue"]}}

    data = fill_form(question({"properties": properties}), monkeypatch, "no", "green", "blue", "\x1b", "blue")

    assert data == {"color": "blue", "code": "\x1b"}
    errors = capsys.readouterr().err
    assert errors.count("enter one of: ") == 1
    assert all(line.isprintable() for line in errors.splitlines())


APPROVALS = [pending_call(APPROVAL, call_id, "book", {"what": call_id}) for call_id in ("table", "hotel")]
DECISIONS = {
    "type": ["object", "string"],
    "properties": {"decisions": {"type": "array"}},
    "required": ["decisions"],
    "pattern": words_pattern(("approve", "yes", "reject", "no")),
    "examples": ["approve", "yes", "reject", "no"],
}


@pytest.mark.parametrize("schema", [schema_in(asking(APPROVALS).parts), DECISIONS], ids=["approvals", "decisions"])
@pytest.mark.parametrize(("entered", "data"), [("approve", "yes"), ("Y", "yes"), ("reject", "no")])
def test_one_word_decides_on_all_calls(schema: Any, entered: str, data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fill_form(question(schema), monkeypatch, "perhaps", entered) == data


def test_calls_can_be_decided_on_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    request = question(schema_in(asking(APPROVALS).parts))

    assert fill_form(request, monkeypatch, "", "approve", "reject") == {"table": True, "hotel": False}


def test_a_single_call_is_decided_on_at_its_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    request = question(schema_in(asking(APPROVALS[:1]).parts))

    assert fill_form(request, monkeypatch, "approve") == {"table": True}


def test_a_prompt_for_a_value_that_no_message_can_carry_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    request = question({"properties": {"ratio": {"type": "number"}, "rest": {}}, "required": ["ratio", "rest"]})
    nested = "[" * 200 + "]" * 200

    assert fill_form(request, monkeypatch, "nan", "1", nested, "1", "2") == {"ratio": 1, "rest": 2}


def test_an_answer_with_a_large_whole_number_is_exact_as_json_text() -> None:
    message = question({"type": "object", "properties": {"id": {"type": "integer"}}}).answer({"id": 2**60 + 1})

    assert [part.text for part in message.parts] == ['{"id": 1152921504606846977}']


def test_an_answer_without_a_schema_has_large_whole_numbers_as_texts() -> None:
    input_request = InputRequest.of(task_with_question("Which?", metadata={}))
    assert input_request is not None

    message = input_request.answer({"id": 2**60 + 1})

    assert MessageToDict(message.parts[0])["data"] == {"id": "1152921504606846977"}
