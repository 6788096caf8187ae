"""Memory of a gateway per idle stream."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from pathlib import Path

import aiohttp

from .. import load, servers
from ..environment import Environment
from ..processor import resident_kib
from ..results import Result, Target
from ..rounds import Contender, interleaved, medians
from ..servers import Server

SIZES = (250, 500, 1_000)
"""Numbers of open streams."""

WARM = 50
SETTLES = 2.0
"""Seconds after which a new stream is idle. The time is longer than `first_event_hold`."""

Started = Callable[[Path], AbstractContextManager[Server]]

SERVERS: dict[str, tuple[Started, str]] = {
    "a2a-celery": (lambda folder: servers.this_project(folder, concurrency=0), "gateway"),
    "floor": (lambda folder: servers.floor(folder, concurrency=0), "gateway"),
    "sdk": (servers.sdk, "server"),
}
"""Function that starts the server, and name of the measured process. There is no worker, so tasks stay idle."""


def measure(environment: Environment) -> Sequence[Result]:
    """Measure the memory per idle stream. Each round starts new servers, because a process does not return memory to
    the system."""
    curves: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))

    def contender(name: str, start: Started, process: str) -> Contender:
        def once() -> float:
            with start(environment.folder()) as server:
                kib_by_size = asyncio.run(opened(server.url, server.processes[process]))
            for size, kib in kib_by_size.items():
                curves[name][size].append(kib)
            return kib_by_size[SIZES[-1]]

        return Contender(name, once)

    contenders = [contender(name, *server) for name, server in SERVERS.items()]
    measurements = interleaved(min(2, environment.options.rounds), contenders, warm=False)
    return [
        Result(
            name="idle-streams",
            what=f"memory of the gateway per idle stream, {SIZES[-1]:,} streams",
            unit="KiB",
            figures=measurements.figures,
            more_is_better=False,
            targets=(Target(16, at_least=False),),
            curves=medians(curves),
            along="open streams",
            curve_unit="KiB a stream",
        )
    ]


async def opened(url: str, pid: int) -> dict[int, float]:
    """Open streams in steps. Return the KiB of the process per stream, by the number of open streams."""
    async with load.client() as session:
        async with AsyncExitStack() as warming:
            await more(warming, session, url, WARM)
        before = resident_kib(pid)
        memory, open_now = {}, 0
        async with AsyncExitStack() as streams:
            for size in SIZES:
                await more(streams, session, url, size - open_now)
                open_now = size
                memory[size] = (resident_kib(pid) - before) / size
    return memory


async def more(stack: AsyncExitStack, session: aiohttp.ClientSession, url: str, streams: int) -> None:
    """Open more streams, eight at a time, and wait until they are idle."""
    at_once = asyncio.Semaphore(8)

    async def open_stream() -> None:
        async with at_once:
            await stack.enter_async_context(session.post(f"{url}/agents/silent/message:stream", data=load.body("600")))

    await asyncio.gather(*(open_stream() for _ in range(streams)))
    await asyncio.sleep(SETTLES)
