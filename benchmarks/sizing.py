"""Measure the memory and CPU time per task, for docs/sizing.md. Run: python -m benchmarks.sizing

The first part runs a gateway, a worker and a watcher. Redis is also the broker. The CPU time of Redis is from ``INFO
cpu``, and other load on the machine changes it little. Memory is ``used_memory`` of the server, and ``MEMORY USAGE`` of
a task's keys.

The second part measures the CPU time per echo of fleets with more gateways and more worker processes. Each fleet has
its own Redis server. All fleets run at the same time, and each round measures one fleet after the other.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import httpx
import redis.asyncio

from tests.support.clients.bindings import V1, message_json
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet

from . import processor
from .load import HEADERS, TIMEOUT, echo

TASKS = 1000
AT_ONCE = 16
CHUNKS = 5000
PACED = 100
IDLE = 5.0


class Meter:
    """Reader of Redis's CPU and memory statistics."""

    def __init__(self, url: str) -> None:
        self.redis = redis.asyncio.Redis.from_url(url)

    async def now(self) -> tuple[float, int]:
        """Return the CPU time of Redis since its start, in seconds, and its memory use in bytes."""
        cpu, memory = await self.redis.info("cpu"), await self.redis.info("memory")
        return cpu["used_cpu_user"] + cpu["used_cpu_sys"], memory["used_memory"]

    async def of_task(self, task_id: str) -> dict[str, int]:
        """Return the bytes of a task's keys, by the kind of the key."""
        sizes = {}
        async for key in self.redis.scan_iter(f"a2a:{{{task_id}}}:*"):
            sizes[key.decode().rpartition("}:")[2].partition(":")[0]] = await self.redis.memory_usage(key, samples=0)
        return sizes


async def send(http: httpx.AsyncClient, url: str, agent: str, text: str) -> dict[str, Any]:
    """Send a message, wait for the response, and return the task."""
    answer = await http.post(f"{url}/agents/{agent}/message:send", json=message_json(text))
    task: dict[str, Any] = answer.json()["task"]
    return task


async def measure(fleet: Fleet, url: str) -> None:
    """Measure a fleet, and print all measurements."""
    processes = {process.name.partition("-")[0]: process.pid for process in fleet.processes}
    meter = Meter(fleet.redis.store_url)
    limits = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(headers=V1, timeout=120) as http:

        async def send_echo(text: str) -> dict[str, Any]:
            async with limits:
                return await send(http, url, "echo", text)

        await asyncio.gather(*(send_echo("warm") for _ in range(200)))
        cpu, _ = await meter.now()
        await asyncio.sleep(IDLE)
        after, _ = await meter.now()
        idle = (after - cpu) / IDLE
        print(f"idle fleet: {idle * 1e3:.2f} ms of Redis CPU time a second")
        for size in (200, 20_000):
            before = processor.seconds(processes)
            (cpu, memory), began = await meter.now(), asyncio.get_running_loop().time()
            tasks = await asyncio.gather(*(send_echo("x" * size) for _ in range(TASKS)))
            seconds = asyncio.get_running_loop().time() - began
            after, used = await meter.now()
            process_seconds = {name: end - before[name] for name, end in processor.seconds(processes).items()}
            spent = (after - cpu - idle * seconds) / TASKS
            keys = await meter.of_task(tasks[0]["id"])
            memory_text = f"{(used - memory) / TASKS:.0f} bytes stored a task, {sum(keys.values())} in its keys: {keys}"
            print(f"echo of {size} bytes: {spent * 1e6:.0f} µs of Redis a task, {memory_text}")
            print(f"  {', '.join(f'{name} {of / TASKS * 1e3:.2f} ms' for name, of in process_seconds.items())} a task")
        (cpu, memory), began = await meter.now(), asyncio.get_running_loop().time()
        task = await send(http, url, "count", str(CHUNKS))
        seconds = asyncio.get_running_loop().time() - began
        after, used = await meter.now()
        assert task["artifacts"][0]["parts"][0]["text"].split() == [str(number) for number in range(CHUNKS)]
        print(
            f"{CHUNKS} chunks: {(after - cpu - idle * seconds) / CHUNKS * 1e6:.1f} µs of Redis a chunk, "
            f"{(used - memory) / CHUNKS:.0f} bytes stored a chunk"
        )
        (cpu, _), began = await meter.now(), asyncio.get_running_loop().time()
        tasks = await asyncio.gather(*(send(http, url, "pace", f"{PACED} 0.05") for _ in range(AT_ONCE)))
        seconds = asyncio.get_running_loop().time() - began
        after, _ = await meter.now()
        keys = await meter.of_task(tasks[0]["id"])
        spent = (after - cpu - idle * seconds) / (PACED * AT_ONCE)
        print(
            f"{AT_ONCE} streams of {PACED} chunks, one every 50 ms: {spent * 1e6:.0f} µs of Redis a chunk, "
            f"{sum(keys.values()) / PACED:.0f} bytes in the keys of a task for each chunk"
        )
    await meter.redis.aclose()


