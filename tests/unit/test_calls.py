"""Data parts of a message as task arguments. The task receives the client's values, or the client receives an error."""

from __future__ import annotations

from datetime import date
from types import SimpleNamespace
from typing import Any

import pytest
from a2a.helpers import new_data_part
from a2a.types import Message
from celery import Celery, Task
from celery.exceptions import Retry

from a2a_celery.dispatch import BadCall, Call, CallSignature, RunOptions
from a2a_celery.execution.plain_tasks.plain_task import TaskAdapter


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
    task.push_request(id="t.1", retries=0)
    agent: Any = SimpleNamespace(name="takes")
    adapter = TaskAdapter(agent, task, lambda: None)
    adapter._error = Retry(sig=task.signature(kwargs=arguments))
    options_json = RunOptions(call=Call(task.name, {"value": 1})).to_json()

    options = RunOptions.from_json(adapter.options(options_json).to_json())

    assert options.call == Call(task.name, expected)
    assert options.retries == 1
    task.pop_request()
