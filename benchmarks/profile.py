"""Profile a gateway or a worker. Print the function calls of a blocking echo, or the memory of an idle stream or of a
waiting agent, by package.

    python -m benchmarks.profile echo | stream | agent

The profiler makes each function call slower, so the shares of packages with many small functions are too large. The
number of calls and the allocated bytes do not depend on the load of the machine.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
import tracemalloc
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from operator import itemgetter
from pathlib import Path

from tests.support.processes.fleet import Gateway, Process, running_fleet
from tests.support.waiting import eventually

from . import load
from .measures.idle import more
from .measures.waiting import fill

ECHOES, AT_ONCE = 400, 16
STREAMS = 300
AGENTS = 300
BEGIN, END = signal.SIGRTMIN, signal.SIGRTMIN + 1
"""Signals of `benchmarks.peers.profiled`."""


def package_of(file: str) -> str:
    """Return the package of a source file."""
    _, found, path = file.rpartition("site-packages/")
    if found:
        return path.partition("/")[0]
    return "a2a_celery" if "a2a_celery/" in file else "Python"


def toggle(process: Process, number: int, written: Path) -> None:
    """Send a signal to the process, and wait until the process has written the file."""
    process.signal(number)
    eventually(written.exists, what=f"the process writes {written.name}")


async def echoes(url: str) -> None:
    """Send the echoes of a profile."""
    await load.together(lambda session: load.echo(session, url), ECHOES, AT_ONCE)


def profile_echo(gateway: Gateway, file: Path) -> None:
    """Print the share of the time and the number of function calls of each package."""
    asyncio.run(echoes(gateway.url))  # warm up
    toggle(gateway, BEGIN, file.with_suffix(".begun"))
    asyncio.run(echoes(gateway.url))
    toggle(gateway, END, file)
    seconds, calls = defaultdict[str, float](float), Counter[str]()
    for source, number, spent in json.loads(file.read_text()):
        seconds[package_of(source)] += spent
        calls[package_of(source)] += number
    total = sum(seconds.values())
    for package, spent in sorted(seconds.items(), key=itemgetter(1), reverse=True):
        print(f"{spent / total:6.1%} {calls[package] / ECHOES:8.0f} calls   {package}")
    print(f"{'':6} {calls.total() / ECHOES:8.0f} calls   in total")


async def profile_stream(gateway: Gateway, file: Path) -> None:
    """Print the memory of each package per idle stream."""
    async with load.client() as session:
        async with AsyncExitStack() as warming:
            await more(warming, session, gateway.url, 50)
        await asyncio.sleep(5)  # the gateway notices that the streams are closed
        await asyncio.to_thread(toggle, gateway, BEGIN, file.with_suffix(".begun"))
        async with AsyncExitStack() as streams:
            await more(streams, session, gateway.url, STREAMS)
            await asyncio.to_thread(toggle, gateway, END, file)
    print_memory(file, STREAMS)


def profile_agent(gateway: Gateway, worker: Process, file: Path) -> None:
    """Print the memory of each package per waiting agent of a worker with the asyncio pool."""
    asyncio.run(fill(gateway.url, 50, 50))  # warm up
    toggle(worker, BEGIN, file.with_suffix(".begun"))
    asyncio.run(fill(gateway.url, AGENTS, 50 + AGENTS))
    toggle(worker, END, file)
    print_memory(file, AGENTS)


def print_memory(file: Path, number: int) -> None:
    """Print the share of each package, divided by `number`, of the memory in a snapshot."""
    size = Counter[str]()
    for allocated in tracemalloc.Snapshot.load(str(file)).statistics("filename"):
        size[package_of(allocated.traceback[0].filename)] += allocated.size
    for package, allocated_bytes in size.most_common(10):
        print(f"{allocated_bytes / size.total():6.1%} {allocated_bytes / number / 1024:8.1f} KiB   {package}")
    print(f"{'':6} {size.total() / number / 1024:8.1f} KiB   in total")


def main(what: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profile"
        variables = {"PROFILE_FILE": str(file)}
        if what != "echo":
            variables["PROFILE_MEMORY"] = "1"
        with running_fleet(Path(folder), app="benchmarks.peers.profiled", **variables) as fleet:
            if what == "agent":
                worker = fleet.worker(pool="asyncio", concurrency=2 * AGENTS)
                profile_agent(fleet.gateway(log_level="error"), worker, file)
                return
            gateway = fleet.gateway(log_level="error")
            if what == "echo":
                fleet.worker(app="benchmarks.peers.agents")
                profile_echo(gateway, file)
            else:
                asyncio.run(profile_stream(gateway, file))


if __name__ == "__main__":
    if sys.argv[1:] not in (["echo"], ["stream"], ["agent"]):
        sys.exit(__doc__)
    main(sys.argv[1])
