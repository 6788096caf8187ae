"""The sides of a comparison, as running servers: ours, the SDK's in one process, and the floor."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.fleet import START, Process, free_port, running_fleet
from tests.support.waiting import eventually

CONCURRENCY = 2
"""Processes of a prefork worker: as many as the machines have cores that the reference figures come from."""


@dataclass(frozen=True, slots=True)
class Side:
    """A server to measure: agents are at ``<url>/agents/<name>``."""

    name: str
    url: str


@contextmanager
def ours(folder: Path, pool: str = "prefork") -> Iterator[Side]:
    """A gateway and a worker of this project, and no watcher: nothing is to be lost here."""
    with running_fleet(folder, app="benchmarks.peers.agents") as fleet:
        fleet.worker(pool=pool, concurrency=CONCURRENCY)
        yield Side("ours" if pool == "prefork" else f"ours-{pool}", fleet.gateway(log_level="warning").url)


@contextmanager
def floor(folder: Path, pool: str = "prefork") -> Iterator[Side]:
    """The floor, on a Redis and a worker like ours."""
    with running_fleet(folder, app="benchmarks.peers.floor") as fleet:
        fleet.worker(pool=pool, concurrency=CONCURRENCY)
        with uvicorn("benchmarks.peers.floor:asgi", folder, fleet.environment) as url:
            yield Side("floor" if pool == "prefork" else f"floor-{pool}", url)


@contextmanager
def sdk(folder: Path) -> Iterator[Side]:
    """The SDK's own server, all in one process, without OpenTelemetry."""
    with uvicorn("benchmarks.peers.sdk:app", folder, {"OTEL_INSTRUMENTATION_A2A_SDK_ENABLED": "false"}) as url:
        yield Side("sdk", url)


@contextmanager
def uvicorn(app: str, folder: Path, env: dict[str, str]) -> Iterator[str]:
    """`app`, served by one process; its URL."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", app, "--port", str(port), "--log-level", "warning", "--no-access-log"]
    server = Process(app, command, {**os.environ, **env}, folder / f"{app.partition(':')[0]}.log")
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: _serves(server, url), within=START, what=f"{app} serves")
        yield url
    finally:
        server.stop()


def _serves(server: Process, url: str) -> bool:
    assert server.running, server.output()[-3000:]
    with suppress(httpx.HTTPError):
        return httpx.get(url, timeout=2).status_code > 0
    return False
