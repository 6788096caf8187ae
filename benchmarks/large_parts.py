"""Measure a gateway's memory while several clients read one large artifact at once.

Run: python -m benchmarks.large_parts [MiB of the artifact] [clients at once]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from tests.support.clients.bindings import V1, ServedFleet, message_json, rest, serve_fleet

MIB = 1024 * 1024


async def read_at_once(served: ServedFleet, task_id: str, clients: int) -> tuple[list[int], float]:
    """Read a task with several clients at once. Return the statuses and the gateway's peak memory in MiB."""
    gateway = psutil.Process(served.gateway.pid)
    most = 0.0
    done = asyncio.Event()

    async def watch() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, gateway.memory_info().rss / MIB)
            await asyncio.sleep(0.02)

    async def read(http: httpx.AsyncClient) -> int:
        async with http.stream("GET", f"{served.url}/agents/make/tasks/{task_id}", headers=V1) as answer:
            async for _ in answer.aiter_raw():
                pass
            return answer.status_code

    watching = asyncio.create_task(watch())
    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None)) as http:
        statuses = await asyncio.gather(*(read(http) for _ in range(clients)))
    done.set()
    await watching
    return list(statuses), most


def main(size: int, clients: int) -> None:
    """Print a line for one client and a line for all clients at once."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"A2A_BLOB_URL": Path(folder, "blobs").as_uri()}
        with serve_fleet(Path(folder), app="tests.support.agents.large_part_agents", grpc=False, **settings) as served:
            idle = psutil.Process(served.gateway.pid).memory_info().rss / MIB
            task = rest(served.gateway, "POST", "/message:send", message_json(str(size * MIB)), agent="make").json()
            for number in (1, clients):
                began = time.monotonic()
                statuses, most = asyncio.run(read_at_once(served, task["task"]["id"], number))
                counts = {status: statuses.count(status) for status in statuses}
                seconds = time.monotonic() - began
                print(f"{number} × {size} MiB: {most:.0f} MiB (idle {idle:.0f}), {seconds:.1f} s, responses {counts}")


if __name__ == "__main__":
    main(*(int(argument) for argument in [*sys.argv[1:], *("50", "8")[len(sys.argv) - 1 :]]))
