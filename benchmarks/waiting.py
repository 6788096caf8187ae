"""What an agent that waits costs its worker, on the pool that takes no thread for it. Run: python -m benchmarks.waiting

A real gateway and one worker process with `AGENTS` runs of an agent that sleeps. Memory is what the worker has for
itself (``USS``), less what it had when it had run a few.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import httpx
import psutil

from tests.support.clients import V1, message_json
from tests.support.fleet import running_fleet
from tests.support.waiting import eventually_async

AGENTS = 5000
AT_ONCE = 16
ECHOES = 200
PATIENCE = 300.0


async def echoes(http: httpx.AsyncClient, url: str) -> float:
    """Milliseconds of a blocking echo, the median."""
    took = []
    for _ in range(ECHOES):
        began = perf_counter()
        answer = await http.post(f"{url}/agents/echo/message:send", json=message_json("hello"))
        answer.raise_for_status()
        took.append(perf_counter() - began)
    return statistics.median(took) * 1e3


async def measure(url: str, worker: psutil.Process, agents: int) -> None:
    """Prints every figure."""
    limits = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(headers=V1, timeout=120) as http:

        async def begin(seconds: int) -> None:
            body = {**message_json(str(seconds)), "configuration": {"returnImmediately": True}}
            async with limits:
                (await http.post(f"{url}/agents/silent/message:send", json=body)).raise_for_status()

        async def working(wanted: int) -> bool:
            answer = await http.get(
                f"{url}/agents/silent/tasks", params={"status": "TASK_STATE_WORKING", "pageSize": 1}
            )
            return int(answer.json()["totalSize"]) >= wanted

        await echoes(http, url)
        alone = await echoes(http, url)
        before = worker.memory_full_info().uss
        await asyncio.gather(*(begin(3600) for _ in range(agents)))
        await eventually_async(lambda: working(agents), within=PATIENCE, what="all work")
        used = (worker.memory_full_info().uss - before) / agents / 1024
        threads, connections = worker.num_threads(), len(worker.net_connections("all"))
        print(f"{agents} agents wait: {used:.1f} KiB each, {threads} threads, {connections} connections")
        print(f"an echo: {alone:.2f} ms alone, {await echoes(http, url):.2f} ms beside them (p50 of {ECHOES})")


def main() -> None:
    """Starts a fleet, measures, and stops it."""
    agents = int(sys.argv[1]) if len(sys.argv) > 1 else AGENTS
    with tempfile.TemporaryDirectory() as folder, running_fleet(Path(folder)) as fleet:
        gateway = fleet.gateway(log_level="warning")
        worker = fleet.worker(pool="asyncio", concurrency=agents + AT_ONCE)
        asyncio.run(measure(gateway.url, psutil.Process(worker.pid), agents))
        worker.kill()


if __name__ == "__main__":
    main()
