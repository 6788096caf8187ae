"""JSON encoding of results, which must equal the SDK's encoding for every field of a result."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, MutableMapping
from contextvars import Context
from typing import Any

import pytest
from a2a.server.routes.common import serialize_list_tasks_response
from a2a.types import (
    Artifact,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageResponse,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from a2a_celery.gateway.bindings.json_results import (
    JsonWriter,
    event_json,
    message_json,
    page_json,
    write_result,
)
from a2a_celery.gateway.middleware.bodies import PIECE, LargeResponseMiddleware
from a2a_celery.gateway.operations.task_reader import response_with_tasks
from a2a_celery.lifecycle import Event
from a2a_celery.store.blobs.blob_store import MemoryBudget
from a2a_celery.store.tasks.listing import list_query
from a2a_celery.store.tasks.replies import Page
from tests.support.processes.loops import counted_turns

from .test_event_json import ARTIFACT, EVENTS, MESSAGE, STATUS


class RecordedWork:
    """Executes heavy work at once, and counts it."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of `function`."""
        self.count += 1
        return function(*args)


TASKS = [event for event in EVENTS if isinstance(event, Task)]
PAGES = [
    ListTasksResponse(),
    ListTasksResponse(tasks=TASKS, next_page_token="n", page_size=50, total_size=2**31 - 1),
    ListTasksResponse(tasks=[Task(id="t", status=STATUS, history=[MESSAGE])], total_size=1),
]


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_what_the_sdk_writes(task: Task) -> None:
    assert json.loads(message_json(task)) == MessageToDict(task)


@pytest.mark.parametrize("payload", [*TASKS, MESSAGE, Message()])
def test_a_sent_message_is_what_the_sdk_writes(payload: Task | Message) -> None:
    field = "task" if isinstance(payload, Task) else "message"
    expected = MessageToDict(SendMessageResponse(**{field: payload}))  # type: ignore[arg-type]

    assert json.loads(event_json(payload)) == expected


@pytest.mark.parametrize("artifacts", [True, False])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_its_empty_fields_and_no_empty_fields_of_tasks(page: ListTasksResponse, artifacts: bool) -> None:
    if not artifacts:  # the store returns such tasks
        page = ListTasksResponse.FromString(page.SerializeToString())
        for task in page.tasks:
            del task.artifacts[:]

    expected = serialize_list_tasks_response(page, artifacts)
    expected["tasks"] = [({"artifacts": []} if artifacts else {}) | MessageToDict(task) for task in page.tasks]
    assert json.loads(page_json(page, artifacts)) == expected


STRUCTURED = {
    "empty": {},
    "scalars": {"a": 0, "b": -1.5, "c": 1e22, "d": '"ä\u2028', "e": True, "f": False, "g": None, "": ""},
    "nested": {"a": [], "b": {}, "c": [[], {}, [1, [2, {"d": [3]}], 4]], "e": {"f": {"g": [None]}}},
    "long": {"a": [0.5] * 150, "b": {str(n): [n] for n in range(100)}, "c": [[1] * 50, 2]},
}


@pytest.mark.parametrize("values", STRUCTURED.values(), ids=list(STRUCTURED))
def test_structured_values_are_what_the_sdk_writes(values: dict[str, Any]) -> None:
    message = ParseDict({"messageId": "m", "metadata": values, "parts": [{"data": values}, {"data": 7}]}, Message())

    assert json.loads(message_json(message)) == MessageToDict(message)


ZEROS = ParseDict({"values": [0] * 5000}, Struct())
MANY_VALUES = {
    "history": Task(id="t", history=[Message(metadata=ZEROS)]),
    "status": Task(id="t", status=TaskStatus(message=Message(metadata=ZEROS))),
    "artifact": Task(id="t", artifacts=[Artifact(metadata=ZEROS)]),
    "message": Message(metadata=ZEROS),
    "artifact update": TaskArtifactUpdateEvent(artifact=Artifact(metadata=ZEROS)),
    "status update": TaskStatusUpdateEvent(status=TaskStatus(message=Message(metadata=ZEROS))),
}


