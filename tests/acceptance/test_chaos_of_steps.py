"""Agents with ten durable steps, whose workers are killed at random. Only a step that was running at a kill is
repeated.

`CHAOS_SEED` repeats the kills of a run, and `CHAOS_MINUTES` sets its length.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents.ten_step_agents import STEPS, Line, read_effects, read_lines
from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.waiting import eventually

pytestmark = pytest.mark.nightly

SEED = int(os.environ.get("CHAOS_SEED", "1"))
SECONDS = float(os.environ.get("CHAOS_MINUTES", "0.5")) * 60
POOLS = ("prefork", "threads", "asyncio")
AGENTS = ("ten-steps", "ten-blocking-steps")
TASKS_AT_ONCE = 6


class KilledWorkers:
    """Workers of a fleet, one for each pool, that are killed and replaced in random order."""

    def __init__(self, fleet: Fleet, choices: random.Random) -> None:
        self._fleet = fleet
        self._choices = choices
        self._names: dict[str, str] = {}
        self.killed: set[str] = set()
        self._workers = {pool: self._start(pool) for pool in POOLS}

    def kill(self) -> None:
        """Kill a worker, and start a new worker with the same pool."""
        pool = self._choices.choice(POOLS)
        self._workers[pool].kill()
        self.killed.add(self._names[pool])
        self._workers[pool] = self._start(pool)

    def _start(self, pool: str) -> Process:
        self._names[pool] = f"{pool}-{len(self._fleet.processes)}"
        return self._fleet.worker(pool=pool, concurrency=4, TEST_WORKER=self._names[pool])


def is_completed(gateway: Gateway, agent: str, task: dict[str, Any]) -> bool:
    return state(read(gateway, agent, task)) == "COMPLETED"


def repetitions(lines: list[Line]) -> Iterator[tuple[Line, Line]]:
    """Yield each execution that does not continue with the next step, together with the execution before it."""
    return ((previous, line) for previous, line in pairwise(lines) if line.step != previous.step + 1)


def require_only_running_steps_repeated(lines: list[Line], killed_tags: set[str]) -> None:
    """Require that each repeated step was the newest step of its task and that its worker was killed.

    A repeated step is executed by a different worker.
    """
    assert {line.step for line in lines} == set(range(STEPS)), lines
    for previous, line in repetitions(lines):
        assert line.step == previous.step, f"a recorded step was executed again: {lines}"
        assert previous.worker in killed_tags, f"a step was executed again although its worker lived: {lines}"
        assert line.worker != previous.worker, lines


@pytest.mark.timeout(SECONDS * 1.25 + 400)
def test_only_steps_that_were_running_at_a_kill_are_executed_again(tmp_path: Path, broker: str) -> None:
    choices = random.Random(SEED)
    # The leases are long enough for the pauses of a busy machine, because a lost lease would look like a kill.
    env = {"A2A_LEASE_TTL": "5", "A2A_REDISPATCH_AFTER": "5", "TEST_FOLDER": str(tmp_path)}
    tasks: list[tuple[str, str, dict[str, Any]]] = []
    with running_fleet(tmp_path, broker, app="tests.support.agents.ten_step_agents", **env) as fleet:
        gateway, _ = fleet.gateway(), fleet.watcher()
        workers = KilledWorkers(fleet, choices)
        agents = cycle(AGENTS)
        ends_at = time.monotonic() + SECONDS
        while time.monotonic() < ends_at:
            for _ in range(TASKS_AT_ONCE):
                agent, name = next(agents), f"task-{len(tasks)}"
                tasks.append((agent, name, send(gateway, agent, name, returnImmediately=True)))
            start_file = tmp_path / f"{tasks[-choices.randint(1, TASKS_AT_ONCE)][1]}.lines"
            eventually(start_file.exists, what=f"{start_file.stem} has begun")
            workers.kill()

        for agent, name, task in tasks:
            eventually(partial(is_completed, gateway, agent, task), what=f"{name} ends")

    executions = {name: read_lines(tmp_path, name) for _, name, _ in tasks}
    repetition_count = sum(len(list(repetitions(lines))) for lines in executions.values())
    print(f"seed {SEED}: {len(tasks)} tasks, {len(workers.killed)} kills, {repetition_count} steps executed again")
    for name, lines in executions.items():
        assert read_effects(tmp_path, name) == list(range(STEPS)), f"{name}: each effect once, by its key"
        require_only_running_steps_repeated(lines, workers.killed)
    assert any(len({line.worker for line in lines}) > 1 for lines in executions.values()), "no kill hit a task"


def test_the_check_finds_a_repeated_step() -> None:
    whole_lines = [Line(n, "a") for n in range(STEPS)]
    killed_lines = [*whole_lines[:4], *(Line(n, "b") for n in range(3, STEPS))]

    require_only_running_steps_repeated(killed_lines, {"a"})
    with pytest.raises(AssertionError, match="lived"):
        require_only_running_steps_repeated(killed_lines, set())
    with pytest.raises(AssertionError, match="recorded"):
        require_only_running_steps_repeated([*whole_lines[:4], *(Line(n, "b") for n in range(2, STEPS))], {"a"})
