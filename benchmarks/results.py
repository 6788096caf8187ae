"""What a measure came to, in one shape: ours beside its peers, as ratios of medians with their spread, and targets."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OURS = "ours"

Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of medians; `low` and `high` are the least and the most of single rounds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be at least, or at most, `limit`: the ratio ours / `beside`, or our own median if that is None."""

    limit: float
    beside: str | None = None
    at_least: bool = True

    def met(self, value: float) -> bool:
        """Whether `value` is as it is to be."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of each round, by side. `unit` is theirs; `what` says in one line what was measured.

    `processor`: milliseconds of processor time that a request took, by side and process; only where that was measured.
    `curves`: by side, figure (in the unit `curve_unit`) against `along`; empty where nothing grows.
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

    def median(self, side: str = OURS) -> float:
        """The median of a side's rounds."""
        return statistics.median(self.figures[side])

    @classmethod
    def of_json(cls, said: Mapping[str, Any]) -> Result:
        """What `as_json` was made of, but for targets beside peers that were not measured."""
        targets = [
            Target(*((aim["at_least"], aim["beside"]) if "at_least" in aim else (aim["at_most"], aim["beside"], False)))
            for aim in said["targets"]
        ]
        plain = {name: said[name] for name in ("name", "what", "unit", "more_is_better", "figures", "along")}
        drawn = {name: said[name] for name in ("curves", "curve_unit")}
        return cls(**plain, **drawn, targets=targets, processor=said["processor_ms"])

    @property
    def peers(self) -> list[str]:
        """Whom ours is measured beside."""
        return [side for side in self.figures if side != OURS]

    def ratio(self, peer: str) -> Ratio:
        """Ours / the peer's. A peer with fewer rounds is compared with as many of ours."""
        pairs = zip(self.figures[OURS], self.figures[peer], strict=False)
        single = [a / b for a, b in pairs]
        return Ratio(self.median() / self.median(peer), min(single), max(single))

    def value(self, target: Target) -> float:
        """What `target` is about."""
        return self.median() if target.beside is None else self.ratio(target.beside).median

    def target(self, beside: str | None) -> Target | None:
        """The target for the ratio to this peer, or for our own figure; None if there is none."""
        return next((target for target in self.targets if target.beside == beside), None)

    def as_json(self) -> dict[str, Any]:
        """All of it, for a file."""
        return {
            "name": self.name,
            "what": self.what,
            "unit": self.unit,
            "more_is_better": self.more_is_better,
            "figures": {side: list(figures) for side, figures in self.figures.items()},
            "medians": {side: self.median(side) for side in self.figures},
            "ratios": {
                peer: {"median": ratio.median, "low": ratio.low, "high": ratio.high}
                for peer, ratio in ((peer, self.ratio(peer)) for peer in self.peers)
            },
            "targets": [
                {
                    "beside": target.beside,
                    "at_least" if target.at_least else "at_most": target.limit,
                    "met": target.met(self.value(target)),
                }
                for target in self.targets
                if target.beside is None or target.beside in self.figures
            ],
            "processor_ms": {side: dict(spent) for side, spent in self.processor.items()},
            "curves": {side: [list(point) for point in curve] for side, curve in self.curves.items()},
            "along": self.along,
            "curve_unit": self.curve_unit,
        }
