"""All operations with an unmodified SDK client, over each binding and protocol version, on each pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from a2a.client import A2AClientError, Client
from a2a.types import (
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    StreamResponse,
    SubscribeToTaskRequest,
)
from a2a.utils.errors import (
    A2AError,
    MethodNotFoundError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from tests.support.clients.bindings import (
    BINDINGS,
    ServedFleet,
    card_of,
    collect,
    sdk_client,
    send,
    serve_fleet,
    service,
    state,
    stream,
    texts,
    wait_for_state,
)
from tests.support.clients.bindings import request as message
from tests.support.clients.credentials import API_KEYS, KEY_OF_ANN
from tests.support.processes.fleet import Gateway

WAYS = [*((binding, "1.0") for binding in BINDINGS), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3")]


@pytest.fixture(scope="module", params=["prefork", "threads"])
def served_fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    with serve_fleet(tmp_path_factory.mktemp("fleet"), pool=request.param, concurrency=4) as served_fleet:
        yield served_fleet


@pytest.fixture(params=WAYS, ids="-".join)
def way(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Binding and protocol version."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def connect(served_fleet: ServedFleet, way: tuple[str, str]) -> AsyncIterator[object]:
    """Function that creates clients.

    ``connect(agent)`` returns a client for blocking calls, and ``connect(agent, streaming=True)`` a streaming client.
    """
    binding, version = way
    open_clients = []

    async def client(agent: str = "", *, streaming: bool = False) -> Client:
        client_context = sdk_client(served_fleet.gateway, agent, binding, version=version, streaming=streaming)
        open_clients.append(client_context)
        return await client_context.__aenter__()

    yield client
    for client_context in open_clients:
        await client_context.__aexit__(None, None, None)


async def test_a_blocking_send_gives_the_task_when_it_has_ended(connect) -> None:
    task = await send(await connect("echo"), "hello")

    assert state(task) == "COMPLETED"
    assert texts(task) == ["hello"]
    assert [part.text for part in task.history[0].parts] == ["hello"]


async def test_the_first_agent_answers_at_the_root(connect) -> None:
    assert texts(await send(await connect(""), "root")) == ["root"]


async def test_an_immediate_send_gives_the_task_before_its_agent_is_done(connect) -> None:
    client = await connect("silent")

    task = await send(client, "30", immediately=True)

    assert state(task) in ("SUBMITTED", "WORKING")
    await client.cancel_task(CancelTaskRequest(id=task.id))


async def test_a_stream_shows_the_task_and_every_event_to_the_end(connect) -> None:
    events = await collect((await connect("full", streaming=True)).send_message(message("said")))

    assert events[0].HasField("task")
    types = [event.WhichOneof("payload") for event in events[1:]]
    assert types == ["status_update", *["artifact_update"] * 3, "status_update"]
    chunks = [event.artifact_update for event in events if event.HasField("artifact_update")]
    assert [chunk.append for chunk in chunks] == [False, True, False]
    assert [chunk.artifact.parts[0].text for chunk in chunks[:2]] == ["said", "!"]
    assert _last_state(events) == "COMPLETED"


async def test_separators_of_lines_in_a_stream_break_no_client(connect) -> None:
    text = "one\u2028two\u2029three\x85four\nfive\r\n"

    events = await collect((await connect("echo", streaming=True)).send_message(message(text)))

    chunks = [event.artifact_update for event in events if event.HasField("artifact_update")]
    assert [chunk.artifact.parts[0].text for chunk in chunks] == [text]


async def test_a_task_is_read_as_it_ended(connect) -> None:
    client = await connect("full")
    sent_task = await send(client, "said")

    stored_task = await client.get_task(GetTaskRequest(id=sent_task.id))

    assert stored_task == sent_task
    assert texts(stored_task)[0] == "said!"
    assert stored_task.status.message.parts[0].text == "bye"


async def test_a_running_task_is_followed_from_a_second_connection(connect) -> None:
    sender, follower = await connect("pace"), await connect("pace", streaming=True)
    task = await send(sender, "6 0.7", immediately=True)
    events = await collect(follower.subscribe(SubscribeToTaskRequest(id=task.id)))

    assert events[0].HasField("task")
    assert events[0].task.id == task.id
    assert _last_state(events) == "COMPLETED"
    received_frames = texts(events[0].task) + [
        event.artifact_update.artifact.parts[0].text for event in events if event.HasField("artifact_update")
    ]
    assert "".join(received_frames) == "0 1 2 3 4 5 "


async def test_a_running_task_is_cancelled(connect, way: tuple[str, str]) -> None:
    client = await connect("silent")
    task = await send(client, "60", immediately=True)
    await wait_for_state(client, task.id, "WORKING")

    canceled_task = await client.cancel_task(CancelTaskRequest(id=task.id))

    assert state(canceled_task) == "CANCELED"
    with pytest.raises(_client_error(way, TaskNotCancelableError)):
        await client.cancel_task(CancelTaskRequest(id=task.id))


async def test_an_ended_task_takes_no_subscriber(connect, way: tuple[str, str]) -> None:
    task = await send(await connect("echo"), "done")
    client = await connect("echo", streaming=True)

    with pytest.raises(_client_error(way, UnsupportedOperationError)):
        await collect(client.subscribe(SubscribeToTaskRequest(id=task.id)))


async def test_an_unknown_task_is_not_found(connect, way: tuple[str, str]) -> None:
    client = await connect("echo")

    for call in (client.get_task(GetTaskRequest(id="nobody")), client.cancel_task(CancelTaskRequest(id="nobody"))):
        with pytest.raises(_client_error(way, TaskNotFoundError)):
            await call


async def test_tasks_are_listed(connect, way: tuple[str, str]) -> None:
    if way[1] == "0.3":  # protocol 0.3 has no ListTasks
        with pytest.raises(NotImplementedError):
            await (await connect("echo")).list_tasks(ListTasksRequest())
        return
    client = await connect("echo")
    task = await send(client, "listed")

    page = await client.list_tasks(ListTasksRequest(context_id=task.context_id, include_artifacts=True))

    assert [entry.id for entry in page.tasks] == [task.id]
    assert texts(page.tasks[0]) == ["listed"]
    assert page.total_size == 1
    assert page.next_page_token == ""


@pytest.fixture(scope="module")
def keyed(served_fleet: ServedFleet) -> Gateway:
    """Gateway of the fleet that requires API keys."""
    return served_fleet.fleet.gateway(grpc=True, **API_KEYS)


async def test_the_extended_card_is_given(keyed: Gateway, way: tuple[str, str]) -> None:
    binding, version = way
    async with sdk_client(keyed, "full", binding, version=version) as client:
        card = await client.get_extended_agent_card(GetExtendedAgentCardRequest(), context=service(**KEY_OF_ANN))

    assert card.name == "full-extended"
    assert card.supported_interfaces, "a client that puts it in the public card's place must be able to go on"


async def test_a_question_is_answered_by_naming_the_task(connect) -> None:
    client = await connect("ask")
    question_task = await send(client, "some")
    assert state(question_task) == "INPUT_REQUIRED"
    assert question_task.status.message.parts[0].text == "How many?"

    answered_task = await send(client, "7", task_id=question_task.id)

    assert answered_task.id == question_task.id
    assert answered_task.context_id == question_task.context_id
    assert state(answered_task) == "COMPLETED"
    assert texts(answered_task) == ["7 it is"]


LEGACY_REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "JSONRPC": ("/", {"message": {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hello"}]}}),
    "HTTP+JSON": (
        "/v1/message:stream",
        {"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "hello"}]}},
    ),
}


def finality(event: Any) -> tuple[str, bool] | None:
    """Return the state and the flag `final` of a status update of protocol 0.3, or None for any other event."""
    update = event["result"] if "result" in event else event.get("statusUpdate", {})
    if update.get("kind", "status-update") != "status-update" or not update:
        return None
    name = update["status"]["state"].removeprefix("TASK_STATE_").lower().replace("_", "-")
    return name, update.get("final", False)


@pytest.mark.parametrize("binding", LEGACY_REQUESTS)
async def test_the_last_status_of_a_stream_of_03_is_final(served_fleet: ServedFleet, binding: str) -> None:
    path, params = LEGACY_REQUESTS[binding]
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/stream", "params": params} if path == "/" else params
    async with httpx.AsyncClient() as http:
        async with stream(http, served_fleet.gateway, path, body, agent="ask", A2A_Version="0.3") as events:
            first_turn = [event.data async for event in events]
        task = first_turn[0].get("result") or first_turn[0]["task"]
        async with sdk_client(served_fleet.gateway, "ask", streaming=False) as client:
            await send(client, "7", task_id=task["id"])
        resumed = {"A2A_Version": "0.3", "Last_Event_ID": "1"}
        path = f"/v1/tasks/{task['id']}:subscribe"
        async with stream(http, served_fleet.gateway, path, agent="ask", method="GET", **resumed) as events:
            both_turns = [event.data async for event in events]

    working, question = ("working", False), "input-required"
    assert list(filter(None, map(finality, first_turn))) == [working, (question, True)]
    assert list(filter(None, map(finality, both_turns))) == [
        *(working, (question, False), ("submitted", False), working, ("completed", True)),
    ]


async def test_a_direct_answer_comes_without_a_task(connect) -> None:
    for streaming in (False, True):
        events = await collect((await connect("direct", streaming=streaming)).send_message(message("")))

        assert [event.WhichOneof("payload") for event in events] == ["message"]
        assert events[0].message.parts[0].text == "directly"


async def test_every_agent_has_a_separate_card(served_fleet: ServedFleet) -> None:
    for agent in ("echo", "full", "sync-echo"):
        assert (await card_of(served_fleet.gateway, agent)).name == agent


def _client_error(way: tuple[str, str], error: type[A2AError]) -> type[A2AError] | tuple[type[A2AError], ...]:
    """Return the class of the error that the SDK's client raises.

    For HTTP+JSON, the SDK's 0.3 client expects an error format that the SDK's own server does not send. The client
    therefore evaluates only the status code.
    """
    return (A2AClientError, MethodNotFoundError) if way == ("HTTP+JSON", "0.3") else error


def _last_state(events: list[StreamResponse]) -> str:
    return state(events[-1].status_update)  # type: ignore[arg-type]
