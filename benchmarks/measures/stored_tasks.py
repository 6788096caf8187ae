"""Duration of GetTask and of the first page of ListTasks, by the number of tasks in the store."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence

import aiohttp

from a2a_celery.store import AsyncStore, Keys

from .. import load, servers
from ..environment import Environment
from ..peers.seeded import seeded_id
from ..results import Curve, Result, Target
from ..rounds import Contender, interleaved
from ..seeding import TaskTemplate, seed
from ..servers import Server

FEW = 10_000
"""Number of tasks in the comparison with the SDK's server."""

GETS = 200
LISTS = 40
CALLS = {"get-task": GETS, "list-tasks": LISTS}
WHAT = {"get-task": "GetTask", "list-tasks": "ListTasks, first page of 50"}


def measure(environment: Environment) -> Sequence[Result]:
    """Measure both calls with `FEW` tasks on this project and on the SDK's server, and then with more tasks on this
    project."""
    most = environment.options.tasks
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    results: list[Result] = []
    with (
        servers.this_project(environment.folder(), concurrency=0) as project,
        servers.sdk(environment.folder(), BENCHMARK_SEEDED=str(FEW)) as sdk,
    ):
        template = asyncio.run(template_of_an_echo(project))
        fill(project, template, range(FEW))
        beside = {
            name: interleaved(environment.options.rounds, [call(name, project, FEW), call(name, sdk, FEW)])
            for name in CALLS
        }
        fill(project, template, range(FEW, most))
        for name, few in beside.items():
            many = interleaved(environment.options.rounds, [call(name, project, most)])
            small, large = few.figures["a2a-celery"], many.figures["a2a-celery"]
            points[name] = [(FEW, statistics.median(small)), (most, statistics.median(large))]
            curves: dict[str, Curve] = {
                "a2a-celery": points[name],
                "sdk": [(FEW, statistics.median(few.figures["sdk"]))],
            }
            results += _results(
                name, few.figures, {"a2a-celery": large, f"at {FEW:,}": small}, few.processor, curves, most
            )
    return results


def _results(
    name: str,
    few: dict[str, list[float]],
    many: dict[str, list[float]],
    processor: dict[str, dict[str, float]],
    curves: dict[str, Curve],
    most: int,
) -> list[Result]:
    return [
        Result(
            name=name,
            what=f"{WHAT[name]} with {FEW:,} tasks, p50",
            unit="ms",
            figures=few,
            more_is_better=False,
            targets=(Target(0.2, "sdk", at_least=False),),
            processor=processor,
        ),
        Result(
            name=f"{name}-of-many",
            what=f"{WHAT[name]} with {most:,} tasks, p50",
            unit="ms",
            figures=many,
            more_is_better=False,
            targets=(Target(1.5, f"at {FEW:,}", at_least=False),),
            curves=curves,
            along="tasks in the store",
            curve_unit="ms a call",
        ),
    ]


def call(name: str, server: Server, tasks: int) -> Contender:
    """Return a contender that makes sequential calls. Each GetTask call reads a random task."""

    async def get(session: aiohttp.ClientSession) -> None:
        task_id = seeded_id(random.randrange(tasks))
        async with session.get(f"{server.url}/agents/echo/tasks/{task_id}") as response:
            answer = await response.read()
        assert task_id.encode() in answer, answer

    async def first_page(session: aiohttp.ClientSession) -> None:
        async with session.get(f"{server.url}/agents/echo/tasks?pageSize=50") as response:
            answer = await response.read()
        assert answer.count(b'"contextId"') >= 50, answer[:500]

    operation = {"get-task": get, "list-tasks": first_page}[name]
    processes = {process: pid for process, pid in server.processes.items() if process != "worker"}
    return Contender(
        server.name,
        lambda: statistics.median(asyncio.run(load.alone(operation, CALLS[name]))) * 1000,
        processes,
        CALLS[name],
    )


async def template_of_an_echo(server: Server) -> TaskTemplate:
    """Run an echo on a temporary worker, and return a template of its task."""
    assert server.fleet is not None
    worker = server.fleet.worker(concurrency=1)
    async with (
        load.client() as session,
        session.post(f"{server.url}/agents/echo/message:send", data=load.ECHO) as response,
    ):
        task = (await response.json(content_type=None))["task"]
    worker.stop()
    store = AsyncStore(server.fleet.redis.store_url)
    template = await TaskTemplate.of(store.redis, Keys(), task["id"], task["contextId"])
    await store.aclose()
    return template


def fill(server: Server, template: TaskTemplate, numbers: range) -> None:
    """Seed the store of `server` with the tasks `numbers`."""
    assert server.fleet is not None
    began = time.perf_counter()
    asyncio.run(seed(server.fleet.redis.store_url, template, numbers))
    print(f"{len(numbers):,} tasks were seeded in {time.perf_counter() - began:.1f} s")
