"""Rate of events in concurrent streams of fast agents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from .. import load
from ..results import Result, Target
from ..rounds import Contender, interleaved
from ..sides import Side
from ..stage import Stage

STREAMS = 96
AT_ONCE = 32
CHUNKS = 50


def measure(stage: Stage) -> Sequence[Result]:
    """Measure the events per second of each server."""

    def contender(side: Side) -> Contender:
        def once() -> float:
            streams = load.together(lambda session: load.stream(session, side.url, CHUNKS), STREAMS, AT_ONCE)
            return STREAMS * CHUNKS / asyncio.run(streams)

        return Contender(side.name, once, side.processes, STREAMS * CHUNKS)

    taken = interleaved(stage.options.rounds, [contender(side) for side in stage.sides("ours", "floor", "sdk")])
    return [
        Result(
            name="streams",
            what=f"streams of {CHUNKS} chunks, {AT_ONCE} at once",
            unit="events a second",
            figures=taken.figures,
            more_is_better=True,
            targets=(Target(0.8, "floor"), Target(2.5, "sdk")),
            processor=taken.processor,
        )
    ]