class Layout(NamedTuple):
    """Numbers of gateways, of workers, and of prefork processes of each worker."""

    gateways: int
    workers: int
    processes: int


LAYOUTS = (Layout(1, 1, 2), Layout(2, 1, 2), Layout(4, 1, 2), Layout(1, 1, 8), Layout(1, 4, 8))
ROUNDS = 5


@dataclass(frozen=True)
class ScaledFleet:
    """Running fleet with several gateways and workers.

    Attributes:
        costs: For each round, milliseconds of CPU time per echo of all gateways, of all workers, and of Redis.
    """

    fleet: Fleet
    gateways: list[Gateway]
    workers: list[Process]
    costs: list[tuple[float, float, float]]

    @classmethod
    def start(cls, stack: ExitStack, folder: Path, layout: Layout) -> ScaledFleet:
        folder.mkdir()
        fleet = stack.enter_context(running_fleet(folder))
        gateways = [fleet.gateway(log_level="warning") for _ in range(layout.gateways)]
        return cls(fleet, gateways, [fleet.worker(concurrency=layout.processes) for _ in range(layout.workers)], [])

    async def measure(self) -> None:
        """Send `TASKS` blocking echoes to the gateways in turn, and append their cost.

        A larger fleet has more callers, so that each process has the same load: the requests of a process that arrive
        together share round trips.
        """
        callers = AT_ONCE * max(len(self.gateways), len(self.workers))
        meter, urls = Meter(self.fleet.redis.store_url), cycle([gateway.url for gateway in self.gateways])
        before, (redis_before, _) = self._seconds(), await meter.now()
        async with aiohttp.ClientSession(headers=HEADERS, timeout=TIMEOUT) as session:

            async def call() -> None:
                for _ in range(TASKS // callers):
                    await echo(session, next(urls))

            await asyncio.gather(*(call() for _ in range(callers)))
        after, (redis_after, _) = self._seconds(), await meter.now()
        await meter.redis.aclose()
        spent = (*(end - begin for begin, end in zip(before, after, strict=True)), redis_after - redis_before)
        gateways, workers, store = (seconds / (TASKS // callers * callers) * 1e3 for seconds in spent)
        self.costs.append((gateways, workers, store))

    def _seconds(self) -> tuple[float, float]:
        return _seconds_of(self.gateways), _seconds_of(self.workers)


def _seconds_of(processes: Sequence[Process]) -> float:
    return sum(processor.seconds({process.name: process.pid for process in processes}).values())


def scale_out(folder: Path) -> None:
    """Measure all layouts, and print the medians of the rounds."""
    with ExitStack() as stack:
        fleets = [ScaledFleet.start(stack, folder / "-".join(map(str, layout)), layout) for layout in LAYOUTS]
        for _ in range(ROUNDS + 1):
            for fleet in fleets:
                asyncio.run(fleet.measure())
    sums = [statistics.median(map(sum, fleet.costs[1:])) for fleet in fleets]
    for layout, fleet, total in zip(LAYOUTS, fleets, sums, strict=True):
        parts = [statistics.median(values) for values in zip(*fleet.costs[1:], strict=True)]
        print(
            f"{layout.gateways} gateways, {layout.workers} × {layout.processes} worker processes: "
            f"gateways, workers, Redis {', '.join(f'{part:.2f}' for part in parts)} ms an echo, "
            f"{total / sums[0]:.2f} of the first"
        )


def main() -> None:
    """Start a fleet and measure it, and then the fleets of `scale_out`."""
    with tempfile.TemporaryDirectory() as folder, running_fleet(Path(folder)) as fleet:
        fleet.watcher()
        gateway = fleet.gateway(log_level="warning")
        fleet.worker(pool="threads", concurrency=AT_ONCE)
        asyncio.run(measure(fleet, gateway.url))
    with tempfile.TemporaryDirectory() as folder:
        scale_out(Path(folder))


if __name__ == "__main__":
    main()
