"""Validation of answers against the schema of a question, and schemas that a question cannot have."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from a2a.helpers import new_data_part
from a2a.types import Message, Part, Role, Task
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

from a2a_celery import Question
from a2a_celery.gateway.operations.structured_answers import messages_with_arguments
from a2a_celery.lifecycle.answers import AnswerRefused, AnswerType, AnswerTypes, require_valid_schema
from a2a_celery.lifecycle.questions import (
    MAX_SCHEMA_BYTES,
    PROPERTY_ORDER,
    SCHEMA_MEDIA_TYPE,
    checked_schema,
    schema_in,
    schema_part,
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Trip(BaseModel):
    city: str = Field(min_length=1, pattern="^[A-Z]")
    day: date
    seats: int = Field(2, ge=1, le=9)
    price: Decimal | None = None
    colour: Colour = Colour.RED

    @field_validator("city")
    @classmethod
    def has_a_station(cls, city: str) -> str:
        if city == "Atlantis":
            raise ValueError("Atlantis has no station")
        return city


@dataclass
class Point:
    x: int
    y: int = 0


class Named(TypedDict):
    name: str


class Tree(BaseModel):
    left: Tree | int
    right: Tree | int


def data(value: Any) -> Message:
    return Message(parts=[new_data_part(value)])


def text(value: str) -> Message:
    return Message(parts=[Part(text=value)])


def refusal_of(schema: Any, message: Message) -> str:
    """Return the field and the text of the error for an invalid answer."""
    with pytest.raises(AnswerRefused) as exc_info:
        AnswerType(schema).parse(message)
    return f"{exc_info.value.field} {exc_info.value}"


def test_an_answer_becomes_an_instance_of_its_type() -> None:
    answer = {"city": "Oslo", "day": "2030-01-01", "seats": 3, "price": "1.50", "colour": "blue"}

    assert AnswerType(Trip).parse(data(answer)) == Trip(
        city="Oslo", day=date(2030, 1, 1), seats=3, price=Decimal("1.50"), colour=Colour.BLUE
    )
    assert AnswerType(Point).parse(data({"x": 3})) == Point(3)
    assert AnswerType(Named).parse(data({"name": "Ada"})) == {"name": "Ada"}
    assert AnswerType(list[int]).parse(data([1, 2])) == [1, 2]
    assert AnswerType({"type": "object"}).parse(data({"a": 3.0, "b": [None, 1.5]})) == {"a": 3, "b": [None, 1.5]}


@pytest.mark.parametrize(
    ("schema", "answer_text", "answer"),
    [
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (int, "7", 7),
        (bool, "true", True),
        (str, "Oslo", "Oslo"),
        (str, "123", "123"),
        (str, '"quoted"', "quoted"),
        (Colour, "red", Colour.RED),
    ],
)
def test_a_text_is_json_or_the_answer_itself(schema: Any, answer_text: str, answer: Any) -> None:
    assert AnswerType(schema).parse(text(answer_text)) == answer


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        (data({"city": "oslo", "seats": 12}), "message.parts[0].data city: 'oslo' does not match '^[A-Z]'."),
        (data({"city": "oslo", "seats": 12}), "seats: 12 is greater than the maximum of 9."),
        (data({"city": "oslo", "seats": 12}), "Missing: day."),
        (data(3), "message.parts[0].data 3 is not of type 'object'."),
        (data({"city": "Atlantis", "day": "2030-01-01"}), "city: Atlantis has no station."),
        (data({"city": "Oslo", "day": "soon"}), "day: Input should be a valid date"),
        (text("Oslo"), "message.parts[0].text This text is not JSON: send a data part, or JSON as text."),
        (text("[NaN]"), "This text is not JSON"),
        (text("[" * 5000), "This text is not JSON"),
        (text("3"), "message.parts[0].text 3 is not of type 'object'."),
        (text(" "), "message.parts Send the answer as a data part, or as JSON text."),
        (Message(), "message.parts Send the answer as a data part, or as JSON text."),
        (Message(parts=[new_data_part(1), new_data_part(2)]), "message.parts Send one data part with the complete"),
        (text('{"city": ' * 40 + "1" + "}" * 40), "nested deeper than 30 levels."),
        (text('"' + "x" * 140_000 + '"'), "larger than 131072 bytes"),
    ],
)
def test_a_refusal_names_the_field_and_the_rule(message: Message, refusal: str) -> None:
    assert refusal in refusal_of(Trip, message)


@pytest.mark.parametrize(
    ("schema", "answer_text", "refusal"),
    [
        (Colour, "green", "message.parts[0].text 'green' is not one of ['red', 'blue']."),
        (Colour, '"green"', "'green' is not one of ['red', 'blue']."),
        (Colour, "3", "'3' is not one of ['red', 'blue']."),
        ({"type": "string", "minLength": 4}, "NW1", "'NW1' is too short."),
        ({"enum": ["small", 3]}, "large", "'large' is not one of ['small', 3]."),
        (int, "many", "This text is not JSON: send a data part, or JSON as text."),
    ],
)
def test_a_refusal_of_a_text_names_the_rule_if_the_schema_accepts_a_string(
    schema: Any, answer_text: str, refusal: str
) -> None:
    assert refusal in refusal_of(schema, text(answer_text))


def test_a_refusal_quotes_little_of_a_long_answer() -> None:
    assert len(refusal_of(int, data("x" * 5000))) < 400


def test_a_pattern_takes_linear_time() -> None:
    assert "does not match" in refusal_of({"type": "string", "pattern": "^(a+)+$"}, data("a" * 60_000 + "b"))


def test_items_are_compared_in_linear_time() -> None:
    schema = {"type": "array", "uniqueItems": True}
    items = [{"a": number} for number in range(8000)]

    assert AnswerType(schema).parse(data(items)) == items
    assert "must be unique" in refusal_of(schema, data([{"a": 1}, {"a": 1.0}]))


def test_an_answer_that_takes_too_long_to_check_is_refused() -> None:
    answer: Any = "no tree"
    for _ in range(12):
        answer = {"left": answer, "right": answer}
    tree, pair = {"$ref": "#/$defs/tree"}, {"$ref": "#/$defs/pair"}
    inner = {"type": "object", "properties": {"left": tree, "right": tree}}
    schema = {"$defs": {"tree": {"anyOf": [pair, pair]}, "pair": inner}, **tree}

    assert "too many values" in refusal_of(schema, data(answer))


def test_a_schema_that_refers_to_itself_is_refused_before_the_stack_is_full() -> None:
    """On a full stack, the registry of schemas panics with a BaseException, in particular under a profiler."""
    sys.setprofile(lambda *_: None)
    try:
        assert "too many values" in refusal_of({"$ref": "#"}, data(1))
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "https://example.com/schema"}, "must begin with #, to refer to the same schema"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "must begin with #, to refer to the same schema"),
        ({"$ref": "#/$defs/missing"}, "refers to a part that does not exist"),
        ({"$id": "https://example.com"}, r"uses \$id"),
        ({"items": {"$dynamicRef": "#x"}}, r"uses \$dynamicRef"),
        ({"patternProperties": {"(a+)+$": {}}}, "uses patternProperties"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "must be JSON Schema 2020-12"),
        ({"type": "strin"}, "is not a JSON Schema"),
        ({"pattern": "(?=x)"}, "look-around"),
        ({"pattern": "("}, "is refused"),
        ({"pattern": 7}, "is refused"),
        ({"default": object()}, "is not JSON"),
        ({"default": float("nan")}, "is not JSON"),
        ({"description": "x" * MAX_SCHEMA_BYTES}, "more than the maximum of 65536"),
    ],
)
def test_a_schema_that_a_question_cannot_have(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        require_valid_schema(checked_schema(schema))


def test_a_schema_that_is_too_deep() -> None:
    schema: dict[str, Any] = {}
    for _ in range(40):
        schema = {"items": schema}

    with pytest.raises(ValueError, match="deeper than 30 levels"):
        checked_schema(schema)


def test_properties_may_be_called_like_keywords() -> None:
    names = {"$ref": {"type": "string"}, "$id": {"type": "integer"}, "pattern": {"type": "string"}}

    schema = checked_schema({"properties": names, "enum": [{"$ref": "https://example.com"}]})

    require_valid_schema(schema)


def test_the_part_of_a_schema_can_be_recognised_and_read() -> None:
    part = schema_part(AnswerType(Trip).schema)

    assert part.media_type == SCHEMA_MEDIA_TYPE
    assert dict(part.metadata) == {"a2a_celery/answer_schema": True}
    assert schema_in([Part(text="Where to?"), part]) == AnswerType(Trip).schema
    assert schema_in([Part(text="Where to?"), new_data_part({"type": "object"}, media_type=SCHEMA_MEDIA_TYPE)]) is None
    properties = AnswerType(Trip).schema["properties"]
    assert sorted(properties, key=lambda name: properties[name][PROPERTY_ORDER]) == list(Trip.model_fields)


def test_several_questions_are_answered_by_their_keys() -> None:
    types = AnswerTypes(
        {
            "trip": Question("Where to?", Trip),
            "a/b ~c%": Question("Which tree?", Tree),
            "name": Question("Your name?"),
            "size": Question("", {"type": "integer"}),
        }
    )
    require_valid_schema(types.schema)
    trip, tree = {"city": "Oslo", "day": "2030-01-01"}, {"left": {"left": 1, "right": 2}, "right": 3}

    answers = types.parse(data({"trip": trip, "a/b ~c%": tree, "name": "Ada", "size": 3}))

    assert answers["trip"].city == "Oslo"
    assert answers["a/b ~c%"].left.right == 2
    assert (answers["name"], answers["size"]) == ("Ada", 3)
    assert types.schema["properties"]["trip"]["description"] == "Where to?"


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        ({"name": "Ada"}, "Missing: trip, size."),
        ({"trip": {}, "name": "Ada", "size": 1, "extra": 1}, "Unknown: extra. Known: trip, name, size."),
        ({"trip": {"city": "Oslo"}, "name": "Ada", "size": 1}, "trip: Missing: day."),
        ({"trip": {"city": "Atlantis", "day": "2030-01-01"}, "name": "A", "size": 1}, "trip.city: Atlantis has no"),
    ],
)
def test_an_incomplete_answer_to_several_questions_names_the_keys(answer: dict[str, Any], refusal: str) -> None:
    questions = {"trip": Question("", Trip), "name": Question("Name?"), "size": Question("Size?", int)}

    with pytest.raises(AnswerRefused) as exc_info:
        AnswerTypes(questions).parse(data(answer))

    assert refusal in str(exc_info.value)


def test_there_is_no_answer_to_no_question() -> None:
    with pytest.raises(ValueError, match="at least one question"):
        AnswerTypes({})


def test_answers_to_questions_with_a_schema_are_not_arguments() -> None:
    """A worker of an earlier release does not mark the questions of `Turn.ask`."""
    question = Message(role=Role.ROLE_AGENT, parts=[schema_part({"type": "string"})])
    arguments, answer = (Message(role=Role.ROLE_USER, parts=[Part(text=text)]) for text in ("arguments", "answer"))

    assert messages_with_arguments(Task(history=[arguments, question, answer]), None) == [arguments]
