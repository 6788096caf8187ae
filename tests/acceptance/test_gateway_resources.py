"""Resources that a gateway uses for waiting calls, for messages with too many values, and for disconnected clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import grpc.aio
import httpx
import pytest
import redis
from a2a.types import SendMessageRequest, a2a_pb2_grpc
from google.protobuf.json_format import ParseDict

from a2a_celery.operations.requests import MAX_JSON_VALUES
from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.waiting import LIMIT, eventually, eventually_async

HEADERS = {"A2A-Version": "1.0"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, Gateway]]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.worker(pool="threads", concurrency=4)
        yield fleet, fleet.gateway(grpc=True)


def body(text: str, *, data: Any = None, **more: Any) -> dict[str, Any]:
    part = {"text": text} if data is None else {"data": data}
    return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [part], **more}}


async def send_and_leave(url: str, context: str) -> None:
    """Send three concurrent messages, and disconnect when their tasks are listed."""
    async with httpx.AsyncClient(headers=HEADERS, timeout=None) as client:

        async def is_accepted() -> bool:
            response = await client.get(f"{url}/tasks?contextId={context}")
            return len(response.json()["tasks"]) == 3

        message = body("600", contextId=context)
        send_task = [asyncio.create_task(client.post(f"{url}/message:send", json=message)) for _ in range(3)]
        await eventually_async(is_accepted, what="the messages are accepted")
        assert not any(call.done() for call in send_task)
        for call in send_task:
            call.cancel()
        await asyncio.wait(send_task)


def test_a_disconnected_client_frees_its_resources_and_cancels_nothing(site: tuple[Fleet, Gateway]) -> None:
    fleet, gateway = site
    url = f"{gateway.url}/agents/silent"
    store = redis.Redis.from_url(fleet.redis.store_url)
    context = "gone-clients"

    asyncio.run(send_and_leave(url, context))

    eventually(lambda: not store.pubsub_channels("a2a:{*"), what="nobody follows their tasks any more")
    tasks = httpx.get(f"{url}/tasks?contextId={context}", headers=HEADERS, timeout=LIMIT).json()["tasks"]
    assert {task["status"]["state"] for task in tasks} <= {"TASK_STATE_WORKING", "TASK_STATE_SUBMITTED"}
    assert len(tasks) == 3
    for task in tasks:
        httpx.post(f"{url}/tasks/{task['id']}:cancel", headers=HEADERS, timeout=LIMIT)


def test_a_message_whose_task_ends_before_its_turn_is_refused(site: tuple[Fleet, Gateway]) -> None:
    url = f"{site[1].url}/agents/silent"
    immediate_body = body("6") | {"configuration": {"returnImmediately": True}}
    task = httpx.post(f"{url}/message:send", json=immediate_body, headers=HEADERS, timeout=LIMIT).json()["task"]

    late_response = httpx.post(
        f"{url}/message:send", json=body("late", taskId=task["id"]), headers=HEADERS, timeout=LIMIT
    )

    assert late_response.status_code == 400
    assert late_response.json()["error"]["details"][0]["reason"] == "UNSUPPORTED_OPERATION"
    assert "before the turn of this message" in late_response.json()["error"]["message"]


def test_a_waiting_message_without_a_client_is_in_the_history_of_the_ended_task(site: tuple[Fleet, Gateway]) -> None:
    url = f"{site[1].url}/agents/silent"
    immediate_body = {"configuration": {"returnImmediately": True}}
    task = httpx.post(f"{url}/message:send", json=body("6") | immediate_body, headers=HEADERS, timeout=LIMIT).json()[
        "task"
    ]
    response = httpx.post(
        f"{url}/message:send", json=body("late", taskId=task["id"]) | immediate_body, headers=HEADERS, timeout=LIMIT
    )
    assert response.status_code == 200

    def read_task() -> dict[str, Any]:
        response: dict[str, Any] = httpx.get(f"{url}/tasks/{task['id']}", headers=HEADERS, timeout=LIMIT).json()
        return response

    eventually(lambda: read_task()["status"]["state"] == "TASK_STATE_COMPLETED")
    first, late_message = read_task()["history"]
    assert "metadata" not in first
    assert late_message["parts"] == [{"text": "late"}]
    assert late_message["metadata"] == {"taskEndedFirst": True}


def test_millions_of_values_delay_no_other_request(site: tuple[Fleet, Gateway]) -> None:
    url = f"{site[1].url}/agents/data/message:send"
    text = json.dumps(body("", data=[]))
    many = text.replace("[]}", "[" + "1," * 2_000_000 + "1]}")
    headers = HEADERS | {"Content-Type": "application/json"}

    answer = httpx.post(url, content=many, headers=headers, timeout=LIMIT)

    assert answer.status_code == 400
    assert f"{MAX_JSON_VALUES} values" in answer.json()["error"]["message"]


async def test_nor_do_they_over_grpc(site: tuple[Fleet, Gateway]) -> None:
    request = ParseDict(body("", data=[]), SendMessageRequest(tenant="data"))
    request.message.parts[0].data.list_value.values.extend(
        type(request.message.parts[0].data)(number_value=1) for _ in range(200_000)
    )
    async with grpc.aio.insecure_channel(site[1].grpc) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as exc_info:
            await a2a_pb2_grpc.A2AServiceStub(channel).SendMessage(request, metadata=[("a2a-version", "1.0")])

    assert exc_info.value.code() is grpc.StatusCode.INVALID_ARGUMENT
