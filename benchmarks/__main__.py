"""All sides, measured in one run on one machine.

    pip install -e '.[benchmarks]' && python -m benchmarks [--rounds N]

Each round measures every side, one right behind the other, so that what the machine does besides hits all alike. What
is worth reading is the ratio of a round; figures are given so that one can see what machine it was.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

from . import load
from .sides import Side, floor, ours, sdk

Measure = Callable[[Side], Awaitable[float]]


async def echoes_at_once(side: Side) -> float:
    """Blocking echoes a second, 16 at once."""
    return 400 / await load.together(lambda session: load.echo(session, side.url), 400, 16)


async def echo_alone(side: Side) -> float:
    """Blocking echoes a second, one at a time, by the median."""
    return 1 / statistics.median(await load.alone(lambda session: load.echo(session, side.url), 150))


async def streamed_events(side: Side) -> float:
    """Events a second, 32 streams of 50 chunks at once."""
    return 96 * 50 / await load.together(lambda session: load.stream(session, side.url, 50), 96, 32)


MEASURES: dict[str, Measure] = {
    "echo, 16 at once, a second": echoes_at_once,
    "echo alone, a second (p50)": echo_alone,
    "streams of 50, 32 at once, events a second": streamed_events,
}


def main(rounds: int) -> int:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        sides = []
        for start in (ours, floor, sdk):
            (Path(folder) / start.__name__).mkdir()
            sides.append(stack.enter_context(start(Path(folder) / start.__name__)))
        for name, measure in MEASURES.items():
            figures: dict[str, list[float]] = {side.name: [] for side in sides}
            for round in range(rounds + 1):
                for side in sides:
                    figure = asyncio.run(measure(side))  # type: ignore[arg-type]
                    if round:  # the first warms
                        figures[side.name].append(figure)
            print(name)
            for side in sides:
                ratios = [a / b for a, b in zip(figures["ours"], figures[side.name], strict=True)]
                print(
                    f"  {side.name:14} {statistics.median(figures[side.name]):8.0f}   ours / {side.name}: "
                    f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                    flush=True,
                )
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    sys.exit(main(parser.parse_args().rounds))
