"""Repeated messages to idempotent agents. The response is the same task on any gateway and over any binding."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest
from a2a.client import Client
from a2a.types import ListTasksRequest, Message, SendMessageRequest, StreamResponse, Task, TaskState

from tests.support.clients.bindings import (
    BINDINGS,
    ServedFleet,
    collect,
    message_json,
    request,
    rest,
    rpc,
    sdk_client,
    send,
    serve_fleet,
    state,
    texts,
)
from tests.support.clients.faults import fault
from tests.support.processes.fleet import Gateway
from tests.support.receivers.posts import in_milliseconds


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    with serve_fleet(tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=8) as served_fleet:
        yield served_fleet


@pytest.fixture(scope="module")
def second(served_fleet: ServedFleet) -> Gateway:
    """Second gateway of the same fleet."""
    return served_fleet.fleet.gateway(grpc=True)


@pytest.fixture(params=BINDINGS)
async def client(served_fleet: ServedFleet, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with sdk_client(served_fleet.gateway, "once", request.param, streaming=False) as client:
        yield client


@pytest.fixture(params=BINDINGS)
async def streaming(second: Gateway, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with sdk_client(second, "once", request.param) as client:
        yield client


def copy_request(message_request: SendMessageRequest) -> SendMessageRequest:
    """Return a copy of the request, to simulate a client that retries after a lost response."""
    copy = SendMessageRequest()
    copy.CopyFrom(message_request)
    return copy


async def send_copy(client: Client, message_request: SendMessageRequest) -> Task:
    [answer] = await collect(client.send_message(copy_request(message_request)))
    return in_milliseconds(answer.task)  # the precision of JSON, in every binding


async def test_the_same_message_is_the_same_task(client: Client, second: Gateway) -> None:
    message_request = request("hello 0")

    first = await send_copy(client, message_request)
    repeated_task = await send_copy(client, message_request)
    async with sdk_client(second, "once", "GRPC", streaming=False) as other:
        other_task = await send_copy(other, message_request)

    assert state(first) == "COMPLETED"
    assert first == repeated_task == other_task


async def test_while_it_runs_a_repeat_waits_for_the_same_task(client: Client, second: Gateway) -> None:
    message_request = request("slowly 1")

    async with sdk_client(second, "once", streaming=False) as other:
        answers = await asyncio.gather(*(send_copy(c, message_request) for c in (client, other) for _ in range(4)))

    assert state(answers[0]) == "COMPLETED"
    assert all(answer == answers[0] for answer in answers)
    assert len(texts(answers[0])) == 1


async def test_a_repeated_nonblocking_message_returns_the_current_task(client: Client) -> None:
    message_request = request("later 1", immediately=True)

    early_task, waiting_request = await send_copy(client, message_request), copy_request(message_request)
    waiting_request.configuration.return_immediately = False
    ended_task = await send_copy(client, waiting_request)
    late_task = await send_copy(client, message_request)

    assert state(early_task) in ("SUBMITTED", "WORKING")
    assert (ended_task.id, state(ended_task)) == (early_task.id, "COMPLETED")
    assert late_task == ended_task


async def test_a_repeated_stream_shows_the_task_and_what_follows(streaming: Client) -> None:
    message_request = request("streamed 1")

    first, second = await asyncio.gather(
        collect(streaming.send_message(copy_request(message_request))),
        collect(streaming.send_message(copy_request(message_request))),
    )
    repeated_events = await collect(streaming.send_message(copy_request(message_request)))

    assert first[0].task.id == second[0].task.id == repeated_events[0].task.id
    for events in (first, second):
        assert ends(events) == "TASK_STATE_COMPLETED"
        assert [e.artifact_update.artifact.parts[0].text for e in events if e.HasField("artifact_update")]
    assert len(repeated_events) == 1
    assert state(repeated_events[0].task) == "COMPLETED"


def ends(events: list[StreamResponse]) -> str:
    """Return the state in the last event of a stream."""
    return TaskState.Name(events[-1].status_update.status.state)


@pytest.mark.parametrize("binding", BINDINGS)
async def test_another_body_under_the_same_id_is_refused(served_fleet: ServedFleet, binding: str) -> None:
    message_id = uuid4().hex
    rpc(served_fleet.gateway, "SendMessage", message_json("hello 0", messageId=message_id), agent="once")
    others: list[dict[str, Any]] = [
        message_json("other 0", messageId=message_id),
        message_json("hello 0", messageId=message_id, contextId="another"),
        message_json("hello 0", messageId=message_id) | {"metadata": {"more": 1}},
        message_json("hello 0", messageId=message_id) | {"configuration": {"acceptedOutputModes": ["text/plain"]}},
    ]
    for method in ("SendMessage", "SendStreamingMessage"):
        for other in others:
            received_fault = await fault(served_fleet.gateway, binding, method, other, agent="once")

            assert received_fault.reason == "INVALID_PARAMS"
            assert list(received_fault.fields) == ["message.message_id"]


async def test_a_repeated_answer_begins_no_second_turn(client: Client) -> None:
    question_task = await send(client, "ask 0")
    answer = request("this 0.5", task_id=question_task.id)

    first, second = await asyncio.gather(send_copy(client, answer), send_copy(client, answer))
    third = await send_copy(client, answer)

    assert state(first) == "COMPLETED"
    assert first == second == third
    assert [m.parts[0].text for m in first.history if m.role == answer.message.role] == ["ask 0", "this 0.5"]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_repeated_message_that_had_no_turn_gets_the_same_response(
    served_fleet: ServedFleet, second: Gateway, binding: str
) -> None:
    immediate_body = message_json("hello 6") | {"configuration": {"returnImmediately": True}}
    task = rpc(served_fleet.gateway, "SendMessage", immediate_body, agent="once")["result"]["task"]
    late_body = message_json("late 0", taskId=task["id"])

    for gateway in (served_fleet.gateway, second):
        received_fault = await fault(gateway, binding, "SendMessage", late_body, agent="once")

        assert received_fault.reason == "UNSUPPORTED_OPERATION"
        assert "before the turn of this message" in received_fault.message
        stream_text = rest(gateway, "POST", "/message:stream", late_body, agent="once").text
        assert "before the turn of this message" in stream_text


async def test_a_repeat_of_the_first_message_ends_where_its_turn_did(client: Client) -> None:
    question = request("ask 0")
    question_task = await send_copy(client, question)
    await send_copy(client, request("ask more 1", immediately=True, task_id=question_task.id))

    repeated_task = await send_copy(client, question)

    assert repeated_task.id == question_task.id
    assert state(repeated_task) == "INPUT_REQUIRED"


async def test_an_agent_that_does_not_ask_for_it_takes_every_message(served_fleet: ServedFleet) -> None:
    async with sdk_client(served_fleet.gateway, "echo", streaming=False) as client:
        message_request = request("hello")
        first, second = await send_copy(client, message_request), await send_copy(client, message_request)
    assert first.id != second.id


def test_another_tenant_may_use_the_same_id(served_fleet: ServedFleet) -> None:
    body = message_json("hello 0")
    mine = rpc(served_fleet.gateway, "SendMessage", body, agent="once")["result"]["task"]
    theirs = rpc(served_fleet.gateway, "SendMessage", body | {"tenant": "acme"}, agent="once")["result"]["task"]

    assert mine["id"] != theirs["id"]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_direct_answer_is_given_again(served_fleet: ServedFleet, streams: bool) -> None:
    async with sdk_client(served_fleet.gateway, "once-direct", streaming=streams) as client:
        message_request = request("0")
        answers: list[Message] = []
        for _ in range(3):
            [answer] = await collect(client.send_message(copy_request(message_request)))
            answers.append(answer.message)
        task_list = await client.list_tasks(ListTasksRequest(context_id=answers[0].context_id, page_size=5))

    assert answers[0].parts[0].text == "directly"
    assert answers[0] == answers[1] == answers[2]  # the ids are equal too, so the agent ran once
    assert task_list.total_size == 0, "a message alone leaves no task"
