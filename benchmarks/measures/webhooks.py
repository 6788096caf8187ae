"""Rate of a watcher's webhook deliveries to a fast receiver."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import aiohttp
import httpx

from tests.support.processes.fleet import Process, free_port
from tests.support.receivers.posts import DELIVERING, SECRET
from tests.support.waiting import eventually

from .. import load, servers
from ..environment import Environment
from ..results import Result, Target
from ..rounds import Contender, interleaved
from ..servers import Server

TASKS = 24
CHUNKS = 30
POSTS = TASKS * (CHUNKS + 3)
"""Number of deliveries of all tasks. For each task: the task itself, WORKING, the chunks and COMPLETED."""

AT_ONCE = 8
"""Number of concurrent posts of a watcher to one host."""

BODY = b'{"artifactUpdate":{"taskId":"%s","contextId":"%s","artifact":{"artifactId":"%s","parts":[{"text":"1 "}]}}}' % (
    (b"0" * 36,) * 3
)


def measure(environment: Environment) -> Sequence[Result]:
    """Measure deliveries of stored events.

    The watcher is paused while the agents run, so that the agents and the watcher do not share the CPU.
    """
    with receiver(environment) as url, servers.this_project(environment.folder(), settings=DELIVERING) as project:
        assert project.fleet is not None
        watcher = project.fleet.watcher()
        contenders = [
            Contender("a2a-celery", lambda: delivered(project, watcher, url), {"watcher": watcher.pid}, POSTS),
            Contender("httpx", lambda: asyncio.run(bare(url))),
        ]
        measurements = interleaved(environment.options.rounds, contenders)
    return [
        Result(
            name="webhooks",
            what=f"deliveries of one watcher to a fast receiver, beside bare httpx posts, {AT_ONCE} at once",
            unit="a second",
            figures=measurements.figures,
            more_is_better=True,
            targets=(Target(0.7, "httpx"),),
            processor=measurements.processor,
        )
    ]


def delivered(server: Server, watcher: Process, url: str) -> float:
    """Let the watcher deliver the events of new tasks. Return the posts per second, from the first post to the last."""
    httpx.get(f"{url}/reset")
    watcher.signal(signal.SIGSTOP)
    try:
        asyncio.run(create_deliveries(server, url))
    finally:
        watcher.signal(signal.SIGCONT)
    count = eventually(
        lambda: counts if (counts := httpx.get(url).json())["posts"] >= POSTS else {},
        within=120,
        what=f"{POSTS} posts",
        every=0.2,
    )
    return float(count["posts"] / count["seconds"])


async def create_deliveries(server: Server, url: str) -> None:
    """Complete tasks with a push-notification config, so that a delivery of each event is due."""

    async def send_message(session: aiohttp.ClientSession) -> None:
        config = {"url": f"{url}/hook", "token": SECRET}
        configuration: dict[str, Any] = {"taskPushNotificationConfig": config}
        data = load.body(str(CHUNKS), **configuration)
        async with session.post(f"{server.url}/agents/count/message:send", data=data) as response:
            answer = await response.read()
        assert b"COMPLETED" in answer, answer

    await load.together(send_message, TASKS, AT_ONCE)


async def bare(url: str) -> float:
    """Return the posts per second of a bare httpx client."""
    left = iter(range(POSTS))

    async def sender(client: httpx.AsyncClient) -> None:
        for _ in left:
            answer = await client.post(f"{url}/hook", content=BODY, headers={"Content-Type": "application/json"})
            assert answer.status_code == 200

    async with httpx.AsyncClient() as client:
        began = perf_counter()
        await asyncio.gather(*(sender(client) for _ in range(AT_ONCE)))
        return POSTS / (perf_counter() - began)


@contextmanager
def receiver(environment: Environment) -> Iterator[str]:
    """Run a receiver in a separate process, and yield its URL."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.peers.receiver", str(port)]
    process = Process("receiver", command, dict(os.environ), environment.folder() / "receiver.log")
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: _answers(process, url), what="the receiver answers")
        yield url
    finally:
        process.stop()


def _answers(process: Process, url: str) -> bool:
    assert process.is_running, process.output()
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.HTTPError:
        return False
