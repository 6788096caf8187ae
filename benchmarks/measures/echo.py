"""Blocking echoes: many at once, and one at a time."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence

from .. import load
from ..results import OURS, Result, Target
from ..rounds import Contender, Taken, interleaved
from ..sides import Side
from ..stage import Stage

AT_ONCE = 16
ASYNCIO = "asyncio"
"""The side that is ours in another pool."""

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
    targets = (Target(0.8, "floor"), Target(1.2, "sdk"), Target(10, "cluster"))
    return _results("echo", f"blocking echoes, {AT_ONCE} at once", "a second", taken, targets)


def alone(stage: Stage) -> Sequence[Result]:
    """One caller, by the median."""

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


def _results(name: str, what: str, unit: str, taken: Taken, targets: Sequence[Target]) -> Sequence[Result]:
    """Ours on prefork beside all others, and on the asyncio pool beside those in one process, or in two pools."""
    peers = {side: figures for side, figures in taken.figures.items() if side not in (OURS, ASYNCIO)}
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