@pytest.mark.parametrize("event", MANY_VALUES.values(), ids=list(MANY_VALUES))
async def test_a_large_result_is_written_as_heavy_work(event: Event) -> None:
    worker = RecordedWork()

    written = await write_result(event, GetTaskRequest(), worker, lambda text: f"[{text}]")

    assert json.loads(written) == [MessageToDict(event)]
    assert worker.count == 1


async def test_a_page_of_many_small_tasks_is_written_as_heavy_work() -> None:
    page, worker = ListTasksResponse(tasks=[Task(id="t", history=[MESSAGE])] * 100), RecordedWork()

    await write_result(page, ListTasksRequest(), worker)
    await write_result(ListTasksResponse(tasks=[Task(id="t")]), ListTasksRequest(), worker)

    assert worker.count == 1


async def test_a_page_is_built_without_blocking_the_event_loop() -> None:
    tasks = [Task(id=str(n), history=[Message(metadata=ZEROS)]) for n in range(20)]

    async with counted_turns() as count:
        built = await response_with_tasks(list_query(ListTasksRequest()), Page(tasks, 20, False))
        turns = count.turns

    assert turns >= 20
    assert list(built.tasks) == tasks


async def test_a_long_response_is_sent_in_pieces_and_holds_its_large_parts_until_the_last() -> None:
    budget, messages = MemoryBudget(10), []
    content = "c" * 2 * PIECE

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        budget.hold(await budget.acquire(10))
        await Response(content)(scope, receive, send)

    async def send(message: MutableMapping[str, Any]) -> None:
        is_free = asyncio.create_task(budget.acquire(10), context=Context())
        await asyncio.sleep(0)
        messages.append((message, is_free.done()))
        is_free.cancel()

    await LargeResponseMiddleware(app)({"type": "http"}, None, send)  # type: ignore[arg-type]

    [(start, _), *bodies] = messages
    assert b"".join(message["body"] for message, _ in bodies) == content.encode()
    assert dict(start["headers"])[b"content-length"] == str(len(content)).encode()
    assert [(len(message["body"]), message["more_body"]) for message, _ in bodies] == [(PIECE, True), (PIECE, False)]
    assert not any(is_free for _, is_free in messages)
    await asyncio.wait_for(budget.acquire(10), 10)


@pytest.mark.parametrize("answer", [StreamResponse, SendMessageResponse, ListTasksResponse])
def test_every_field_of_an_answer_can_be_written(answer: type[StreamResponse]) -> None:
    fields = list(_below(answer.DESCRIPTOR, set()))

    assert len(fields) >= 30
    for field in fields:
        assert JsonWriter().writer_of(field)


def _below(message: Descriptor, names: set[str]) -> Iterator[FieldDescriptor]:
    if message.full_name in names or message.file.package == "google.protobuf":
        return
    names.add(message.full_name)
    for field in message.fields:
        yield field
        if field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type is not None:
            yield from _below(field.message_type, names)


@pytest.mark.parametrize("seconds", [0, -1, 1_700_000_000, 253_402_300_799])
@pytest.mark.parametrize("nanos", [0, 1, 1000, 120_000, 1_000_000, 999_000_000, 999_999_000, 999_999_999])
def test_a_time_has_milliseconds(seconds: int, nanos: int) -> None:
    """Source: A2A specification 5.6.1."""
    text = json.loads(message_json(TaskStatus(timestamp=Timestamp(seconds=seconds, nanos=nanos))))["timestamp"]

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    time = Timestamp()
    time.FromJsonString(text)
    assert (time.seconds, time.nanos) == (seconds, nanos - nanos % 1_000_000)


def test_a_number_without_a_json_form_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        message_json(Task(id="t", artifacts=[ARTIFACT], history=[_with(float("nan"))]))


def _with(number: float) -> Message:
    message = Message(message_id="m")
    message.parts.add(data=Value(number_value=number))
    return message
