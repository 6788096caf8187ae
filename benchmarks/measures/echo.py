"""Blocking echoes: many at once, and one at a time."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence

from .. import load
from ..results import Result, Target
from ..rounds import Contender, interleaved
from ..sides import Side
from ..stage import Stage

AT_ONCE = 16
ECHOES = {"cluster": 96}
"""In a round; of the others 400."""

ONE_BY_ONE = {"cluster": 20}
"""Of the others 150."""

SLOW = {"cluster": 2}
"""How many rounds these have at most."""


def at_once(stage: Stage) -> Sequence[Result]:
    """Sixteen callers."""

    def contender(side: Side) -> Contender:
        echoes = ECHOES.get(side.name, 400)

        def once() -> float:
            return echoes / asyncio.run(load.together(lambda s: load.echo(s, side.url), echoes, AT_ONCE))

        return Contender(side.name, once, side.processes, echoes, SLOW.get(side.name))

    taken = interleaved(stage.options.rounds, [contender(side) for side in _sides(stage)])
    return [
        Result(
            name="echo",
            what=f"blocking echoes, {AT_ONCE} at once",
            unit="a second",
            figures=taken.figures,
            more_is_better=True,
            targets=(Target(0.8, "floor"), Target(1.2, "sdk"), Target(10, "cluster")),
            processor=taken.processor,
        )
    ]


def alone(stage: Stage) -> Sequence[Result]:
    """One caller, by the median."""

    def contender(side: Side) -> Contender:
        echoes = ONE_BY_ONE.get(side.name, 150)

        def once() -> float:
            return statistics.median(asyncio.run(load.alone(lambda s: load.echo(s, side.url), echoes))) * 1000

        return Contender(side.name, once, side.processes, echoes, SLOW.get(side.name))

    taken = interleaved(stage.options.rounds, [contender(side) for side in _sides(stage)])
    return [
        Result(
            name="echo-alone",
            what="blocking echo, one at a time, p50",
            unit="ms",
            figures=taken.figures,
            more_is_better=False,
            targets=(Target(1.25, "floor", at_least=False), Target(1, "sdk", at_least=False)),
            processor=taken.processor,
        )
    ]


def _sides(stage: Stage) -> list[Side]:
    return stage.sides("ours", "floor", "sdk", "cluster")
