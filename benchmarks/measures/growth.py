"""Time per chunk of a long task, compared with the time per chunk of a short task."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from .. import load
from ..environment import Environment
from ..results import Result, Target
from ..rounds import Contender, interleaved, medians
from ..servers import Server

SIZES = (1_000, 4_000, 16_000)
"""Numbers of chunks of a task."""

MOST = {"sdk": 1}
"""Maximum number of rounds by server. A long task on the SDK's server takes half a minute."""


def measure(environment: Environment) -> Sequence[Result]:
    """Measure the time per chunk in the longest task, divided by the time per chunk in the shortest task."""
    curves: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))

    def contender(server: Server) -> Contender:
        def once() -> float:
            asyncio.run(per_chunk(server, SIZES[0]))  # warm up
            ms_by_size = {size: asyncio.run(per_chunk(server, size)) for size in SIZES}
            for size, ms in ms_by_size.items():
                curves[server.name][size].append(ms)
            return ms_by_size[SIZES[-1]] / ms_by_size[SIZES[0]]

        return Contender(server.name, once, most=MOST.get(server.name))

    contenders = [contender(server) for server in environment.servers("a2a-celery", "floor", "sdk")]
    measurements = interleaved(min(3, environment.options.rounds), contenders, warm=False)
    return [
        Result(
            name="growth",
            what=f"time per chunk at {SIZES[-1]:,} chunks / at {SIZES[0]:,}",
            unit="times",
            figures=measurements.figures,
            more_is_better=False,
            targets=(Target(1.1, at_least=False),),
            curves=medians(curves),
            along="chunks of the task",
            curve_unit="ms a chunk",
        )
    ]


async def per_chunk(server: Server, chunks: int) -> float:
    """Return the milliseconds per chunk between the arrivals of the first and the last chunk."""
    async with load.client() as session:
        times = await load.arrivals(session, server.url, chunks)
    return (times[-1] - times[0]) / (chunks - 1) * 1000
