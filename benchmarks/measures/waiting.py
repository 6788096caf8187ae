"""Memory of waiting agents in a worker process, and their effect on an echo in the same process."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence

import aiohttp

from tests.support.waiting import eventually_async

from .. import load, sides
from ..processor import resident_kib
from ..results import Result, Target
from ..rounds import Contender, interleaved
from ..sides import Side
from ..stage import Stage

ECHOES = 100
AT_ONCE = 16
WITHIN = 180.0
"""Seconds within which all agents must have begun to wait."""

SPARE = 8
"""Number of slots of the pool that stay free for the echoes."""


def measure(stage: Stage) -> Sequence[Result]:
    """Measure a worker process with waiting agents. The options contain their number and the pool."""
    waiting, pool = stage.options.waiting, stage.options.pool
    with sides.ours(stage.folder(), pool=pool, concurrency=waiting + SPARE) as side:
        alone = interleaved(stage.options.rounds, [echoes("ours", side)])
        before = resident_kib(side.processes["worker"])
        asyncio.run(fill(side, waiting))
        kib = (resident_kib(side.processes["worker"]) - before) / waiting
        beside = interleaved(stage.options.rounds, [echoes("ours", side)])
    where = f"{waiting:,} agents that wait in one worker process ({pool})"
    return [
        Result(
            name="waiting-memory",
            what=f"memory of each of {where}",
            unit="KiB",
            figures={"ours": [kib]},
            more_is_better=False,
            targets=(Target(20, at_least=False),),
        ),
        Result(
            name="waiting-echo",
            what=f"blocking echo beside {where}, p50",
            unit="ms",
            figures={"ours": beside.figures["ours"], "without them": alone.figures["ours"]},
            more_is_better=False,
            targets=(Target(2, "without them", at_least=False),),
            processor=beside.processor,
        ),
    ]


def echoes(name: str, side: Side) -> Contender:
    """Return a contender that sends one echo after the other."""

    def once() -> float:
        return statistics.median(asyncio.run(load.alone(lambda s: load.echo(s, side.url), ECHOES))) * 1000

    return Contender(name, once, side.processes, ECHOES)


async def fill(side: Side, agents: int) -> None:
    """Start `agents` agents and wait until all of them wait."""

    async def one(session: aiohttp.ClientSession) -> None:
        await load.begun(session, side.url, "silent", "3600")

    await load.together(one, agents, AT_ONCE)
    async with load.client() as session:

        async def all_work() -> bool:
            async with session.get(f"{side.url}/agents/silent/tasks?status=TASK_STATE_WORKING&pageSize=1") as response:
                return int((await response.json(content_type=None))["totalSize"]) == agents

        await eventually_async(all_work, within=WITHIN, what="all agents wait")
