"""JSON encoding of results, which must equal the SDK's encoding for every field of a result."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, MutableMapping
from contextvars import Context
from typing import Any

import pytest
from a2a.server.routes.common import serialize_list_tasks_response
from a2a.types import (
    Artifact,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Part,
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
from starlette.types import Receive, Scope, Send

from a2a_celery.gateway.bindings.json_results import (
    PIECE,
    SENT_AT_ONCE,
    JsonWriter,
    event_json,
    event_json_in_pieces,
    event_line,
    message_json,
    page_json,
    rpc_response,
    task_json,
)
from a2a_celery.gateway.middleware.bodies import LargeResponseMiddleware
from a2a_celery.gateway.operations.limits import ResponseMeter
from a2a_celery.gateway.operations.task_reader import response_with_tasks
from a2a_celery.lifecycle import Event
from a2a_celery.store.blobs.blob_store import MemoryBudget
from a2a_celery.store.tasks.listing import list_query
from a2a_celery.store.tasks.replies import Page
from tests.support.processes.loops import counted_turns

from .test_event_json import ARTIFACT, EVENTS, MESSAGE, STATUS

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
async def test_a_page_has_its_empty_fields_and_no_empty_fields_of_tasks(
    page: ListTasksResponse, artifacts: bool
) -> None:
    if not artifacts:  # the store returns such tasks
        page = ListTasksResponse.FromString(page.SerializeToString())
        for task in page.tasks:
            del task.artifacts[:]

    expected = serialize_list_tasks_response(page, artifacts)
    expected["tasks"] = [({"artifacts": []} if artifacts else {}) | MessageToDict(task) for task in page.tasks]
    assert json.loads(b"".join(await page_json(page, artifacts, ResponseMeter()))) == expected


@pytest.mark.parametrize("message", [*TASKS, *PAGES, MESSAGE, Message()])
@pytest.mark.parametrize("writes_empty", [True, False])
def test_the_pieces_of_a_message_are_the_message(message: Task | ListTasksResponse, writes_empty: bool) -> None:
    writer = JsonWriter(lambda field: writes_empty)

    assert "".join(writer.pieces(message)) == writer.write(message)


STRUCTURED = {
    "empty": {},
    "scalars": {"a": 0, "b": -1.5, "c": 1e22, "d": '"ä\u2028', "e": True, "f": False, "g": None, "": ""},
    "nested": {"a": [], "b": {}, "c": [[], {}, [1, [2, {"d": [3]}], 4]], "e": {"f": {"g": [None]}}},
    "long": {"a": [0.5] * (3 * PIECE), "b": {str(n): [n] for n in range(2 * PIECE)}, "c": [[1] * PIECE, 2]},
}


@pytest.mark.parametrize("values", STRUCTURED.values(), ids=list(STRUCTURED))
def test_structured_values_are_what_the_sdk_writes(values: dict[str, Any]) -> None:
    message = ParseDict({"messageId": "m", "metadata": values, "parts": [{"data": values}, {"data": 7}]}, Message())

    assert json.loads(message_json(message)) == MessageToDict(message)
    assert "".join(JsonWriter().pieces(message)) == message_json(message)


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
async def test_an_event_with_many_values_is_written_in_small_pieces(event: Event) -> None:
    async with counted_turns() as count:
        pieces = await event_json_in_pieces(event, ResponseMeter())
        turns = count.turns

    assert max(piece.count(b"0.0") for piece in pieces) < 1000
    assert turns >= len(pieces) - 3
    assert await event_line(event, ResponseMeter()) == event_json(event)


async def test_a_page_of_many_small_tasks_is_written_in_small_pieces() -> None:
    few = ParseDict({"values": [0] * 300}, Struct())
    page = ListTasksResponse(tasks=[Task(id="t", history=[Message(metadata=few)])] * 100)

    pieces = await page_json(page, True, ResponseMeter())

    assert max(piece.count(b"0.0") for piece in pieces) < 1000
    assert json.loads(b"".join(pieces))["tasks"][99]["history"][0]["metadata"] == {"values": [0] * 300}


async def test_a_page_is_built_without_blocking_the_event_loop() -> None:
    tasks = [Task(id=str(n), history=[Message(metadata=ZEROS)]) for n in range(20)]

    async with counted_turns() as count:
        built = await response_with_tasks(list_query(ListTasksRequest()), Page(tasks, 20, False))
        turns = count.turns

    assert turns >= 20
    assert list(built.tasks) == tasks


async def test_a_task_with_many_values_does_not_block_the_event_loop() -> None:
    message = ParseDict({"messageId": "m", "metadata": {"values": [0] * 2000 * PIECE}}, Message())
    task = Task(id="t", history=[message])

    async with counted_turns() as count:
        text = b"".join(await task_json(task, ResponseMeter()))

    assert count.turns >= 40
    assert json.loads(text) == MessageToDict(task)


async def test_a_long_task_does_not_block_the_event_loop() -> None:
    parts = [Part(text=str(n)) for n in range(20 * PIECE)]
    history = [Message(message_id=str(n), parts=[Part(text="a")]) for n in range(20 * PIECE)]
    task = Task(id="t", history=history, artifacts=[Artifact(artifact_id="a", parts=parts)])
    page = ListTasksResponse(tasks=[task])
    page_fields = serialize_list_tasks_response(page, True) | {"tasks": [MessageToDict(task)]}

    async with counted_turns() as count:
        for pieces, expected in (
            (task_json(task, ResponseMeter()), MessageToDict(task)),
            (event_json_in_pieces(task, ResponseMeter()), {"task": MessageToDict(task)}),
            (page_json(page, True, ResponseMeter()), page_fields),
        ):
            count.turns = 0
            text = b"".join(await pieces)
            assert count.turns >= 40
            assert json.loads(text) == expected


async def test_a_long_response_is_sent_in_pieces_and_holds_its_large_parts_until_the_last() -> None:
    budget, messages = MemoryBudget(10), []
    context_id = b"c" * SENT_AT_ONCE
    result = [b'{"id": ', b'"t"', b', "contextId": "' + context_id, context_id, context_id + b'"}']

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        budget.hold(await budget.acquire(10))
        await rpc_response(1, result)(scope, receive, send)

    async def send(message: MutableMapping[str, Any]) -> None:
        is_free = asyncio.create_task(budget.acquire(10), context=Context())
        await asyncio.sleep(0)
        messages.append((message, is_free.done()))
        is_free.cancel()

    await LargeResponseMiddleware(app)({"type": "http"}, None, send)  # type: ignore[arg-type]

    [(start, _), *bodies] = messages
    body = b"".join(message["body"] for message, _ in bodies)
    task = {"id": "t", "contextId": 3 * context_id.decode()}
    assert json.loads(body) == {"jsonrpc": "2.0", "id": 1, "result": task}
    assert dict(start["headers"])[b"content-length"] == str(len(body)).encode()
    assert len(bodies) == 5, "three long ones, the envelope's end and an empty one"
    assert [message["more_body"] for message, _ in bodies] == [True] * (len(bodies) - 1) + [False]
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
