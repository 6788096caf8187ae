"""Shutdown of a gateway, which completes requests where possible and exits in time."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.support.clients import Frame, message_json, rest, rpc, stream
from tests.support.fleet import Fleet, Gateway
from tests.support.waiting import eventually


def serving(fleet: Fleet, workers: int) -> Gateway:
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
    eventually(lambda: not gateway.running, what=f"it has ended: {gateway.output()[-2000:]}")


@asynccontextmanager
async def asked(gateway: Gateway, agent: str, text: str) -> AsyncIterator[asyncio.Task[httpx.Response]]:
    """Start a blocking SendMessage request and yield the asyncio task that waits for the response."""
    async with asyncio.TaskGroup() as group:
        body = message_json(text)
        yield group.create_task(asyncio.to_thread(rest, gateway, "POST", "/message:send", body, agent=agent))


async def until_working(gateway: Gateway, agent: str, count: int = 1) -> None:
    def working() -> bool:
        tasks = rest(gateway, "GET", "/tasks", agent=agent).json()["tasks"]
        return sum(task["status"]["state"] == "TASK_STATE_WORKING" for task in tasks) == count

    await asyncio.to_thread(eventually, working, what=f"{agent} works")


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_call_under_way_gets_the_end_or_the_task_as_it_is(fleet: Fleet, workers: int) -> None:
    fleet.worker(pool="threads", concurrency=4)
    gateway = serving(fleet, workers)
    async with asked(gateway, "silent", "600") as long:
        await until_working(gateway, "silent")
        async with asked(gateway, "pace", "3 1") as short:
            await until_working(gateway, "pace")

            gateway.signal(signal.SIGTERM)

    assert short.result().json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert long.result().json()["task"]["status"]["state"] == "TASK_STATE_WORKING"
    wait_for_exit(gateway)


async def test_json_rpc_is_answered_alike(fleet: Fleet) -> None:
    fleet.worker(pool="threads", concurrency=4)
    gateway = fleet.gateway()
    call = asyncio.create_task(asyncio.to_thread(rpc, gateway, "SendMessage", message_json("600"), agent="silent"))
    await until_working(gateway, "silent")

    gateway.signal(signal.SIGTERM)

    assert (await call)["result"]["task"]["status"]["state"] == "TASK_STATE_WORKING"
    wait_for_exit(gateway)


@pytest.mark.parametrize("workers", [1, 2])
async def test_streams_are_cut_and_go_on_at_another_gateway(fleet: Fleet, workers: int) -> None:
    fleet.worker(pool="threads", concurrency=4)
    first, second = serving(fleet, workers), fleet.gateway()
    seen: list[Frame] = []
    async with httpx.AsyncClient() as http:
        try:
            async with stream(http, first, "/message:stream", message_json("60 0.2"), agent="pace") as frames:
                async for frame in frames:
                    seen.append(frame)
                    if len(seen) == 8:
                        first.signal(signal.SIGTERM)
        except httpx.TransportError:
            pass  # the stream was cut, and the client detects it
        assert len(seen) < 60
        wait_for_exit(first)
        task_id = seen[0].data["task"]["id"]
        path = f"/tasks/{task_id}:subscribe"
        async with stream(http, second, path, agent="pace", last_event_id=seen[-1].id) as frames:
            seen += [frame async for frame in frames]

    ids = [frame.version for frame in seen]
    assert ids == list(range(1, len(ids) + 1))
    chunks = [f.data["artifactUpdate"]["artifact"]["parts"][0]["text"] for f in seen if "artifactUpdate" in f.data]
    assert "".join(chunks) == "".join(f"{n} " for n in range(60))
    assert seen[-1].data["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
