"""Results of benchmarks: ratios between the medians of this project and other servers, with spread and targets."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PROJECT = "a2a-celery"

Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of this project to another server.

    Attributes:
        median: Ratio of the medians.
        low: Lowest ratio of a single round.
        high: Highest ratio of a single round.
    """

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Target:
    """Target of a benchmark.

    Attributes:
        limit: Limit of the ratio to the server `beside`, or of this project's median.
        beside: Server of the ratio. If None, the limit applies to this project's median.
        at_least: If true, the limit is a minimum. Otherwise it is a maximum.
    """

    limit: float
    beside: str | None = None
    at_least: bool = True

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a benchmark.

    Attributes:
        name: Name of the benchmark.
        what: Description of the benchmark in one line.
        unit: Unit of the measured values.
        figures: Measured value of each round, by server.
        more_is_better: If true, a higher value is better.
        targets: Limits of the ratios or of this project's median.
        processor: CPU time in milliseconds per request, by server and process. Empty if the time was not measured.
        curves: Points of a curve for each server.
        along: Quantity on the horizontal axis of the curves.
        curve_unit: Unit of the values on the curves.
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
        """Names of the servers with which this project is compared."""
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
