"""Soak test with a hundred concurrent clients. No task is lost, no request fails, and no process leaks memory."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from pathlib import Path

import httpx
import psutil
import pytest
import redis

from a2a_celery.lifecycle import EventId
from tests.support.processes.fleet import Fleet, Process, free_port
from tests.support.waiting import LIMIT, eventually

pytestmark = pytest.mark.nightly

CLIENTS = 100
SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))
WARM_UP = 10.0
MAX_GROWTH = 1.15
"""Maximum ratio of a process's memory at the end to its memory after the warm-up. A leak per request exceeds it."""

HEADERS = {"A2A-Version": "1.0"}


def test_a_hundred_clients_for_a_minute_lose_nothing_and_leave_nothing(fleet: Fleet, tmp_path: Path) -> None:
    port = free_port()
    dev = fleet.start("dev", "a2a", "dev", "--port", str(port), "--concurrency", "2")
    url = f"http://127.0.0.1:{port}"
    eventually(lambda: ready(dev, url), what="dev is ready")
    store = redis.Redis.from_url(fleet.redis.store_url)

    asyncio.run(soak(url, WARM_UP))
    memory_before, connection_count = (
        memory(dev),
        eventually(lambda: idle_connections(store), what="the warm-up is over"),
    )
    outcomes = asyncio.run(soak(url, SECONDS))
    memory_after = memory(dev)

    assert set(outcomes) == {"ok"}, outcomes
    assert sum(outcomes.values()) > CLIENTS
    assert store.zcard("a2a:leases") == store.zcard("a2a:dispatch") == 0
    eventually(
        lambda: 0 < idle_connections(store) <= connection_count + 2,
        what=f"no more than {connection_count} connections are left",
    )
    assert not store.pubsub_channels("a2a:{*"), "a stream is still followed"
    assert not store.pubsub_channels("*celery-task-meta*"), "somebody waits for Celery results"
    for name, size in memory_after.items():
        assert size < memory_before[name] * MAX_GROWTH, f"{name}: {memory_before[name]} → {size} bytes"


async def soak(url: str, seconds: float) -> Counter[str]:
    """Run clients that send, stream and read for `seconds`. Return the number of requests by outcome."""
    until = time.monotonic() + seconds
    outcomes: Counter[str] = Counter()

    async def client(number: int) -> None:
        count = 0
        while time.monotonic() < until:
            count += 1
            text = f"{number}/{count}"
            try:
                outcomes[await (stream(http, url, text) if number % 4 == 0 else send(http, url, text))] += 1
            except Exception as e:
                outcomes[f"{type(e).__name__}: {e}"] += 1

    limits = httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=CLIENTS)
    async with httpx.AsyncClient(headers=HEADERS, timeout=LIMIT, limits=limits) as http:
        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return outcomes


async def send(http: httpx.AsyncClient, url: str, text: str) -> str:
    body = {"message": {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}}
    answer = await http.post(f"{url}/agents/echo/message:send", json=body)
    task = answer.json()["task"]
    if task["artifacts"][0]["parts"] != [{"text": text}]:
        return f"another's answer: {task}"
    response = await http.get(f"{url}/agents/echo/tasks/{task['id']}")
    return "ok" if response.json()["status"]["state"] == "TASK_STATE_COMPLETED" else response.text


async def stream(http: httpx.AsyncClient, url: str, text: str) -> str:
    body = {"message": {"messageId": text, "role": "ROLE_USER", "parts": [{"text": "5"}]}}
    async with http.stream("POST", f"{url}/agents/count/message:stream", json=body) as answer:
        ids = [EventId.parse(line[4:]).version async for line in answer.aiter_lines() if line.startswith("id: ")]
    # the task, WORKING, five chunks, COMPLETED
    return "ok" if ids == list(range(1, 9)) else f"the stream had {ids}"


def ready(dev: Process, url: str) -> bool:
    assert dev.is_running, dev.output()[-3000:]
    try:
        return httpx.get(f"{url}/health/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def memory(dev: Process) -> dict[str, int]:
    """Return the resident memory of the gateway, the worker with its children, and the watcher, in bytes."""
    counts: Counter[str] = Counter()
    for child in psutil.Process(dev.pid).children(recursive=True):
        line = " ".join(child.cmdline())
        for name in ("gateway", "watcher", "worker"):
            if f" {name}" in line:
                counts[name] += child.memory_info().rss
                break
    assert set(counts) == {"gateway", "watcher", "worker"}, counts
    return dict(counts)


def idle_connections(store: redis.Redis) -> int:
    """Return the number of Redis connections, or 0 if a stream is open."""
    return 0 if store.pubsub_channels("a2a:{*") else len(store.client_list())
