"""Compared servers: this project, the floor, the SDK's server in one process, and the SDK's cluster mode."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.support.processes.databases import Postgres, running_database
from tests.support.processes.fleet import Fleet, Gateway, Process, free_port, running_fleet
from tests.support.waiting import eventually

CONCURRENCY = 2
"""Number of processes of a prefork worker. The reference machine has as many cores."""

AGENTS = "benchmarks.peers.agents"
FLOOR = "benchmarks.peers.floor"


@dataclass(frozen=True, slots=True)
class Server:
    """Running server.

    Attributes:
        name: Name of the server in the results.
        url: Base URL. The agents are at ``<url>/agents/<name>``.
        processes: Process ids by role.
        fleet: Fleet of the server, or None for an SDK server.
    """

    name: str
    url: str
    processes: Mapping[str, int] = field(default_factory=dict)
    fleet: Fleet | None = None


@contextmanager
def this_project(
    folder: Path,
    pool: str = "prefork",
    concurrency: int = CONCURRENCY,
    settings: Mapping[str, str] | None = None,
    *,
    name: str = "a2a-celery",
) -> Iterator[Server]:
    """Run a gateway and a worker of this project, without a watcher. If `concurrency` is 0, run no worker."""
    with running_fleet(folder, app=AGENTS, **(settings or {})) as fleet:
        workers = {"worker": fleet.worker(pool=pool, concurrency=concurrency).pid} if concurrency else {}
        gateway: Gateway = fleet.gateway(log_level="warning")
        yield Server(name, gateway.url, {"gateway": gateway.pid, **workers, "redis": redis_of(fleet)}, fleet)


@contextmanager
def floor(folder: Path, pool: str = "prefork", concurrency: int = CONCURRENCY) -> Iterator[Server]:
    """Run the floor, with a Redis server and a worker like those of this project. If `concurrency` is 0, run no
    worker."""
    with running_fleet(folder, app=FLOOR) as fleet:
        workers = {"worker": fleet.worker(pool=pool, concurrency=concurrency).pid} if concurrency else {}
        with uvicorn(f"{FLOOR}:asgi", folder, fleet.environment) as (url, pid):
            yield Server("floor", url, {"gateway": pid, **workers, "redis": redis_of(fleet)}, fleet)


@contextmanager
def sdk(folder: Path, **environ: str) -> Iterator[Server]:
    """Run the SDK's server in one process."""
    with uvicorn("benchmarks.peers.sdk:app", folder, environ) as (url, pid):
        yield Server("sdk", url, {"server": pid})


@contextmanager
def cluster(folder: Path) -> Iterator[Server]:
    """Run one server of the SDK's cluster mode, with a temporary PostgreSQL server."""
    with running_database(Postgres) as database:
        environ = {"BENCHMARK_DATABASE_URL": database.url}
        with uvicorn("benchmarks.peers.cluster:app", folder, environ) as (url, pid):
            yield Server("cluster", url, {"server": pid})


@contextmanager
def uvicorn(app: str, folder: Path, env: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Serve `app` in one uvicorn process, and yield the server's URL and process id."""
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
    """Return the process id of a fleet's Redis server."""
    assert fleet.redis.process is not None
    return fleet.redis.process.pid


def _serves(server: Process, url: str) -> bool:
    assert server.is_running, server.output()[-3000:]
    with suppress(httpx.HTTPError):
        return httpx.get(url, timeout=2).status_code > 0
    return False
