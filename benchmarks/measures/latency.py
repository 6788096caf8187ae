"""Latency of an event from the agent to the client, across processes, in paced streams."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence

import redis.asyncio

from tests.support import ROOT

from .. import load, servers
from ..environment import Environment
from ..results import Result, Target
from ..rounds import Contender, interleaved
from ..servers import Server

STREAMS = 32
CHUNKS = 40
PAUSE = 0.05
"""Seconds between two chunks of a stream."""


def measure(environment: Environment) -> Sequence[Result]:
    """Measure the latency of this project, of a bare Redis pub/sub message between two processes, and of the SDK's
    server in one process."""
    with servers.this_project(environment.folder(), pool="threads", concurrency=STREAMS) as project:
        assert project.fleet is not None
        url = project.fleet.redis.store_url
        contenders = [
            _streaming(project),
            Contender("pub/sub hop", lambda: asyncio.run(hop(url))),
            _streaming(environment.server("sdk")),
        ]
        measurements = interleaved(environment.options.rounds, contenders)
    return [
        Result(
            name="latency",
            what=f"an event from agent to client, {STREAMS} streams with one every {PAUSE * 1000:g} ms, p50",
            unit="ms",
            figures=measurements.figures,
            more_is_better=False,
            targets=(Target(4, "pub/sub hop", at_least=False),),
            processor=measurements.processor,
        )
    ]


def _streaming(server: Server) -> Contender:
    return Contender(server.name, lambda: asyncio.run(streamed(server.url)), server.processes, STREAMS * CHUNKS)


async def streamed(url: str) -> float:
    """Return the median latency of the chunks in all streams, in milliseconds. The starts of the streams are spread
    over one interval."""

    async def read_stream(number: int) -> list[float]:
        await asyncio.sleep(PAUSE * number / STREAMS)
        return await load.delays(session, url, CHUNKS, PAUSE)

    async with load.client() as session:
        latencies = await asyncio.gather(*(read_stream(number) for number in range(STREAMS)))
    return statistics.median(delay for delays in latencies for delay in delays) * 1000


async def hop(url: str) -> float:
    """Return the median latency, in milliseconds, of bare pub/sub messages from another process. Their number and pace
    equal those of the chunks."""
    latencies: list[float] = []
    async with redis.asyncio.Redis.from_url(url) as client, client.pubsub() as pubsub:
        await pubsub.subscribe(*(f"hop:{number}" for number in range(STREAMS)))
        command = ["-m", "benchmarks.peers.hop", url, str(STREAMS), str(CHUNKS), str(PAUSE)]
        process = await asyncio.create_subprocess_exec(sys.executable, *command, cwd=ROOT)
        async for message in pubsub.listen():
            if message["type"] == "message":
                latencies.append(time.monotonic() - float(message["data"]))
            if len(latencies) == STREAMS * CHUNKS:
                break
        await process.wait()
    return statistics.median(latencies) * 1000
