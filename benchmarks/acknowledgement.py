"""Measure the cost of broker acknowledgements, and how fast a fleet recovers from a killed worker with each mode.

    python -m benchmarks.acknowledgement [rounds]

Three fleets on Redis acknowledge early, late, or early but in memory only (`ack_emulation` is off). Each round sends
blocking echoes, 16 at once, to one fleet after the other. Then the benchmark kills each worker while it has
running, prefetched and queued runs, and starts a new worker. The recovery time ends when all runs that had not begun
are completed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from tests.support.clients.talk import HEADERS, read, send, state
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.store.records import log_of, states_in
from tests.support.waiting import eventually

MODES = ("early", "late", "memory")
AT_ONCE = 16
ECHOES = 320
LEASE = 3
POOLS = ("prefork", "threads")


def main(rounds: int) -> int:
    for pool in POOLS:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            fleets = {mode: started(stack, Path(folder), mode, pool) for mode in MODES}
            rates: dict[str, list[float]] = {mode: [] for mode in MODES}
            for _ in range(rounds + 1):
                for mode, (_, gateway, _) in fleets.items():
                    rates[mode].append(echoes_a_second(gateway))
            for mode in MODES:
                ratios = [a / b for a, b in zip(rates[mode][1:], rates["early"][1:], strict=True)]
                middle = statistics.median(rates[mode][1:])
                spread = f"{statistics.median(ratios):.2f} of early's ({min(ratios):.2f} to {max(ratios):.2f})"
                print(f"{pool:8} {mode:6} {middle:5.0f} echoes a second, {spread}", flush=True)
            for mode, (fleet, gateway, worker) in fleets.items():
                print(f"{pool:8} {mode:6} {killed(fleet, gateway, worker, pool)}", flush=True)
    return 0


def started(stack: ExitStack, folder: Path, mode: str, pool: str) -> tuple[Fleet, Gateway, Process]:
    """Start a fleet with the acknowledgement mode `mode`."""
    (folder / mode).mkdir()
    settings = {"BENCHMARK_ACKS": mode, "A2A_LEASE_TTL": str(LEASE)}
    fleet = stack.enter_context(running_fleet(folder / mode, app="benchmarks.acknowledging", **settings))
    fleet.watcher()
    return fleet, fleet.gateway(), fleet.worker(pool=pool, concurrency=2)


def echoes_a_second(gateway: Gateway) -> float:
    """Return the number of blocking echoes per second with `AT_ONCE` concurrent callers."""

    def echo(client: httpx.Client) -> None:
        for _ in range(ECHOES // AT_ONCE):
            message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
            answer = client.post(f"{gateway.url}/agents/echo/message:send", json={"message": message}, timeout=60)
            assert "COMPLETED" in answer.text, answer.text

    with ThreadPoolExecutor(AT_ONCE) as pool, ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(headers=HEADERS)) for _ in range(AT_ONCE)]
        began = time.perf_counter()
        list(pool.map(echo, clients))
        return ECHOES / (time.perf_counter() - began)


def killed(fleet: Fleet, gateway: Gateway, worker: Process, pool: str) -> str:
    """Kill a worker, start another worker, and return a line about the recovery of the killed worker's runs."""
    running = [send(gateway, "silent", "600", returnImmediately=True) for _ in range(2)]
    eventually(lambda: all(state(read(gateway, "silent", t)) == "WORKING" for t in running), within=60)
    waiting = [send(gateway, "echo", str(n), returnImmediately=True) for n in range(20)]
    eventually(lambda: f"[{waiting[0]['id']}.1] received" in worker.output(), within=60)
    time.sleep(1)  # the worker reports its prefetched runs to the store twice a second
    prefetched = sum(f"[{task['id']}.1] received" in worker.output() for task in waiting)
    worker.kill()
    fleet.worker(pool=pool, concurrency=2)
    began = time.perf_counter()

    def all_in(agent: str, tasks: list[dict[str, Any]], *states: str) -> float:
        eventually(lambda: all(state(read(gateway, agent, t)) in states for t in tasks), within=300)
        return time.perf_counter() - began

    echoed, lost = all_in("echo", waiting, "COMPLETED"), all_in("silent", running, "FAILED")
    once = all(states_in(log_of(fleet.redis.store_url, t)).count("WORKING") == 1 for t in waiting + running)
    return (
        f"killed with 2 running, {prefetched} prefetched, {20 - prefetched} queued: all run {echoed:.1f} s and lost "
        f"ones failed {lost:.1f} s after the next worker was ready (lease {LEASE} s), "
        f"each {'once' if once else 'MORE THAN ONCE'}"
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 7))
