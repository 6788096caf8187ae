"""Data parts of a message as task arguments. The task receives the client's values, or the client receives an error."""

from __future__ import annotations

import json
from datetime import date
from typing import Any, Literal

import pytest
from a2a.helpers import new_data_part
from a2a.types import Message
from celery import Celery, Task
from celery.exceptions import Retry
from pydantic import BaseModel

from a2a_celery.dispatch import BadCall, Call, CallSignature, RunOptions
from a2a_celery.execution.plain_tasks.celery_retries import retry_options


@pytest.fixture
def task() -> Task:
    """Task that accepts any arguments."""
    celery = Celery(set_as_current=False)

    @celery.task(max_retries=3, shared=False)
    def takes(value: Any = None, **more: Any) -> None:
        pass

    return celery.tasks[takes.name]


@pytest.mark.parametrize("kind", ["no such type", "datetime", "uuid"])
@pytest.mark.parametrize("within", [lambda o: o, lambda o: [o], lambda o: {"deep": o}])
def test_objects_that_kombu_would_convert_are_refused(task: Task, kind: str, within: Any) -> None:
    """kombu would convert such an object to a Python value. If kombu could not decode the message, no worker would
    receive the run."""
    data = {"value": within({"__type__": kind, "__value__": "2030-01-01"})}

    with pytest.raises(BadCall, match="__type__"):
        CallSignature.of(task).call([Message(parts=[new_data_part(data)])])


@pytest.mark.parametrize("messages", [1, 2])
def test_no_parts_become_something_else_together(task: Task, messages: int) -> None:
    parts = [new_data_part({"__type__": "no such type"}), new_data_part({"__value__": 1})]
    client_messages = [Message(parts=parts)] if messages == 1 else [Message(parts=[part]) for part in parts]

    with pytest.raises(BadCall, match="__type__"):
        CallSignature.of(task).call(client_messages)


def test_keys_of_kombu_among_others_are_accepted(task: Task) -> None:
    data = {"value": {"__type__": "x", "__value__": 1, "more": 2}, "__type__": "y"}

    assert CallSignature.of(task).call([Message(parts=[new_data_part(data)])]) == data


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"value": 2}, {"value": 2}),
        ({"value": date(2030, 1, 1)}, {"value": {"__type__": "date", "__value__": "2030-01-01"}}),
        ({"value": object()}, {"value": 1}),
    ],
    ids=["JSON", "what kombu makes JSON of", "no JSON at all"],
)
def test_a_retry_with_other_arguments_can_be_stored(
    task: Task, arguments: dict[str, Any], expected: dict[str, Any]
) -> None:
    options_json = RunOptions(call=Call(task.name, {"value": 1})).to_json()
    retry = Retry(sig=task.signature(kwargs=arguments))

    options = RunOptions.from_json(retry_options(options_json, retry, 1, task.app).to_json())

    assert options.call == Call(task.name, expected)
    assert options.retries == 1


@pytest.fixture
def typed() -> CallSignature:
    """Signature of a task with typed arguments."""
    celery = Celery(set_as_current=False)

    @celery.task(shared=False)
    def order(order_id: int = 0, ids: list[int] | None = None, price: float = 0.0, note: Any = None) -> None:
        pass

    return CallSignature.of(celery.tasks[order.name])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"order_id": "1234567890123456789"}, {"order_id": 1234567890123456789}),
        ({"ids": ["1234567890123456789", 5]}, {"ids": [1234567890123456789, 5]}),
        (
            {"order_id": 2**53 - 1, "price": 1e300, "note": 1e300},
            {"order_id": 2**53 - 1, "price": 1e300, "note": 1e300},
        ),
        ({"price": 1e18}, {"price": 1e18}),
    ],
)
def test_large_whole_numbers_are_exact_as_texts(typed: CallSignature, data: Any, expected: Any) -> None:
    call = typed.call([Message(parts=[new_data_part(data)])])

    assert call == expected
    assert {name: type(value) for name, value in call.items()} == {n: type(value) for n, value in expected.items()}


@pytest.mark.parametrize("data", [{"order_id": 1234567890123456789}, {"ids": [1, 2**53]}, {"order_id": -(2.0**60)}])
def test_a_rounded_number_is_not_an_argument_of_the_type_int(typed: CallSignature, data: Any) -> None:
    """Over gRPC, the client has already converted its numbers to doubles."""
    with pytest.raises(BadCall, match="send the digits as a text"):
        typed.call([Message(parts=[new_data_part(data)])])


class Size(BaseModel):
    """Model with a required and an optional field."""

    width: int
    unit: str = "px"


class Node(BaseModel):
    """Model that contains itself."""

    node: Node


@pytest.mark.parametrize(
    ("hint", "example"),
    [
        (int, 0),
        (float, 0.0),
        (bool, False),
        (list[str], []),
        (dict[str, int], {}),
        (str, "…"),
        (date, "…"),
        (Any, "…"),
        (int | None, 0),
        (Literal["small", "large"], "small"),
        (Size, {"width": 0}),
        (list[Size], []),
    ],
)
def test_the_suggested_arguments_have_the_type_of_the_task(hint: Any, example: Any) -> None:
    celery = Celery(set_as_current=False)

    def scale(value: Any, url: str) -> None:
        pass

    scale.__annotations__["value"] = hint
    signature = CallSignature.of(celery.task(shared=False)(scale))

    with pytest.raises(BadCall) as refusal:
        signature.call([])

    suggested, _, _ = str(refusal.value).partition("like ")[2].partition(". Arguments: ")
    assert json.loads(suggested) == {"value": example, "url": "…"}


def test_the_example_of_a_model_that_contains_itself_ends() -> None:
    celery = Celery(set_as_current=False)

    @celery.task(shared=False)
    def walk(node: Any) -> None:
        pass

    walk.run.__annotations__["node"] = Node
    with pytest.raises(BadCall, match="send a data part like"):
        CallSignature.of(walk).call([])
