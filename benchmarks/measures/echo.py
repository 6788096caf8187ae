"""Blocking echoes: many at once, and one at a time."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence

from .. import load
from ..results import OURS, Result, Target
from ..rounds import Contender, Measurements, interleaved
from ..sides import Side
from ..stage import Stage

AT_ONCE = 16
ASYNCIO = "asyncio"
"""Name of this project's server whose worker uses the asyncio pool."""

ECHOES = {"cluster": 96}
"""Number of concurrent echoes in a round by server. The default is 400."""

ONE_BY_ONE = {"cluster": 20}
"""Number of echoes in a round, one at a time, by server. The default is 150."""

SLOW = {"cluster": 2}
"""Maximum number of rounds of slow servers."""


def at_once(stage: Stage) -> Sequence[Result]:
    """Measure the rate of echoes of 16 concurrent callers."""

    def contender(side: Side) -> Contender:
        echoes = ECHOES.get(side.name, 400)

        def once() -> float:
            return echoes / asyncio.run(load.together(lambda s: load.echo(s, side.url), echoes, AT_ONCE))

        return Contender(side.name, once, side.processes, echoes, SLOW.get(side.name))

    taken = interleaved(stage.options.rounds, [contender(side) for side in _sides(stage)])
    targets = (Target(0.8, "floor"), Target(1.2, "sdk"), Target(10, "cluster"))
    return _results("echo", f"blocking echoes, {AT_ONCE} at once", "a second", taken, targets)


def alone(stage: Stage) -> Sequence[Result]:
    """Measure the median duration of one caller's echoes."""

    def contender(side: Side) -> Contender:
        echoes = ONE_BY_ONE.get(side.name, 150)

        def once() -> float:
            return statistics.median(asyncio.run(load.alone(lambda s: load.echo(s, side.url), echoes))) * 1000

        return Contender(side.name, once, side.processes, echoes, SLOW.get(side.name))

    taken = interleaved(stage.options.rounds, [contender(side) for side in _sides(stage)])
    targets = (Target(1.25, "floor", at_least=False), Target(1, "sdk", at_least=False))
    return _results("echo-alone", "blocking echo, one at a time, p50", "ms", taken, targets)


def _sides(stage: Stage) -> list[Side]:
    return stage.sides("ours", ASYNCIO, "floor", "sdk", "cluster")


def _results(name: str, what: str, unit: str, taken: Measurements, targets: Sequence[Target]) -> Sequence[Result]:
    """Return the results of this project's prefork pool and asyncio pool, each compared with all other servers."""
    peers = {side: values for side, values in taken.figures.items() if side not in (OURS, ASYNCIO)}
    spent = {side: processes for side, processes in taken.processor.items() if side != ASYNCIO}
    more_is_better = targets[0].at_least
    on_prefork = Result(name, what, unit, {OURS: taken.figures[OURS], **peers}, more_is_better, targets, spent)
    return [
        on_prefork,
        Result(
            f"{name}-asyncio",
            f"{what}, in the asyncio pool",
            unit,
            {OURS: taken.figures[ASYNCIO], **peers},
            more_is_better,
            processor={OURS: taken.processor[ASYNCIO]},
        ),
    ]
