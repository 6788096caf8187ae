"""Does a tenant feel another's flood? Its latency beside one that sends ten times its limit, and beside nobody.

    pip install -e '.[benchmarks]' && python -m benchmarks.flood [--rounds N]

Each round measures the quiet tenant twice, alone and beside the flood; what is worth reading is the ratio of a round.
The same flood without limits is there to compare with.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import aiohttp

from tests.support.fleet import running_fleet

from . import load
from .load import body

LIMITS = {
    "A2A_OWNER_REQUESTS_PER_SECOND": "5",
    "A2A_OWNER_REQUEST_BURST": "5",
    "A2A_OWNER_MAX_CONCURRENT_TASKS": "2",
}
FLOOD = 50
"""Requests a second: ten times the limit."""

FLOODERS = 16
ECHOES = 30
PAUSE = 0.25
"""Seconds between two echoes of the quiet tenant: fewer than it may send."""


async def quiet(url: str) -> float:
    """Median seconds of an echo of the quiet tenant, each of which is answered."""
    taken = []
    async with load.client() as session:
        for _ in range(ECHOES):
            began = perf_counter()
            async with session.post(f"{url}/agents/echo/quiet/message:send", data=load.ECHO) as response:
                answer = await response.read()
            assert b"COMPLETED" in answer, answer
            taken.append(perf_counter() - began)
            await asyncio.sleep(PAUSE)
    return statistics.median(taken)


async def flood(url: str, statuses: Counter[int]) -> None:
    """Sends for another tenant, as often as `FLOOD` says, until it is cancelled."""

    async def sender(session: aiohttp.ClientSession) -> None:
        while True:
            began = perf_counter()
            async with session.post(f"{url}/agents/echo/loud/message:send", data=body("flood")) as response:
                await response.read()
                statuses[response.status] += 1
            await asyncio.sleep(max(0.0, FLOODERS / FLOOD - (perf_counter() - began)))

    async with load.client() as session:
        await asyncio.gather(*(sender(session) for _ in range(FLOODERS)))


async def beside_a_flood(url: str, statuses: Counter[int]) -> float:
    """As `quiet`, with the flood around it."""
    loud = asyncio.create_task(flood(url, statuses))
    await asyncio.sleep(1)  # the burst is over
    try:
        return await quiet(url)
    finally:
        loud.cancel()
        await asyncio.gather(loud, return_exceptions=True)


@contextmanager
def deployment(folder: Path, limits: dict[str, str]) -> Iterator[str]:
    """A gateway with these limits, and a worker; its URL."""
    folder.mkdir()
    with running_fleet(folder, app="benchmarks.peers.agents", **limits) as fleet:
        fleet.worker(concurrency=2)
        yield fleet.gateway(log_level="warning").url


def main(rounds: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        for name, limits in (("with limits", LIMITS), ("without", {})):
            with deployment(Path(folder) / name.replace(" ", "-"), limits) as url:
                asyncio.run(quiet(url))  # warms
                pairs, statuses = [], Counter[int]()
                for _ in range(rounds):
                    pairs.append((asyncio.run(quiet(url)), asyncio.run(beside_a_flood(url, statuses))))
            ratios = [beside / alone for alone, beside in pairs]
            alone, beside = (statistics.median(figures) * 1000 for figures in zip(*pairs, strict=True))
            print(
                f"{name:12} alone {alone:5.1f} ms   beside the flood {beside:5.1f} ms   ratio "
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})   "
                f"the flood's answers {json.dumps(statuses)}",
                flush=True,
            )
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flood", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    sys.exit(main(parser.parse_args().rounds))
