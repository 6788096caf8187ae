"""What a task costs one Redis, memory and processor: the figures of docs/sizing.md. Run: python -m benchmarks.sizing

Real gateway, worker and watcher, with Redis as broker too. Processor time is Redis' own (``INFO cpu``), so a machine
that does other things as well changes it little; memory is ``used_memory``, and ``MEMORY USAGE`` of a task's keys.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import httpx
import psutil
import redis.asyncio

from tests.support.clients import V1, message_json
from tests.support.fleet import Fleet, Process, running_fleet

TASKS = 1000
AT_ONCE = 16
CHUNKS = 5000
PACED = 100
IDLE = 5.0


class Meter:
    """Reads Redis' own statistics."""

    def __init__(self, url: str) -> None:
        self.redis = redis.asyncio.Redis.from_url(url)

    async def now(self) -> tuple[float, int]:
        """Seconds of processor time since it started, and bytes in use."""
        cpu, memory = await self.redis.info("cpu"), await self.redis.info("memory")
        return cpu["used_cpu_user"] + cpu["used_cpu_sys"], memory["used_memory"]

    async def of_task(self, task_id: str) -> dict[str, int]:
        """Bytes of each key of a task, by the last part of its name."""
        found = {}
        async for key in self.redis.scan_iter(f"a2a:{{{task_id}}}:*"):
            found[key.decode().rpartition("}:")[2].partition(":")[0]] = await self.redis.memory_usage(key, samples=0)
        return found


async def send(http: httpx.AsyncClient, url: str, agent: str, text: str) -> dict[str, Any]:
    """The task that a blocking message became."""
    answer = await http.post(f"{url}/agents/{agent}/message:send", json=message_json(text))
    task: dict[str, Any] = answer.json()["task"]
    return task


def processor(process: Process) -> float:
    """Seconds of processor time of a process and its children."""
    found = psutil.Process(process.pid)
    return sum(sum(one.cpu_times()[:2]) for one in (found, *found.children(recursive=True)))


async def measure(fleet: Fleet, url: str) -> None:
    """Prints every figure."""
    processes = {process.name.partition("-")[0]: process for process in fleet.processes}
    meter = Meter(fleet.redis.store_url)
    limits = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(headers=V1, timeout=120) as http:

        async def one(text: str) -> dict[str, Any]:
            async with limits:
                return await send(http, url, "echo", text)

        await asyncio.gather(*(one("warm") for _ in range(200)))
        cpu, _ = await meter.now()
        await asyncio.sleep(IDLE)
        after, _ = await meter.now()
        idle = (after - cpu) / IDLE
        print(f"idle fleet: {idle * 1e3:.2f} ms of Redis' processor a second")
        for size in (200, 20_000):
            before = {name: processor(process) for name, process in processes.items()}
            (cpu, memory), began = await meter.now(), asyncio.get_running_loop().time()
            tasks = await asyncio.gather(*(one("x" * size) for _ in range(TASKS)))
            seconds = asyncio.get_running_loop().time() - began
            after, used = await meter.now()
            theirs = {name: processor(process) - before[name] for name, process in processes.items()}
            spent = (after - cpu - idle * seconds) / TASKS
            keys = await meter.of_task(tasks[0]["id"])
            kept = f"{(used - memory) / TASKS:.0f} bytes kept a task, {sum(keys.values())} in its keys: {keys}"
            print(f"echo of {size} bytes: {spent * 1e6:.0f} µs of Redis a task, {kept}")
            print(f"  {', '.join(f'{name} {of / TASKS * 1e3:.2f} ms' for name, of in theirs.items())} a task")
        (cpu, memory), began = await meter.now(), asyncio.get_running_loop().time()
        task = await send(http, url, "count", str(CHUNKS))
        seconds = asyncio.get_running_loop().time() - began
        after, used = await meter.now()
        assert len(task["artifacts"][0]["parts"]) == CHUNKS
        print(
            f"{CHUNKS} chunks: {(after - cpu - idle * seconds) / CHUNKS * 1e6:.1f} µs of Redis a chunk, "
            f"{(used - memory) / CHUNKS:.0f} bytes kept a chunk"
        )
        (cpu, _), began = await meter.now(), asyncio.get_running_loop().time()
        await asyncio.gather(*(send(http, url, "pace", f"{PACED} 0.05") for _ in range(AT_ONCE)))
        seconds = asyncio.get_running_loop().time() - began
        after, _ = await meter.now()
        spent = (after - cpu - idle * seconds) / (PACED * AT_ONCE)
        print(f"{AT_ONCE} streams of {PACED} chunks, one every 50 ms: {spent * 1e6:.0f} µs of Redis a chunk")
    await meter.redis.aclose()


def main() -> None:
    """Starts a fleet, measures, and stops it."""
    with tempfile.TemporaryDirectory() as folder, running_fleet(Path(folder)) as fleet:
        fleet.watcher()
        gateway = fleet.gateway(log_level="warning")
        fleet.worker(pool="threads", concurrency=AT_ONCE)
        asyncio.run(measure(fleet, gateway.url))


if __name__ == "__main__":
    main()
