"""Memory of waiting agents in a worker process, and their effect on an echo in the same process."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence

import aiohttp

from tests.support.waiting import eventually_async

from .. import load, servers
from ..environment import Environment
from ..processor import resident_kib
from ..results import Result, Target
from ..rounds import Contender, interleaved
from ..servers import Server

ECHOES = 100
AT_ONCE = 16
WITHIN = 180.0
"""Maximum number of seconds until all agents are waiting."""

SPARE = 8
"""Number of slots of the pool that stay free for the echoes."""


def measure(environment: Environment) -> Sequence[Result]:
    """Measure a worker process with waiting agents. The options contain the number of agents and the pool."""
    waiting, pool = environment.options.waiting, environment.options.pool
    with servers.this_project(environment.folder(), pool=pool, concurrency=waiting + SPARE) as server:
        alone = interleaved(environment.options.rounds, [echoes("a2a-celery", server)])
        before = resident_kib(server.processes["worker"])
        asyncio.run(fill(server.url, waiting, waiting))
        kib = (resident_kib(server.processes["worker"]) - before) / waiting
        beside = interleaved(environment.options.rounds, [echoes("a2a-celery", server)])
    agents_text = f"{waiting:,} agents that wait in one worker process ({pool})"
    return [
        Result(
            name="waiting-memory",
            what=f"memory of each of {agents_text}",
            unit="KiB",
            figures={"a2a-celery": [kib]},
            more_is_better=False,
            targets=(Target(20, at_least=False),),
        ),
        Result(
            name="waiting-echo",
            what=f"blocking echo beside {agents_text}, p50",
            unit="ms",
            figures={"a2a-celery": beside.figures["a2a-celery"], "without them": alone.figures["a2a-celery"]},
            more_is_better=False,
            targets=(Target(2, "without them", at_least=False),),
            processor=beside.processor,
        ),
    ]


def echoes(name: str, server: Server) -> Contender:
    """Return a contender that sends one echo after the other."""

    def once() -> float:
        return statistics.median(asyncio.run(load.alone(lambda s: load.echo(s, server.url), ECHOES))) * 1000

    return Contender(name, once, server.processes, ECHOES)


async def fill(url: str, agents: int, total: int) -> None:
    """Start `agents` agents, and return when `total` agents are waiting."""

    async def start_agent(session: aiohttp.ClientSession) -> None:
        await load.begin_task(session, url, "silent", "3600")

    await load.together(start_agent, agents, AT_ONCE)
    async with load.client() as session:

        async def all_work() -> bool:
            async with session.get(f"{url}/agents/silent/tasks?status=TASK_STATE_WORKING&pageSize=1") as response:
                return int((await response.json(content_type=None))["totalSize"]) == total

        await eventually_async(all_work, within=WITHIN, what="all agents wait")
