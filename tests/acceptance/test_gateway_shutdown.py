"""Shutdown of a gateway. The gateway completes requests where possible, and exits in time."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import httpx
import pytest
from a2a.types import TaskState, a2a_pb2_grpc

from tests.support.clients.bindings import GRPC_V1, Frame, message_json, request, rest, rpc, stream
from tests.support.processes.fleet import Fleet, Gateway
from tests.support.waiting import LIMIT, eventually


def start_gateway(fleet: Fleet, workers: int) -> Gateway:
    """Start a gateway with several processes and wait until it serves."""
    gateway = fleet.gateway(workers=workers, wait=False)

    def alive() -> bool:
        try:
            return httpx.get(f"{gateway.url}/health/live", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    eventually(alive, what="the gateway serves")
    return gateway


def wait_for_exit(gateway: Gateway) -> None:
    eventually(lambda: not gateway.is_running, what=f"it has ended: {gateway.output()[-2000:]}")


@asynccontextmanager
async def blocking_request(gateway: Gateway, agent: str, text: str) -> AsyncIterator[asyncio.Task[httpx.Response]]:
    """Start a blocking SendMessage request and yield the asyncio task that waits for the response."""
    async with asyncio.TaskGroup() as group:
        body = message_json(text)
        yield group.create_task(asyncio.to_thread(rest, gateway, "POST", "/message:send", body, agent=agent))


async def wait_until_working(gateway: Gateway, agent: str, count: int = 1) -> None:
    def is_working() -> bool:
        tasks = rest(gateway, "GET", "/tasks", agent=agent).json()["tasks"]
        return sum(task["status"]["state"] == "TASK_STATE_WORKING" for task in tasks) == count

    await asyncio.to_thread(eventually, is_working, what=f"{agent} works")


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_blocking_call_during_shutdown_returns_the_final_or_the_current_task(
    fleet: Fleet, workers: int
) -> None:
    fleet.worker(pool="threads", concurrency=4)
    gateway = start_gateway(fleet, workers)
    async with blocking_request(gateway, "silent", "600") as long:
        await wait_until_working(gateway, "silent")
        async with blocking_request(gateway, "pace", "3 1") as short:
            await wait_until_working(gateway, "pace")

            gateway.signal(signal.SIGTERM)

    assert short.result().json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert long.result().json()["task"]["status"]["state"] == "TASK_STATE_WORKING"
    wait_for_exit(gateway)


async def test_json_rpc_is_answered_alike(fleet: Fleet) -> None:
    fleet.worker(pool="threads", concurrency=4)
    gateway = fleet.gateway()
    call = asyncio.create_task(asyncio.to_thread(rpc, gateway, "SendMessage", message_json("600"), agent="silent"))
    await wait_until_working(gateway, "silent")

    gateway.signal(signal.SIGTERM)

    assert (await call)["result"]["task"]["status"]["state"] == "TASK_STATE_WORKING"
    wait_for_exit(gateway)


async def test_grpc_is_answered_alike(fleet: Fleet) -> None:
    fleet.worker(pool="threads", concurrency=4)
    gateway = fleet.gateway(grpc=True)
    message = request("600")
    message.tenant = "silent"
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        stub = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.SendMessage(message, metadata=GRPC_V1, timeout=LIMIT)
        await wait_until_working(gateway, "silent")

        gateway.signal(signal.SIGTERM)

        assert TaskState.Name((await call).task.status.state) == "TASK_STATE_WORKING"
    wait_for_exit(gateway)


@pytest.mark.parametrize("workers", [1, 2])
async def test_streams_are_cut_and_go_on_at_another_gateway(fleet: Fleet, workers: int) -> None:
    fleet.worker(pool="threads", concurrency=4)
    first, second = start_gateway(fleet, workers), fleet.gateway()
    received_frames: list[Frame] = []
    async with httpx.AsyncClient() as http:
        try:
            async with stream(http, first, "/message:stream", message_json("60 0.2"), agent="pace") as frames:
                async for frame in frames:
                    received_frames.append(frame)
                    if len(received_frames) == 8:
                        first.signal(signal.SIGTERM)
        except httpx.TransportError:
            pass  # the stream was cut, and the client detects it
        assert len(received_frames) < 60
        wait_for_exit(first)
        assert " ERROR " not in first.output()
        assert first.output().count("open streams closed: 1; clients resume them") == 1
        task_id = received_frames[0].data["task"]["id"]
        path = f"/tasks/{task_id}:subscribe"
        async with stream(http, second, path, agent="pace", last_event_id=received_frames[-1].id) as frames:
            received_frames += [frame async for frame in frames]

    ids = [frame.version for frame in received_frames]
    assert ids == list(range(1, len(ids) + 1))
    chunks = [
        f.data["artifactUpdate"]["artifact"]["parts"][0]["text"] for f in received_frames if "artifactUpdate" in f.data
    ]
    assert "".join(chunks) == "".join(f"{n} " for n in range(60))
    assert received_frames[-1].data["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
