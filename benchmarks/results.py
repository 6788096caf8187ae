"""Results of benchmarks: ratios of this project's medians to those of other servers, with their spread and targets."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PROJECT = "a2a-celery"

Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of medians. `low` and `high` are the lowest and the highest ratio of a single round."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Target:
    """Limit of the ratio of this project's median to that of the server `beside`, or, if `beside` is None, of this
    project's median."""

    limit: float
    beside: str | None = None
    at_least: bool = True

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Result:
    """Measured values of each server's rounds, in `unit`. `what` describes the benchmark in one line.

    `processor` contains the milliseconds of CPU time per request, by server and process, if they were measured.
    `curves` contains the points of each server: a value in `curve_unit` against `along`.
    """

    name: str
    what: str
    unit: str
    figures: Mapping[str, Sequence[float]]
    more_is_better: bool
    targets: Sequence[Target] = ()
    processor: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    along: str = ""
    curve_unit: str = ""

    def median(self, server: str = PROJECT) -> float:
        """Return the median of a server's rounds."""
        return statistics.median(self.figures[server])

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> Result:
        """Return the result whose `as_json` returned `fields`, without targets for servers that were not measured."""
        targets = [
            Target(*((aim["at_least"], aim["beside"]) if "at_least" in aim else (aim["at_most"], aim["beside"], False)))
            for aim in fields["targets"]
        ]
        plain = {name: fields[name] for name in ("name", "what", "unit", "more_is_better", "figures", "along")}
        curve_fields = {name: fields[name] for name in ("curves", "curve_unit")}
        return cls(**plain, **curve_fields, targets=targets, processor=fields["processor_ms"])

    @property
    def peers(self) -> list[str]:
        """Return the names of the servers with which this project is compared."""
        return [server for server in self.figures if server != PROJECT]

    def ratio(self, peer: str) -> Ratio:
        """Return the ratio of this project to `peer`. `low` and `high` use only rounds in which both were measured."""
        pairs = zip(self.figures[PROJECT], self.figures[peer], strict=False)
        single = [a / b for a, b in pairs]
        return Ratio(self.median() / self.median(peer), min(single), max(single))

    def value(self, target: Target) -> float:
        """Return the value that `target` limits."""
        return self.median() if target.beside is None else self.ratio(target.beside).median

    def target(self, beside: str | None) -> Target | None:
        """Return the target for the ratio to the server `beside`, or for this project's median if `beside` is None.
        Return None if there is no such target."""
        return next((target for target in self.targets if target.beside == beside), None)

    def as_json(self) -> dict[str, Any]:
        """Return all fields and the values derived from them."""
        return {
            "name": self.name,
            "what": self.what,
            "unit": self.unit,
            "more_is_better": self.more_is_better,
            "figures": {server: list(values) for server, values in self.figures.items()},
            "medians": {server: self.median(server) for server in self.figures},
            "ratios": {
                peer: {"median": ratio.median, "low": ratio.low, "high": ratio.high}
                for peer, ratio in ((peer, self.ratio(peer)) for peer in self.peers)
            },
            "targets": [
                {
                    "beside": target.beside,
                    "at_least" if target.at_least else "at_most": target.limit,
                    "met": target.is_met(self.value(target)),
                }
                for target in self.targets
                if target.beside is None or target.beside in self.figures
            ],
            "processor_ms": {server: dict(spent) for server, spent in self.processor.items()},
            "curves": {server: [list(point) for point in curve] for server, curve in self.curves.items()},
            "along": self.along,
            "curve_unit": self.curve_unit,
        }
