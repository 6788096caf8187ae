"""Repeated messages to idempotent agents. The response is the same task on any gateway and over any binding."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest
from a2a.client import Client
from a2a.types import ListTasksRequest, Message, SendMessageRequest, StreamResponse, Task, TaskState

from tests.support.clients import (
    BINDINGS,
    Served,
    collect,
    message_json,
    request,
    rest,
    rpc,
    sdk_client,
    send,
    serving,
    state,
    texts,
)
from tests.support.faults import fault
from tests.support.fleet import Gateway


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    # long enough for a loaded machine: "once-direct" must answer before its stream becomes a task
    hold = {"A2A_FIRST_EVENT_HOLD": "20"}
    with serving(tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=8, **hold) as served:
        yield served


@pytest.fixture(scope="module")
def second(served: Served) -> Gateway:
    """Second gateway of the same fleet."""
    return served.fleet.gateway(grpc=True)


@pytest.fixture(params=BINDINGS)
async def client(served: Served, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with sdk_client(served.gateway, "once", request.param, streaming=False) as client:
        yield client


@pytest.fixture(params=BINDINGS)
async def streaming(second: Gateway, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with sdk_client(second, "once", request.param) as client:
        yield client


def again(sent: SendMessageRequest) -> SendMessageRequest:
    """Return a copy of the request, for a client that repeats it because it received no response."""
    copy = SendMessageRequest()
    copy.CopyFrom(sent)
    return copy


async def one(client: Client, sent: SendMessageRequest) -> Task:
    [answer] = await collect(client.send_message(again(sent)))
    return answer.task


async def test_the_same_message_is_the_same_task(client: Client, second: Gateway) -> None:
    sent = request("hello 0")

    first = await one(client, sent)
    repeated = await one(client, sent)
    async with sdk_client(second, "once", "GRPC", streaming=False) as other:
        elsewhere = await one(other, sent)

    assert state(first) == "COMPLETED"
    assert first == repeated == elsewhere


async def test_while_it_runs_a_repeat_waits_for_the_same_task(client: Client, second: Gateway) -> None:
    sent = request("slowly 1")

    async with sdk_client(second, "once", streaming=False) as other:
        answers = await asyncio.gather(*(one(c, sent) for c in (client, other) for _ in range(4)))

    assert state(answers[0]) == "COMPLETED"
    assert all(answer == answers[0] for answer in answers)
    assert len(texts(answers[0])) == 1


async def test_at_once_a_repeat_gives_the_task_as_it_is(client: Client) -> None:
    sent = request("later 1", immediately=True)

    early, waiting = await one(client, sent), again(sent)
    waiting.configuration.return_immediately = False
    ended = await one(client, waiting)
    late = await one(client, sent)

    assert state(early) in ("SUBMITTED", "WORKING")
    assert (ended.id, state(ended)) == (early.id, "COMPLETED")
    assert late == ended


async def test_a_repeated_stream_shows_the_task_and_what_follows(streaming: Client) -> None:
    sent = request("streamed 1")

    first, second = await asyncio.gather(
        collect(streaming.send_message(again(sent))), collect(streaming.send_message(again(sent)))
    )
    after = await collect(streaming.send_message(again(sent)))

    assert first[0].task.id == second[0].task.id == after[0].task.id
    for events in (first, second):
        assert ends(events) == "TASK_STATE_COMPLETED"
        assert [e.artifact_update.artifact.parts[0].text for e in events if e.HasField("artifact_update")]
    assert len(after) == 1
    assert state(after[0].task) == "COMPLETED"


def ends(events: list[StreamResponse]) -> str:
    """Return the state in the last event of a stream."""
    return TaskState.Name(events[-1].status_update.status.state)


@pytest.mark.parametrize("binding", BINDINGS)
async def test_another_body_under_the_same_id_is_refused(served: Served, binding: str) -> None:
    message_id = uuid4().hex
    rpc(served.gateway, "SendMessage", message_json("hello 0", messageId=message_id), agent="once")
    others: list[dict[str, Any]] = [
        message_json("other 0", messageId=message_id),
        message_json("hello 0", messageId=message_id, contextId="another"),
        message_json("hello 0", messageId=message_id) | {"metadata": {"more": 1}},
        message_json("hello 0", messageId=message_id) | {"configuration": {"acceptedOutputModes": ["text/plain"]}},
    ]
    for method in ("SendMessage", "SendStreamingMessage"):
        for other in others:
            found = await fault(served.gateway, binding, method, other, agent="once")

            assert found.reason == "INVALID_PARAMS"
            assert list(found.fields) == ["message.message_id"]


async def test_a_repeated_answer_begins_no_second_turn(client: Client) -> None:
    asked = await send(client, "ask 0")
    answer = request("this 0.5", task_id=asked.id)

    first, second = await asyncio.gather(one(client, answer), one(client, answer))
    third = await one(client, answer)

    assert state(first) == "COMPLETED"
    assert first == second == third
    assert [m.parts[0].text for m in first.history if m.role == answer.message.role] == ["ask 0", "this 0.5"]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_repeated_message_that_had_no_turn_gets_the_same_response(
    served: Served, second: Gateway, binding: str
) -> None:
    begun = message_json("hello 6") | {"configuration": {"returnImmediately": True}}
    task = rpc(served.gateway, "SendMessage", begun, agent="once")["result"]["task"]
    late = message_json("late 0", taskId=task["id"])

    for gateway in (served.gateway, second):
        found = await fault(gateway, binding, "SendMessage", late, agent="once")

        assert found.reason == "UNSUPPORTED_OPERATION"
        assert "before the turn of this message" in found.message
        streamed = rest(gateway, "POST", "/message:stream", late, agent="once").text
        assert "before the turn of this message" in streamed


async def test_a_repeat_of_the_first_message_ends_where_its_turn_did(client: Client) -> None:
    question = request("ask 0")
    asked = await one(client, question)
    await one(client, request("ask more 1", immediately=True, task_id=asked.id))

    repeated = await one(client, question)

    assert repeated.id == asked.id
    assert state(repeated) == "INPUT_REQUIRED"


async def test_an_agent_that_does_not_ask_for_it_takes_every_message(served: Served) -> None:
    async with sdk_client(served.gateway, "echo", streaming=False) as client:
        sent = request("hello")
        first, second = await one(client, sent), await one(client, sent)
    assert first.id != second.id


def test_another_tenant_may_use_the_same_id(served: Served) -> None:
    body = message_json("hello 0")
    mine = rpc(served.gateway, "SendMessage", body, agent="once")["result"]["task"]
    theirs = rpc(served.gateway, "SendMessage", body | {"tenant": "acme"}, agent="once")["result"]["task"]

    assert mine["id"] != theirs["id"]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_direct_answer_is_given_again(served: Served, streams: bool) -> None:
    async with sdk_client(served.gateway, "once-direct", streaming=streams) as client:
        sent = request("0")
        answers: list[Message] = []
        for _ in range(3):
            [answer] = await collect(client.send_message(again(sent)))
            answers.append(answer.message)
        listed = await client.list_tasks(ListTasksRequest(context_id=answers[0].context_id, page_size=5))

    assert answers[0].parts[0].text == "directly"
    assert answers[0] == answers[1] == answers[2]  # the ids are equal too, so the agent ran once
    assert listed.total_size == 0, "a message alone leaves no task"
