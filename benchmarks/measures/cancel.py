"""Duration of CancelTask for a waiting agent, from the request to the response with the state CANCELED."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import aiohttp

from .. import load
from ..environment import Environment
from ..results import Result, Target
from ..rounds import Contender, interleaved

TIMES = 20
"""Number of cancelled tasks in a round."""

TIMEOUT = 60.0


def measure(environment: Environment) -> Sequence[Result]:
    """Measure CancelTask, and GetTask for comparison. Client, gateway and worker are separate processes."""
    server = environment.server("a2a-celery")
    reads: list[float] = []

    def project() -> float:
        durations = asyncio.run(cancels(server.url))
        reads.append(statistics.median(read for read, _ in durations))
        return statistics.median(cancelled for _, cancelled in durations)

    contenders = [Contender("a2a-celery", project, server.processes, TIMES), Contender("a GetTask", lambda: reads[-1])]
    measurements = interleaved(environment.options.rounds, contenders)
    return [
        Result(
            name="cancel",
            what="cancel of a silent agent, p50",
            unit="ms",
            figures=measurements.figures,
            more_is_better=False,
            targets=(Target(20, at_least=False),),
            processor={},
        )
    ]


async def cancels(url: str) -> list[tuple[float, float]]:
    """Cancel `TIMES` tasks. For each task, return the durations of the last GetTask and of CancelTask, in
    milliseconds."""
    async with load.client() as session:
        return [await cancel_one(session, url) for _ in range(TIMES)]


async def cancel_one(session: aiohttp.ClientSession, url: str) -> tuple[float, float]:
    """Start a task, wait until its agent runs, and cancel the task. Return the durations of the last GetTask and of
    CancelTask, in milliseconds."""
    task, read = await load.begin_task(session, url, "silent", "60"), 0.0
    until = perf_counter() + TIMEOUT
    while task["status"]["state"] != "TASK_STATE_WORKING":
        assert perf_counter() < until, task
        task, read = await timed(session, "GET", f"{url}/agents/silent/tasks/{task['id']}")
    if not read:
        _, read = await timed(session, "GET", f"{url}/agents/silent/tasks/{task['id']}")
    task, cancelled = await timed(session, "POST", f"{url}/agents/silent/tasks/{task['id']}:cancel")
    assert task["status"]["state"] == "TASK_STATE_CANCELED", task
    return read, cancelled


async def timed(session: aiohttp.ClientSession, method: str, url: str) -> tuple[dict[str, Any], float]:
    """Send a request. Return the response and the duration in milliseconds."""
    began = perf_counter()
    async with session.request(method, url) as response:
        answer: dict[str, Any] = await response.json(content_type=None)
    return answer, (perf_counter() - began) * 1000
