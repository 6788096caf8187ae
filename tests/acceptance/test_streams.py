"""Event streams from any gateway. Clients receive every event once and in order, with its id, despite disconnects and
restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import redis
from a2a.types import StreamResponse, SubscribeToTaskRequest, TaskState

from tests.support.clients.bindings import (
    BINDINGS,
    Frame,
    collect,
    frames,
    message_json,
    rest,
    rpc,
    sdk_client,
    send,
    service,
    stream,
    texts,
    wait_for_state,
)
from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.waiting import LIMIT, eventually, eventually_async


@dataclass
class Pair:
    """Two gateways and three workers."""

    fleet: Fleet
    a: Gateway
    b: Gateway


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        a, b = fleet.gateway(grpc=True), fleet.gateway(grpc=True)
        fleet.worker(pool="threads", concurrency=25)
        fleet.worker(pool="threads", concurrency=25)
        fleet.worker(pool="prefork", concurrency=2)
        yield Pair(fleet, a, b)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(limits=limits) as http:
        yield http


@pytest.mark.nightly
async def test_streams_of_fifty_running_tasks_are_whole_and_in_order(pair: Pair, http: httpx.AsyncClient) -> None:
    async with sdk_client(pair.b, "pace", "HTTP+JSON", streaming=False) as client:
        # even on a loaded machine, no task may finish before each has a subscriber
        tasks = await asyncio.gather(*(send(client, "10 1", immediately=True) for _ in range(50)))

        async def follow(number: int, task_id: str) -> list[Frame]:
            headers = {"Last_Event_ID": "0"} if number % 2 else {}
            return await _subscribe(http, pair.a, "pace", task_id, **headers)

        streams = await asyncio.gather(*(follow(number, task.id) for number, task in enumerate(tasks)))

        for number, (task_frames, task) in enumerate(zip(streams, tasks, strict=True)):
            ids = [frame.version for frame in task_frames]
            assert ids == list(range(1 if number % 2 else ids[0], ids[-1] + 1)), task.id
            assert _state(task_frames[-1]) == "TASK_STATE_COMPLETED"
            assert "task" in task_frames[0].data
            assert _text_of(task_frames) == "0 1 2 3 4 5 6 7 8 9 "
            assert {frame.event for frame in task_frames} == {"message"}


async def test_two_streams_of_one_task_show_the_same(pair: Pair, http: httpx.AsyncClient) -> None:
    task_id = _begin(pair.a, "pace", "10 0.1")

    first_stream, second_stream = await asyncio.gather(
        *(_subscribe(http, gateway, "pace", task_id, Last_Event_ID="0") for gateway in (pair.a, pair.b))
    )

    assert first_stream == second_stream
    assert _text_of(first_stream) == "0 1 2 3 4 5 6 7 8 9 "


async def test_an_ended_task_is_replayed_after_any_event_on_any_gateway(pair: Pair, http: httpx.AsyncClient) -> None:
    task_id = rest(pair.a, "POST", "/message:send", message_json("4"), agent="count").json()["task"]["id"]
    complete_stream = await _subscribe(http, pair.a, "count", task_id, Last_Event_ID="0")
    assert [frame.version for frame in complete_stream] == list(range(1, len(complete_stream) + 1))

    for version in range(len(complete_stream) + 1):
        for gateway in (pair.a, pair.b):
            remaining_frames = await _subscribe(http, gateway, "count", task_id, Last_Event_ID=str(version))
            assert remaining_frames == complete_stream[version:]


@pytest.mark.parametrize("method", ["SendStreamingMessage", "message/stream"])
async def test_a_json_rpc_stream_is_numbered_from_the_first_event(
    pair: Pair, http: httpx.AsyncClient, method: str
) -> None:
    legacy = "/" in method
    params = message_json("3")
    if legacy:
        params["message"] |= {"role": "user", "kind": "message", "parts": [{"kind": "text", "text": "3"}]}
    body = {"jsonrpc": "2.0", "id": "s", "method": method, "params": params}
    headers = {"A2A-Version": "0.3" if legacy else "1.0"}

    async with http.stream(
        "POST", f"{pair.a.url}/agents/count/", json=body, headers=headers, timeout=LIMIT
    ) as response:
        received_frames = [frame async for frame in frames(response)]

    assert [frame.version for frame in received_frames] == list(range(1, len(received_frames) + 1))
    assert all(frame.data["id"] == "s" for frame in received_frames)
    assert len(received_frames) >= 5


@pytest.mark.parametrize("last_event_id", ["x", "-1", "1.5", "99999", "9" * 30, "1,2"])
def test_an_impossible_last_event_id_is_an_invalid_parameter(pair: Pair, last_event_id: str) -> None:
    task_id = _begin(pair.a, "echo", "hello")

    answer = rest(pair.b, "POST", f"/tasks/{task_id}:subscribe", agent="echo", Last_Event_ID=last_event_id)
    error = rpc(pair.b, "SubscribeToTask", {"id": task_id}, agent="echo", Last_Event_ID=last_event_id)["error"]

    assert answer.status_code == 400
    for details in (answer.json()["error"]["details"], error["data"]):
        assert details[0]["reason"] == "INVALID_PARAMS"
        assert details[1]["fieldViolations"][0]["field"] == "last-event-id"
    assert error["code"] == -32602


async def test_a_client_that_leaves_in_mid_stream_cancels_nothing(pair: Pair, http: httpx.AsyncClient) -> None:
    async with stream(http, pair.a, "/message:stream", message_json("8 0.1"), agent="pace") as events:
        first = await anext(events)
        await anext(events)
    task_id = first.data["task"]["id"]

    async with sdk_client(pair.b, "pace") as client:
        task = await wait_for_state(client, task_id, "COMPLETED", "CANCELED", "FAILED")

    assert texts(task) == ["0 1 2 3 4 5 6 7 "]


async def test_a_client_that_gives_up_on_a_blocking_send_cancels_nothing(pair: Pair, http: httpx.AsyncClient) -> None:
    body, headers = message_json("5", contextId="impatient"), {"A2A-Version": "1.0"}
    send_task = asyncio.create_task(http.post(f"{pair.a.url}/agents/silent/message:send", json=body, headers=headers))

    async def working_tasks() -> list[dict[str, Any]]:
        query = "/tasks?contextId=impatient&status=TASK_STATE_WORKING"
        tasks: list[dict[str, Any]] = rest(pair.b, "GET", query, agent="silent").json()["tasks"]
        return tasks

    [task] = await eventually_async(working_tasks, what="the task is WORKING")
    send_task.cancel()
    await asyncio.wait({send_task})

    assert send_task.cancelled()
    async with sdk_client(pair.b, "silent") as client:
        await wait_for_state(client, task["id"], "COMPLETED")


async def test_a_reader_that_does_not_read_slows_no_other_and_misses_nothing(
    pair: Pair, http: httpx.AsyncClient
) -> None:
    body = message_json("20000")
    async with stream(http, pair.a, "/message:stream", body, agent="count") as slow:
        first = await anext(slow)
        task_id = first.data["task"]["id"]

        quick = await _subscribe(http, pair.a, "count", task_id, Last_Event_ID="0")

        assert _state(quick[-1]) == "TASK_STATE_COMPLETED"
        assert [first, *[frame async for frame in slow]] == quick
    assert [frame.version for frame in quick] == list(range(1, len(quick) + 1))
    assert _text_of(quick).split() == [str(number) for number in range(20000)]


async def test_a_stream_survives_the_loss_of_its_wake_line(pair: Pair, http: httpx.AsyncClient) -> None:
    store = redis.Redis.from_url(pair.fleet.redis.store_url)
    async with stream(http, pair.a, "/message:stream", message_json("10 0.2"), agent="pace") as events:
        received_frames = [await anext(events) for _ in range(3)]
        assert store.client_kill_filter(_type="pubsub") >= 1
        received_frames += [frame async for frame in events]

    assert [frame.version for frame in received_frames] == list(range(1, len(received_frames) + 1))
    assert _text_of(received_frames) == "0 1 2 3 4 5 6 7 8 9 "


async def test_a_killed_gateways_stream_goes_on_at_another_without_a_gap(pair: Pair, http: httpx.AsyncClient) -> None:
    doomed_gateway = pair.fleet.gateway()
    received_frames: list[Frame] = []

    async def watch() -> None:
        async with stream(http, doomed_gateway, "/message:stream", message_json("15 0.2"), agent="pace") as events:
            async for frame in events:
                received_frames.append(frame)
                if len(received_frames) == 5:
                    doomed_gateway.kill()

    with pytest.raises(httpx.RemoteProtocolError):
        await watch()
    task_id = received_frames[0].data["task"]["id"]

    received_frames += await _subscribe(http, pair.b, "pace", task_id, Last_Event_ID=received_frames[-1].id)

    assert [frame.version for frame in received_frames] == list(range(1, len(received_frames) + 1))
    assert _text_of(received_frames).split() == [str(number) for number in range(15)]
    assert _state(received_frames[-1]) == "TASK_STATE_COMPLETED"


async def test_a_follow_up_is_hidden_from_streams_and_its_answer_is_not(pair: Pair, http: httpx.AsyncClient) -> None:
    question_task = rest(pair.a, "POST", "/message:send", message_json("some"), agent="ask").json()["task"]

    async with stream(http, pair.b, f"/tasks/{question_task['id']}:subscribe", agent="ask") as events:
        first = await anext(events)
        assert first.data["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        rest(pair.a, "POST", "/message:send", message_json("7", taskId=question_task["id"]), agent="ask")
        received_frames = [frame async for frame in events]

    assert _text_of(received_frames) == "7 it is"
    assert _state(received_frames[-1]) == "TASK_STATE_COMPLETED"
    assert sorted(frame.version for frame in received_frames) == [frame.version for frame in received_frames]


@pytest.mark.parametrize("tenant", ["", "/acme"])
async def test_a_task_is_subscribed_to_with_get_too(pair: Pair, http: httpx.AsyncClient, tenant: str) -> None:
    task = rest(pair.a, "POST", f"{tenant}/message:send", message_json("some"), agent="ask").json()["task"]
    path, answer = f"{tenant}/tasks/{task['id']}:subscribe", message_json("7", taskId=task["id"])

    async with stream(http, pair.b, path, agent="ask", method="GET") as events:
        first = await anext(events)
        rest(pair.a, "POST", f"{tenant}/message:send", answer, agent="ask")
        received_frames = [frame async for frame in events]

    assert first.data["task"]["id"] == task["id"]
    assert _state(received_frames[-1]) == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_stream_without_a_reader_is_closed(pair: Pair, http: httpx.AsyncClient, binding: str) -> None:
    store = redis.Redis.from_url(pair.fleet.redis.store_url)
    task_ids = [_begin(pair.b, "silent", "60") for _ in range(10)]

    def listened_to() -> list[bytes]:
        return [name for name in store.pubsub_channels("*") if any(task_id.encode() in name for task_id in task_ids)]

    async with sdk_client(pair.a, "silent", binding) as client:
        streams = [client.subscribe(SubscribeToTaskRequest(id=task_id)) for task_id in task_ids]
        for response in streams:
            assert (await anext(response)).HasField("task")
        assert len(listened_to()) >= 10
        for response in streams:
            await response.aclose()  # type: ignore[attr-defined]

    eventually(lambda: not listened_to(), what="the gateway hangs up")
    for task_id in task_ids:
        rest(pair.a, "POST", f"/tasks/{task_id}:cancel", agent="silent")


@pytest.mark.parametrize("binding", BINDINGS)
async def test_every_binding_resumes_after_an_event(pair: Pair, binding: str) -> None:
    task_id = rest(pair.a, "POST", "/message:send", message_json("4"), agent="count").json()["task"]["id"]

    async def events(version: int) -> list[StreamResponse]:
        async with sdk_client(pair.b, "count", binding) as client:
            context = service(last_event_id=str(version))
            return await collect(client.subscribe(SubscribeToTaskRequest(id=task_id), context=context))

    complete_stream = await events(0)

    assert complete_stream[0].HasField("task")
    assert complete_stream[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    assert [await events(version) for version in range(len(complete_stream) + 1)] == [
        complete_stream[version:] for version in range(len(complete_stream) + 1)
    ]


async def _subscribe(
    http: httpx.AsyncClient, gateway: Gateway, agent: str, task_id: str, **headers: str
) -> list[Frame]:
    async with stream(http, gateway, f"/tasks/{task_id}:subscribe", agent=agent, **headers) as events:
        return [frame async for frame in events]


def _begin(gateway: Gateway, agent: str, text: str) -> str:
    params = message_json(text) | {"configuration": {"returnImmediately": True}}
    task_id: str = rest(gateway, "POST", "/message:send", params, agent=agent).json()["task"]["id"]
    return task_id


def _state(frame: Frame) -> str:
    state: str = frame.data["statusUpdate"]["status"]["state"]
    return state


def _text_of(frames: list[Frame]) -> str:
    """Return the text of all artifacts of a stream. If the stream starts with a task, the task contains the earlier
    text."""
    text = ""
    if "task" in frames[0].data:
        text += "".join(
            p["text"] for artifact in frames[0].data["task"].get("artifacts", []) for p in artifact["parts"]
        )
    for frame in frames:
        if "artifactUpdate" in frame.data:
            text += "".join(part["text"] for part in frame.data["artifactUpdate"]["artifact"]["parts"])
    return text
