"""Validation of answers against the schema of a question, and schemas that a question cannot have."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from itertools import count
from typing import Any, Literal

import pytest
from a2a.helpers import new_data_part
from a2a.types import Message, Part, Role, Task
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

from a2a_celery import Question
from a2a_celery.lifecycle.answers import AnswerRefused, AnswerType, AnswerTypes, require_valid_schema
from a2a_celery.lifecycle.questions import (
    MAX_SCHEMA_BYTES,
    MAX_TEXT,
    PROPERTY_ORDER,
    SCHEMA_MEDIA_TYPE,
    checked_schema,
    schema_in,
    schema_part,
)
from a2a_celery.lifecycle.schema_validation import violations_of
from a2a_celery.operations.requests import messages_with_arguments


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


Zone = Enum("Zone", {f"zone_{number}": f"Region/Zone {number}" for number in range(600)})  # type: ignore[misc]


class Add(BaseModel):
    left: Add | Mul | Text
    right: Add | Mul | Text
    op: Literal["add"]


class Mul(BaseModel):
    left: Add | Mul | Text
    right: Add | Mul | Text
    op: Literal["mul"]


class Text(BaseModel):
    text: str


def product(levels: int, text: str | int) -> dict[str, Any]:
    """Return a product of `levels` factors. The last factor is `text`."""
    answer: dict[str, Any] = {"text": text}
    for _ in range(levels):
        answer = {"op": "mul", "left": answer, "right": {"text": ""}}
    return answer


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


def work_of(check: Callable[[], object]) -> int:
    """Return the number of Python functions that `check` calls or resumes."""
    calls = 0

    def count_calls(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count_calls)
    try:
        check()
    finally:
        sys.setprofile(None)
    return calls


def memory_of(check: Callable[[], object]) -> int:
    """Return the maximum number of bytes that `check` allocates."""
    tracemalloc.start()
    try:
        check()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


EXPRESSION = AnswerType(Add | Mul | Text).schema
ZONES = AnswerType(list[Zone] | None).schema
COSTLY = {
    "a list of names, all wrong": (ZONES, ["x"] * 16_000, "is not valid under any of the given schemas"),
    "a tree with a large text": (EXPRESSION, product(6, "x" * 100_000), None),
    "a tree with a large text and a wrong leaf": (
        AnswerType(list[Add | Mul | Text]).schema,
        [product(6, "x" * 100_000), product(6, 1)],
        "is not valid under any of the given schemas",
    ),
    "a deep tree": (EXPRESSION, product(12, "x" * 100_000), "too many values"),
    "a deep tree whose unions stop at their first keyword": (
        {"$defs": EXPRESSION["$defs"], "anyOf": [{"required": ["no"], **branch} for branch in EXPRESSION["anyOf"]]},
        product(12, "x"),
        "is not valid under any of the given schemas",
    ),
    "a large constant in a union": (
        {"items": {"anyOf": [{"const": "y" * 60_000}, {"type": "string"}]}},
        ["x"] * 16_000,
        "too many values",
    ),
    "many names of properties": (
        {"items": {"properties": {str(number): {} for number in range(2000)}}},
        [{}] * 19_000,
        "too many values",
    ),
    "unevaluated items": ({"prefixItems": [{}] * 1000, "unevaluatedItems": False}, [0] * 16_000, "too many values"),
}


@pytest.mark.parametrize(("schema", "answer", "refusal"), COSTLY.values(), ids=COSTLY)
def test_the_check_of_a_costly_answer_is_bounded(schema: dict[str, Any], answer: Any, refusal: str | None) -> None:
    schema, texts = checked_schema(schema), []

    def check() -> None:
        texts[:] = [violation.text for violation in violations_of(schema, answer)]

    assert work_of(check) < 1_000_000
    assert memory_of(check) < 1_000_000
    assert [refusal is not None and refusal in text for text in texts] == ([] if refusal is None else [True])


def test_many_valid_names_are_accepted() -> None:
    answer = ["Region/Zone 599"] * 5000

    assert AnswerType(list[Zone] | None).parse(data(answer)) == [Zone("Region/Zone 599")] * 5000
    assert work_of(lambda: violations_of(ZONES, answer)) < 1_000_000


def test_a_check_lets_other_threads_run() -> None:
    pauses: list[None] = []

    assert violations_of({"items": {"type": "integer"}}, [1] * 10_000, pause=lambda: pauses.append(None)) == []

    assert len(pauses) > 10_000 / 64


def test_a_check_ends_when_its_cpu_time_is_used_up() -> None:
    schema = {"items": {"type": "integer"}}

    assert violations_of(schema, [1] * 10_000, cpu_clock=lambda: 0.0) == []
    assert "too many values" in violations_of(schema, [1] * 10_000, cpu_clock=count(step=0.01).__next__)[0].text


def test_an_answer_that_a_type_would_take_too_long_to_convert_is_refused() -> None:
    """Pydantic tries all fields of all members of a union, and cannot be interrupted."""
    assert AnswerType(Add | Mul | Text).parse(data(product(9, "x"))).op == "mul"
    assert "too many values" in refusal_of(Add | Mul | Text, data(product(25, "x")))


@pytest.mark.parametrize(
    ("schema", "answer", "refusal"),
    [
        ({"enum": [1, "1", [1, {"a": 2}], None]}, True, "True is not one of [1, '1', [1, {'a': 2}], None]."),
        ({"enum": [False]}, 0, "0 is not one of [False]."),
        ({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}, {"b": 1}], None),
        ({"uniqueItems": True}, [{"a": [1.0]}, {"a": [1]}], "The items must be unique."),
        ({"enum": [[1, {"a": 2}]]}, [1.0, {"a": 2.0}], None),
        ({"oneOf": [{"minimum": 1}, {"minimum": 2}, {"minimum": 3}]}, 1, None),
        ({"oneOf": [{"minimum": 1}, {"minimum": 2}, {"minimum": 3}]}, 2, "2 is valid under more than one of the given"),
        ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, 0, "0 is not valid under any of the given schemas."),
        ({"type": ["integer", "null"]}, "a", "'a' is not of type 'integer', 'null'."),
    ],
)
def test_values_are_compared_as_json(schema: dict[str, Any], answer: Any, refusal: str | None) -> None:
    texts = [violation.text for violation in violations_of(schema, answer)]

    assert texts == [] if refusal is None else refusal in texts[0]


@pytest.mark.parametrize(
    "schema", [{"type": "integer"}, {"enum": ["x" * 200, *range(600)]}, {"anyOf": [{"type": "integer"}, False]}]
)
@pytest.mark.parametrize("answer", ["x" * 5000, [{"name": "x" * 50}] * 100, {"y" * 200: [None] * 200}])
def test_a_violation_quotes_the_beginning_of_a_long_value(schema: dict[str, Any], answer: Any) -> None:
    [violation] = violations_of(schema, answer)

    assert violation.text.startswith(repr(answer)[:100])
    assert " … is not " in violation.text
    assert len(violation.text) <= MAX_TEXT + 1


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


@pytest.mark.parametrize("schema", [int, int | None, {"type": "integer"}, list[int]])
def test_a_rounded_whole_number_is_not_an_answer(schema: Any) -> None:
    """Over gRPC, the client has already converted its numbers to doubles."""
    value: Any = [2.0**60] if schema == list[int] else 2.0**60

    with pytest.raises(AnswerRefused):
        AnswerType(schema).parse(data(value))


def test_the_refusal_of_a_rounded_whole_number_says_what_to_send() -> None:
    refusal = refusal_of(int, data(2.0**60))

    assert refusal.startswith("message.parts[0].data 1.152921504606847e+18 is not exact")
    assert refusal.endswith("Send the answer as JSON in a text part.")


@pytest.mark.parametrize(
    ("schema", "message", "value"),
    [
        (int, text("1152921504606846977"), 1152921504606846977),
        (list[int], text("[1152921504606846977]"), [1152921504606846977]),
        (float, text("1e300"), 1e300),
    ],
)
def test_a_text_can_carry_every_number(schema: Any, message: Message, value: Any) -> None:
    assert AnswerType(schema).parse(message) == value


def test_a_data_part_can_carry_every_float() -> None:
    assert AnswerType(float).parse(data(1e300)) == 1e300
