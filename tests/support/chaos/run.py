"""Chaos run: clients use a fleet whose processes and servers are disrupted, and checks compare the results.

`chaos_plan` draws the scenarios of the clients and the disruptions from a seed. `chaos_fleet` is the fleet,
`chaos_disruptor` disrupts it, `chaos_clients` are the clients, and `chaos_checks` compares the store's logs, the marks
of the agents and the responses that the clients received.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx

from a2a_celery.lifecycle import is_terminal
from a2a_celery.store import AsyncStore, Keys
from tests.support.chaos.agents import ATTEMPTS, Order, marks_of
from tests.support.chaos.checks import Findings, Record, check, read_records
from tests.support.chaos.clients import Client
from tests.support.chaos.disruptor import Disruptor
from tests.support.chaos.fleet import LEASE_AND_SCAN, ChaosFleet
from tests.support.chaos.plan import LEASE, REDISPATCH, Plan, Scenario, plan
from tests.support.processes.moved_clock import MovedClock
from tests.support.processes.restarts import version_of
from tests.support.processes.small_disk import SmallDisk
from tests.support.store.leaks import leaks

LONGEST = 20.0
"""Maximum total seconds for which an agent works on all turns of a task if no disruption occurs."""

SETTLED = LONGEST + ATTEMPTS * (LEASE_AND_SCAN + 2 * LEASE) + 8 * REDISPATCH + 30
"""Seconds after the last disruption within which at least one client or task must advance. The time allows for the loss
of every attempt, and for three failed publications of a run with exponential backoff."""

START_MARGIN = 5.0
"""Seconds after the end of the plan during which clients may still start."""

MAX_CLIENTS = 200
"""Maximum number of concurrent clients. Further clients start later. On a slow machine, some clients never start."""

SERVING = 90.0
"""Seconds within which every gateway and every worker must serve again."""


class ChaosRun:
    """Run of a plan against a fleet."""

    def __init__(
        self, folder: Path, broker: str, seed: int, seconds: float, server: Path, disk: SmallDisk | None
    ) -> None:
        self.plan: Plan = plan(seed, seconds)
        self.broker = broker
        self.server = version_of(server)
        self.fleet = ChaosFleet(folder, broker, server=server, clock=MovedClock(folder), disk=disk, failover=True)
        self.disruptor = Disruptor(self.fleet)
        self.clients: list[Client] = []
        self._slots = asyncio.Semaphore(MAX_CLIENTS)
        self.not_begun = 0
        self.responses: Counter[str] = Counter()
        self.settled_after = 0.0
        self.problems: list[str] = []
        self.findings = Findings()

    async def run(self) -> None:
        """Run the plan. `problems` and `findings` contain the results."""
        await self.fleet.open()
        restarter = asyncio.create_task(self.disruptor.restart_dead())
        scenarios: list[asyncio.Task[None]] = []
        limits = httpx.Limits(max_connections=2 * MAX_CLIENTS, max_keepalive_connections=20)
        try:
            async with httpx.AsyncClient(limits=limits) as http:
                began = asyncio.get_running_loop().time()
                scenarios += [
                    asyncio.create_task(self._run_client(scenario, http, began)) for scenario in self.plan.scenarios
                ]
                await self.disruptor.disrupt_all(self.plan.disruptions, began)
                await asyncio.sleep(max(0.0, began + self.plan.seconds - asyncio.get_running_loop().time()))
                await self._settle(scenarios)
                await self._all_serve(http)
            await self._check()
        finally:
            for task in (restarter, *scenarios):
                task.cancel()
            self.problems += self.disruptor.died  # possibly the reason for a failed check

    async def _run_client(self, scenario: Scenario, http: httpx.AsyncClient, began: float) -> None:
        await asyncio.sleep(max(0.0, began + scenario.at - asyncio.get_running_loop().time()))
        async with self._slots:
            if asyncio.get_running_loop().time() > began + self.plan.seconds + START_MARGIN:
                self.not_begun += 1
            else:
                await self._run(scenario, http)

    async def _run(self, scenario: Scenario, http: httpx.AsyncClient) -> None:
        client = Client(scenario, [slot.url for slot in self.fleet.slots_of("gateway")], http, self.responses)
        self.clients.append(client)
        await client.run()

    async def _settle(self, scenarios: list[asyncio.Task[None]]) -> None:
        """Wait until all clients have finished and all tasks are terminal. Stop waiting if none of them advances for
        `SETTLED` seconds."""
        began = time.monotonic()
        pending = set(scenarios)
        done_tasks: set[asyncio.Task[None]] = set()
        while pending:
            ended_tasks, pending = await asyncio.wait(pending, timeout=SETTLED, return_when=asyncio.FIRST_COMPLETED)
            if not ended_tasks:
                break
            done_tasks |= ended_tasks
        for task in pending:
            task.cancel()
        self.problems += [
            f"a client failed: {t.exception()!r}" for t in done_tasks if not t.cancelled() and t.exception()
        ]
        self.problems += [
            f"a client still waits: {c.transcript}" for c in self.clients if not c.transcript.is_done and pending
        ]
        store, keys = AsyncStore(self.fleet.store.url), Keys()
        open_ones: list[Record] = []
        versions: dict[str, int] = {}
        until = time.monotonic() + SETTLED
        while time.monotonic() < until:
            open_ones = [r for r in await read_records(store, keys) if not is_terminal(r.task.status.state)]
            if not open_ones:
                break
            newest = {record.task.id: len(record.log) for record in open_ones}
            if newest != versions:
                versions, until = newest, time.monotonic() + SETTLED
            await asyncio.sleep(1)
        self.problems += [f"not ended: {r.task.id} {r.task.status}" for r in open_ones]
        self.settled_after = time.monotonic() - began
        await store.aclose()

    async def _all_serve(self, http: httpx.AsyncClient) -> None:
        """Add a problem for each gateway that does not respond, and for each worker that runs no task."""
        until = time.monotonic() + SERVING
        silent = {p.name for p in self.fleet.slots if p.kind == "gateway"}
        idle = {p.process.name for p in self.fleet.slots_of("worker") if p.process is not None}
        number = 10_000_000
        while (silent or idle) and time.monotonic() < until:
            for slot in self.fleet.slots_of("gateway"):
                number += 1
                scenario = Scenario(number, 0.0, "afterwards", "once", Order(pause=0.3), "poll", 0)
                burst = [Client(scenario, [slot.url], http, self.responses) for _ in range(10)]
                self.clients += burst
                await asyncio.wait([asyncio.create_task(c.run()) for c in burst], timeout=SERVING)
                if all(c.transcript.is_done for c in burst):
                    silent.discard(slot.name)
                served_ids = [c.transcript.task_id for c in burst if c.transcript.task_id]
                idle -= {mark.process for task_id in served_ids for mark in marks_of(self.fleet.marks, task_id)}
        self.problems += [f"{name} no longer works" for name in sorted(silent | idle)]

    async def _check(self) -> None:
        store, keys = AsyncStore(self.fleet.store.url), Keys()
        records = await read_records(store, keys)
        self.findings = check(
            records,
            [c.transcript for c in self.clients],
            self.fleet.marks,
            self.fleet.incidents,
            self.fleet.clock_moves,
        )
        self.problems += [f"leaks: {leak}" for leak in await leaks(store, keys)]
        await store.aclose()

    def summary(self) -> Iterator[str]:
        """Yield the lines of a summary."""
        findings = self.findings
        yield (
            f"chaos on {self.broker}, Redis {self.server}: seed {self.plan.seed}, {self.plan.seconds:g} s, "
            f"{len(self.clients)} clients"
        )
        for kind, ends in sorted(findings.ends.items()):
            yield f"  {kind}: " + ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
        disruptions = Counter(incident.kind for incident in self.fleet.incidents)
        yield "  disruptions: " + ", ".join(f"{count} {kind}" for kind, count in sorted(disruptions.items()))
        yield f"  disruptions without a target: {self.disruptor.skipped}"
        yield f"  clients not started, because the machine was too slow: {self.not_begun}"
        yield f"  responses to clients: {dict(sorted(self.responses.items()))}"
        yield f"  streams resumed: {sum(c.transcript.resume_count for c in self.clients)}"
        yield f"  seconds until a lost run was recovered: {_spread(findings.recovery_seconds)}"
        yield f"  of these without outages: {_spread(findings.wait_seconds)}"
        yield f"  causes of losses: {dict(sorted(findings.causes.items()))}"
        yield f"  seconds from then to the next attempt: {_spread(findings.restart_seconds)}"
        yield f"  settled {self.settled_after:.1f} s after the last disruption; doubles: {findings.doubles}"

    def report(self) -> str:
        """Return the summary. If the run has problems, add the command that repeats the run and the evidence. Write all
        lines to ``details.txt``."""
        lines = [*self.summary()]
        lines += [f"PROBLEM {problem}" for problem in [*self.problems, *self.findings.problems]]
        details = [
            f"repeat with: make chaos CHAOS_SEED={self.plan.seed} CHAOS_MINUTES={self.plan.seconds / 60:g} "
            f"CHAOS_BROKER={self.broker} CHAOS_REDIS={self.server}",
            *(str(incident) for incident in self.fleet.incidents),
            *self.findings.evidence,
        ]
        (self.fleet.folder / "details.txt").write_text("\n".join([*lines, *details]))
        return "\n".join([*lines, *details, self.fleet.logs()] if self.wrong else lines)

    @property
    def wrong(self) -> bool:
        """True if the run or the checks found problems."""
        return bool(self.problems or self.findings.problems)


def _spread(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    sorted_seconds = sorted(seconds)
    return (
        f"{len(sorted_seconds)}, p50 {sorted_seconds[len(sorted_seconds) // 2]:.1f} s, max {sorted_seconds[-1]:.1f} s"
    )
