"""GetTask and the first page of ListTasks, by how many tasks are in the store."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections import defaultdict
from collections.abc import Sequence

import aiohttp
from a2a.types import Message, Part, Role, SendMessageRequest

from a2a_celery.store import AsyncStore, Keys, Scope
from a2a_celery.store.tasks import create_task, request_cancel

from .. import load, sides
from ..peers.seeded import seeded_id
from ..results import Curve, Result, Target
from ..rounds import Contender, interleaved
from ..sides import Side
from ..stage import Stage

FEW = 10_000
"""Tasks, where ours is compared with the SDK's."""

SCOPE = Scope("echo")
RETENTION = 24 * 3600
GETS = 200
LISTS = 40
CALLS = {"get-task": GETS, "list-tasks": LISTS}
WHAT = {"get-task": "GetTask", "list-tasks": "ListTasks, first page of 50"}


def measure(stage: Stage) -> Sequence[Result]:
    """Both calls, at `FEW` tasks beside the SDK, and then ours with more, beside itself."""
    most = stage.options.tasks
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    results: list[Result] = []
    with (
        sides.ours(stage.folder(), concurrency=0) as ours,
        sides.sdk(stage.folder(), BENCHMARK_SEEDED=str(FEW)) as sdk,
    ):
        asyncio.run(fill(ours, 0, FEW))
        beside = {
            name: interleaved(stage.options.rounds, [call(name, ours, FEW), call(name, sdk, FEW)]) for name in CALLS
        }
        asyncio.run(fill(ours, FEW, most))
        for name, few in beside.items():
            many = interleaved(stage.options.rounds, [call(name, ours, most)])
            small, large = few.figures["ours"], many.figures["ours"]
            points[name] = [(FEW, statistics.median(small)), (most, statistics.median(large))]
            curves: dict[str, Curve] = {"ours": points[name], "sdk": [(FEW, statistics.median(few.figures["sdk"]))]}
            results += _results(name, few.figures, {"ours": large, f"at {FEW:,}": small}, few.processor, curves, most)
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


def call(name: str, side: Side, tasks: int) -> Contender:
    """Calls one by one, of tasks at random."""

    async def get(session: aiohttp.ClientSession) -> None:
        task_id = seeded_id(random.randrange(tasks))
        async with session.get(f"{side.url}/agents/echo/tasks/{task_id}") as response:
            answer = await response.read()
        assert task_id.encode() in answer, answer

    async def first_page(session: aiohttp.ClientSession) -> None:
        async with session.get(f"{side.url}/agents/echo/tasks?pageSize=50") as response:
            answer = await response.read()
        assert answer.count(b'"contextId"') >= 50, answer[:500]

    one = {"get-task": get, "list-tasks": first_page}[name]
    processes = {process: pid for process, pid in side.processes.items() if process != "worker"}
    return Contender(
        side.name,
        lambda: statistics.median(asyncio.run(load.alone(one, CALLS[name]))) * 1000,
        processes,
        CALLS[name],
    )


async def fill(side: Side, first: int, beyond: int) -> None:
    """Tasks that were cancelled before anybody ran them, written by the store's own scripts, many at once."""
    assert side.fleet is not None
    keys, numbers = Keys(), iter(range(first, beyond))
    store = AsyncStore(side.fleet.redis.store_url)

    async def writer() -> None:
        for number in numbers:
            task_id, context_id = seeded_id(number), f"context-{number}"
            message = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="hello")])
            message.task_id, message.context_id = task_id, context_id
            request = SendMessageRequest(message=message)
            await store.run(create_task(keys, SCOPE, task_id, context_id, request, caller=b"{}", retention=RETENTION))
            await store.run(request_cancel(keys, SCOPE, task_id, context_id))

    await asyncio.gather(*(writer() for _ in range(256)))
    await store.aclose()
