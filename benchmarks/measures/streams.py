"""Rate of events in concurrent streams of fast agents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from .. import load
from ..environment import Environment
from ..results import Result, Target
from ..rounds import Contender, interleaved
from ..servers import Server

STREAMS = 96
AT_ONCE = 32
CHUNKS = 50


def measure(environment: Environment) -> Sequence[Result]:
    """Measure the events per second of each server."""

    def contender(server: Server) -> Contender:
        def once() -> float:
            streams = load.together(lambda session: load.stream(session, server.url, CHUNKS), STREAMS, AT_ONCE)
            return STREAMS * CHUNKS / asyncio.run(streams)

        return Contender(server.name, once, server.processes, STREAMS * CHUNKS)

    measurements = interleaved(
        environment.options.rounds, [contender(server) for server in environment.servers("a2a-celery", "floor", "sdk")]
    )
    return [
        Result(
            name="streams",
            what=f"streams of {CHUNKS} chunks, {AT_ONCE} at once",
            unit="events a second",
            figures=measurements.figures,
            more_is_better=True,
            targets=(Target(0.8, "floor"), Target(2.5, "sdk")),
            processor=measurements.processor,
        )
    ]
