"""Has anything collapsed? Ratios beside those of a recorded table: half as good is a failure, and nothing else is.

A timed test that fails at ten percent fails for the machine's reasons. A ratio of two sides in one run that halves does
not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from .results import Result

RECORDED = Path(__file__).with_name("table.json")
TWICE = 2.0
"""So many times worse than recorded is a collapse."""

Recorded = Mapping[str, Mapping[str, float]]
"""Ratios ours / theirs, by measure and peer."""


def ratios(results: Iterable[Result]) -> dict[str, dict[str, float]]:
    """What is recorded of `results`."""
    return {
        result.name: {peer: round(result.ratio(peer).median, 3) for peer in result.peers}
        for result in results
        if result.peers
    }


def collapsed(results: Iterable[Result], recorded: Recorded) -> list[str]:
    """A line for each ratio that is twice as bad as the recorded one in every round. What was never recorded can't
    collapse."""
    lines = []
    for result in results:
        for peer, before in recorded.get(result.name, {}).items():
            if peer not in result.figures:
                continue
            ratio = result.ratio(peer)
            now = max(ratio.high, ratio.median) if result.more_is_better else min(ratio.low, ratio.median)
            worse = before / now if result.more_is_better else now / before
            if worse > TWICE:
                lines.append(f"{result.name}: ours / {peer} is {now:.2f} at best, and was {before:.2f} when recorded")
    return lines


def recorded(path: Path = RECORDED) -> Recorded:
    """The recorded ratios."""
    table: Recorded = json.loads(path.read_text(encoding="utf-8"))["ratios"]
    return table


def record(results: Iterable[Result], machine: str, path: Path = RECORDED) -> None:
    """Writes the ratios of `results` over those recorded before; what was not measured now stays."""
    before = recorded(path) if path.exists() else {}
    table = {**before, **ratios(results)}
    path.write_text(json.dumps({"machine": machine, "ratios": table}, indent=2) + "\n", encoding="utf-8")
