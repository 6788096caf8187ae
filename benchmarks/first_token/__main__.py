"""Measure the time to the first text of an agent, over A2A and in its framework alone.

    python -m benchmarks.first_token [seconds]
    .peers/crewai/bin/python -m benchmarks.first_token [seconds]

The second command measures CrewAI, in the environment that `make peers` installs for it.
The agents are those of `workers/`, with a stand-in for the model that answers at once. "Alone" is the framework in this
process. "Over A2A" is a streamed message through a gateway and a worker, each in a separate process. The calls
alternate, so that other load on the machine affects both. The row "echo" is a function without a framework.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from uuid import uuid4

import httpx

from tests.support.processes.fleet import Gateway, running_fleet

from . import TEXT

HEADERS = {"A2A-Version": "1.0"}
WARM_UP = 3
FUNCTION = "echo"

Alone = dict[str, Callable[[], AsyncIterator[str]]]
"""Functions that run a framework and yield its texts, by the name of the agent."""


def alone_of_installed() -> Alone:
    """Return the functions for the frameworks that are installed in this environment."""
    module = import_module(f"{__package__}.{'crewai' if find_spec('crewai') else 'frameworks'}")
    functions: Alone = module.ALONE
    return functions


async def main(seconds: float) -> None:
    load, texts_alone = os.getloadavg()[0], alone_of_installed()
    alone: dict[str, list[float]] = {name: [] for name in (FUNCTION, *texts_alone)}
    over: dict[str, list[float]] = {name: [] for name in alone}
    with tempfile.TemporaryDirectory() as folder, running_fleet(Path(folder), app="workers.app") as fleet:
        gateway, _ = fleet.gateway(), fleet.worker(pool="threads", concurrency=2)
        async with httpx.AsyncClient(headers=HEADERS, timeout=120) as client:
            began, rounds = time.perf_counter(), -WARM_UP
            while rounds < 1 or time.perf_counter() - began < seconds:
                rounds += 1
                for name, values in over.items():
                    duration = await over_a2a(client, gateway, name)
                    duration_alone = await first_of(texts_alone[name]) if name in texts_alone else 0.0
                    if rounds > 0:
                        values.append(duration)
                        alone[name].append(duration_alone)
    print(f"{rounds} rounds, medians in ms, load {load:.1f} before and {os.getloadavg()[0]:.1f} after")
    print("| agent | alone | over A2A | difference | difference / echo |\n| --- | --- | --- | --- | --- |")
    function = median(over[FUNCTION])
    for name, values in over.items():
        own, path = median(alone[name]), median(values)
        own_text = "" if name == FUNCTION else f"{own:.1f}"
        print(f"| {name} | {own_text} | {path:.1f} | {path - own:.1f} | {(path - own) / function:.2f} |")


async def first_of(texts: Callable[[], AsyncIterator[str]]) -> float:
    """Return the milliseconds until a framework yields its first text. The rest of its run is not measured."""
    began, duration = time.perf_counter(), 0.0
    async with aclosing(texts()) as pieces:  # type: ignore[type-var]
        async for text in pieces:
            if text and not duration:
                duration = (time.perf_counter() - began) * 1000
    assert duration
    return duration


async def over_a2a(client: httpx.AsyncClient, gateway: Gateway, agent: str) -> float:
    """Return the milliseconds until a client receives the first chunk of a new task's artifact."""
    message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": TEXT}]}
    began, duration = time.perf_counter(), 0.0
    url = f"{gateway.url}/agents/{agent}/message:stream"
    async with client.stream("POST", url, json={"message": message}) as response:
        async for line in response.aiter_lines():
            if "artifactUpdate" in line and not duration:
                duration = (time.perf_counter() - began) * 1000
            if "TASK_STATE_FAILED" in line:
                raise RuntimeError(line)
    assert duration
    return duration


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60))
