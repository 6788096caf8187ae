"""Gateway command with several processes that share only their ports."""

from __future__ import annotations

import asyncio

import httpx
import psutil

from tests.support.clients.talk import send
from tests.support.processes.fleet import Fleet
from tests.support.waiting import LIMIT, eventually

HEADERS = {"A2A-Version": "1.0"}


def test_gateway_processes_share_the_port_and_each_answers_about_any_task(fleet: Fleet) -> None:
    fleet.worker()
    gateway = fleet.gateway(grpc=True, workers=3)
    server_processes = eventually(lambda: serving_processes(gateway.pid, gateway.url) or None, what="all serve")
    assert len(server_processes) == 3

    async def send_and_read(number: int) -> str:
        async with httpx.AsyncClient(
            headers=HEADERS, timeout=LIMIT
        ) as client:  # a new connection for each request, so that any process may respond
            message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": str(number)}]}
            send_response = await client.post(f"{gateway.url}/agents/echo/message:send", json={"message": message})
        async with httpx.AsyncClient(headers=HEADERS, timeout=LIMIT) as client:
            response = await client.get(f"{gateway.url}/agents/echo/tasks/{send_response.json()['task']['id']}")
        return str(response.json()["artifacts"][0]["parts"][0]["text"])

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(send_and_read(number) for number in range(20)))

    assert asyncio.run(all_of_them()) == [str(number) for number in range(20)]

    gateway.stop()
    eventually(lambda: not any(process.is_running() for process in server_processes), what="all processes have ended")


def test_a_gateway_logs_requests_only_if_asked(fleet: Fleet) -> None:
    quiet, talkative = fleet.gateway(), fleet.gateway(access_log=True)

    for gateway in (quiet, talkative):
        assert httpx.get(f"{gateway.url}/nothing-here", timeout=LIMIT).status_code == 404

    talkative.wait_for_output("GET /nothing-here")
    quiet.stop()
    assert "/nothing-here" not in quiet.output()


def test_each_process_logs_the_task_of_a_request(fleet: Fleet) -> None:
    gateway = fleet.gateway(workers=2, access_log=True)

    task = send(gateway, "echo", "hello", returnImmediately=True)

    gateway.wait_for_output(f"task {task['id']}")
    assert '"POST /agents/echo/message:send HTTP/1.1" 200 ' in gateway.output()


def serving_processes(pid: int, url: str) -> list[psutil.Process]:
    """Return the gateway's serving processes, or [] until all three of them serve."""
    child_processes = [p for p in psutil.Process(pid).children(recursive=True) if "spawn_main" in " ".join(p.cmdline())]
    return (
        child_processes
        if len(child_processes) == 3 and httpx.get(f"{url}/health/live", timeout=LIMIT).status_code == 200
        else []
    )
