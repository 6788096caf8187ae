"""Compare HTTP servers for the gateway: uvicorn with the gateway's h11 and httptools protocols, and granian.

    pip install -e '.[benchmarks]' granian && python -m benchmarks.http_servers [--rounds N] [--only NAME ...]

Each check starts a server with an application without a framework, sends bytes over sockets, and prints the
observation. The check "slow-heads" takes up to 45 seconds and runs at the same time as the other checks. Then all
servers run at the same time, and the benchmark measures them in interleaved rounds: the CPU time of echoes, of
SendMessage echoes through the gateway, and the memory of open responses. granian is optional.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import aiohttp

from a2a_celery.cli.serve import gateway
from tests.support.processes.fleet import running_fleet
from tests.support.processes.fork_server import FRESH_PROCESSES

from .. import load
from ..servers import AGENTS
from .checks import CHECKS, GET, Verdict, gateway_stop
from .servers import GATEWAY, SERVERS, Server, running

AT_ONCE = 16
ECHOES = 4_000
"""Number of echoes of a server in a round."""

MESSAGES = 400
"""Number of SendMessage echoes of a server in a round."""

OPEN = 500
"""Number of open responses of a server."""

Echo = Callable[[aiohttp.ClientSession, Server], Awaitable[None]]
Row = dict[str, str]
"""Cells of a row by server."""


def check(name: str, what: str, folder: Path) -> str:
    """Run a check of a server, and return the cell of the table."""
    print(f"{what}: {name} …", file=sys.stderr, flush=True)
    try:
        with running(name, folder) as server:
            return cell(CHECKS[what](server))
    except Exception as e:  # the other checks continue
        return f"**not measured:** {type(e).__name__}: {e}"


def cell(verdict: Verdict) -> str:
    return verdict.fact if verdict.is_right else f"**no:** {verdict.fact}"


async def echo(session: aiohttp.ClientSession, server: Server) -> None:
    """Send a body to the plain application."""
    async with session.post(f"{server.url}/", data=load.ECHO) as response:
        await response.read()


async def send_message(session: aiohttp.ClientSession, server: Server) -> None:
    """Send a blocking message to the gateway."""
    await load.echo(session, server.url)


def cpu_times(servers: Mapping[str, Server], call: Echo, times: int, rounds: int) -> Row:
    """Return the CPU time of a request to each server, and the ratio to the first server's in the same round."""
    figures: dict[str, list[float]] = {name: [] for name in servers}
    for number in range(rounds + 1):
        for name, server in servers.items():
            before = server.cpu()
            asyncio.run(load.together(lambda session, server=server: call(session, server), times, AT_ONCE))  # type: ignore[misc]
            if number:  # the first round warms up
                figures[name].append((server.cpu() - before) / times * 1000)
    base = next(iter(figures.values()))
    ratios = {name: [of / h11 for of, h11 in zip(values, base, strict=True)] for name, values in figures.items()}
    return {
        name: f"{statistics.median(values):.3f} ms, × {statistics.median(ratios[name]):.2f} "
        f"({min(ratios[name]):.2f} to {max(ratios[name]):.2f})"
        for name, values in figures.items()
    }


def memory_of_responses(server: Server) -> str:
    """Return the memory of an open response."""
    before, clients = server.memory(), [server.connect() for _ in range(OPEN)]
    for client in clients:
        client.sendall(GET % b"/block")
        client.read(b"begun")
    growth = server.memory() - before
    for client in clients:
        client.close()
    return f"{growth / OPEN / 1024:.1f} KiB"


def figures(names: Sequence[str], folder: Path, rounds: int) -> dict[str, Row]:
    """Measure the plain application."""
    with ExitStack() as stack:
        servers = {name: stack.enter_context(running(name, folder)) for name in names}
        cpu = cpu_times(servers, echo, ECHOES, rounds)
        return {"echo": cpu, "open response": {name: memory_of_responses(of) for name, of in servers.items()}}


def gateway_figures(names: Sequence[str], folder: Path, rounds: int) -> dict[str, Row]:
    """Measure the gateway: all servers serve one fleet, with a worker of the asyncio pool."""
    with running_fleet(folder, app=AGENTS) as fleet, ExitStack() as stack:
        fleet.worker(pool="asyncio", concurrency=100)
        env = fleet.environment | {gateway.APP_VARIABLE: AGENTS, gateway.LEVEL_VARIABLE: "warning"}
        env |= {gateway.HOST_VARIABLE: "127.0.0.1", gateway.ACCESS_LOG_VARIABLE: ""}
        servers = {name: stack.enter_context(running(name, folder, GATEWAY, env)) for name in names}
        return {
            "memory of a gateway": {name: f"{of.memory() / (1 << 20):.0f} MiB" for name, of in servers.items()},
            "SendMessage echo": cpu_times(servers, send_message, MESSAGES, rounds),
            "stop of a gateway": {name: cell(gateway_stop(of)) for name, of in servers.items()},
        }


def main(names: Sequence[str], checks: Sequence[str], rounds: int) -> None:
    os.environ[FRESH_PROCESSES] = "1"  # as for users; forks would share memory
    os.environ["OTEL_INSTRUMENTATION_A2A_SDK_ENABLED"] = "false"
    installed = [name for name in names if find_spec(name if name in ("granian", "httptools") else "uvicorn")]
    rows: dict[str, Row] = {what: {} for what in checks if what in CHECKS}
    began = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as path, ThreadPoolExecutor() as threads:
        folder = Path(path)
        slow = {name: threads.submit(check, name, "slow-heads", folder) for name in installed if "slow-heads" in rows}
        for what in rows:
            if what != "slow-heads":
                rows[what] = {name: check(name, what, folder) for name in installed}
        for name, future in slow.items():
            rows["slow-heads"][name] = future.result()
        if "figures" in checks:
            rows |= figures(installed, folder, rounds)
        if "gateway" in checks:
            rows |= gateway_figures(installed, folder, rounds)
    print(f"{os.cpu_count()} cores, load {began:.1f} before and {os.getloadavg()[0]:.1f} after\n")
    print(f"| | {' | '.join(names)} |\n|{' --- |' * (len(names) + 1)}")
    for what, row in rows.items():
        print(f"| {what} | {' | '.join(row.get(name, 'not installed') for name in names)} |")


if __name__ == "__main__":
    choices = [*CHECKS, "figures", "gateway"]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http_servers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=["h11", "httptools", "granian"])
    parser.add_argument("--only", nargs="+", choices=choices, default=choices)
    options = parser.parse_args()
    main(options.servers, options.only, options.rounds)
