"""The sides of a comparison, as running servers: ours, the floor, the SDK's in one process, and its cluster mode."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.support.databases import Postgres, running
from tests.support.fleet import Fleet, Gateway, Process, free_port, running_fleet
from tests.support.waiting import eventually

CONCURRENCY = 2
"""Processes of a prefork worker: as many as the machines have cores that the reference figures come from."""

AGENTS = "benchmarks.peers.agents"
FLOOR = "benchmarks.peers.floor"


@dataclass(frozen=True, slots=True)
class Side:
    """A server to measure: agents are at ``<url>/agents/<name>``. `processes` are its own, by role; `fleet` is
    what they belong to, where they do."""

    name: str
    url: str
    processes: Mapping[str, int] = field(default_factory=dict)
    fleet: Fleet | None = None


@contextmanager
def ours(
    folder: Path,
    pool: str = "prefork",
    concurrency: int = CONCURRENCY,
    settings: Mapping[str, str] | None = None,
    *,
    name: str = "ours",
) -> Iterator[Side]:
    """A gateway and a worker of this project, and no watcher: nothing is to be lost here. No worker at all with a
    `concurrency` of 0."""
    with running_fleet(folder, app=AGENTS, **(settings or {})) as fleet:
        workers = {"worker": fleet.worker(pool=pool, concurrency=concurrency).pid} if concurrency else {}
        gateway: Gateway = fleet.gateway(log_level="warning")
        yield Side(name, gateway.url, {"gateway": gateway.pid, **workers, "redis": redis_of(fleet)}, fleet)


@contextmanager
def floor(folder: Path, pool: str = "prefork", concurrency: int = CONCURRENCY) -> Iterator[Side]:
    """The floor, on a Redis and a worker like ours."""
    with running_fleet(folder, app=FLOOR) as fleet:
        workers = {"worker": fleet.worker(pool=pool, concurrency=concurrency).pid} if concurrency else {}
        with uvicorn(f"{FLOOR}:asgi", folder, fleet.environment) as (url, pid):
            yield Side("floor", url, {"gateway": pid, **workers, "redis": redis_of(fleet)}, fleet)


@contextmanager
def sdk(folder: Path, **environ: str) -> Iterator[Side]:
    """The SDK's own server, all in one process."""
    with uvicorn("benchmarks.peers.sdk:app", folder, environ) as (url, pid):
        yield Side("sdk", url, {"server": pid})


@contextmanager
def cluster(folder: Path) -> Iterator[Side]:
    """The SDK's cluster mode: one of its servers, on a PostgreSQL of its own."""
    with running(Postgres) as database:
        environ = {"BENCHMARK_DATABASE_URL": database.url}
        with uvicorn("benchmarks.peers.cluster:app", folder, environ) as (url, pid):
            yield Side("cluster", url, {"server": pid})


@contextmanager
def uvicorn(app: str, folder: Path, env: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """`app`, served by one process; its URL and process id."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", app, "--port", str(port), "--log-level", "warning", "--no-access-log"]
    server = Process(app, command, {**os.environ, **env}, folder / f"{app.partition(':')[0]}.log")
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: _serves(server, url), what=f"{app} serves")
        yield url, server.pid
    finally:
        server.stop()


def redis_of(fleet: Fleet) -> int:
    """The process id of a fleet's Redis."""
    assert fleet.redis.process is not None
    return fleet.redis.process.pid


def _serves(server: Process, url: str) -> bool:
    assert server.running, server.output()[-3000:]
    with suppress(httpx.HTTPError):
        return httpx.get(url, timeout=2).status_code > 0
    return False
