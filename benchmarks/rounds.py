"""Rounds that measure all servers in direct succession, so that other load on the machine affects them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from . import processor
from .results import Curve


@dataclass(frozen=True, slots=True)
class Contender:
    """Server or function that a benchmark measures.

    Attributes:
        name: Name in the results.
        once: Function that returns a measured value. Each round calls it once.
        processes: Process ids by role. Their CPU time is measured during each call.
        requests: Number of requests in a call, for the CPU time per request.
        most: Maximum number of counted rounds, or None for all rounds.
    """

    name: str
    once: Callable[[], float]
    processes: Mapping[str, int] = field(default_factory=dict)
    requests: int = 1
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measured values of each round, and CPU time per request in milliseconds, by contender."""

    figures: dict[str, list[float]]
    processor: dict[str, dict[str, float]]


def interleaved(rounds: int, contenders: Sequence[Contender], *, warm: bool = True) -> Measurements:
    """Measure all `contenders` in each round. If `warm` is true, an additional first round is not counted."""
    values: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    spent: dict[str, dict[str, float]] = {
        contender.name: dict.fromkeys(contender.processes, 0.0) for contender in contenders
    }
    for number in range(0 if warm else 1, rounds + 1):
        for contender in contenders:
            if contender.most is not None and len(values[contender.name]) >= contender.most:
                continue
            before = processor.seconds(contender.processes)
            value = contender.once()
            after = processor.seconds(contender.processes)
            if number:
                values[contender.name].append(value)
                for process in contender.processes:
                    spent[contender.name][process] += after[process] - before[process]
    per_request = {
        contender.name: {
            name: of * 1000 / (contender.requests * len(values[contender.name]))
            for name, of in spent[contender.name].items()
        }
        for contender in contenders
        if contender.processes
    }
    return Measurements(values, per_request)


def medians(curves: Mapping[str, Mapping[int, Sequence[float]]]) -> dict[str, Curve]:
    """Return the curve of each server: the median of its rounds at each size."""
    return {
        server: [(size, statistics.median(values)) for size, values in by_size.items()]
        for server, by_size in curves.items()
    }
