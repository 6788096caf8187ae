"""Execution state machines that continue in the next run on another worker, on every pool and broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.runs.release import read_activities
from tests.support.clients.contexts import Fold, output_of
from tests.support.clients.talk import state
from tests.support.processes.fleet import Fleet, Process, running_fleet
from tests.support.waiting import eventually

pytestmark = pytest.mark.each_kind

POOLS = ("prefork", "threads", "solo", "gevent", "asyncio")
BEGIN = "IDLE to INITIALIZING"


class Workers(Fold):
    """Fleet with a gateway, a watcher, and one worker at a time."""

    def __init__(self, fleet: Fleet, folder: Path, pool: str) -> None:
        super().__init__(fleet, folder)
        self._pool = pool
        fleet.watcher()
        self.store = SyncStore(fleet.redis.store_url)
        self._worker: Process = fleet.worker(pool=pool)

    def replace(self) -> None:
        """Kill the worker, and start a new worker."""
        self._worker.kill()
        self._worker = self.fleet.worker(pool=self._pool)

    def move_run(self, agent: str) -> list[str]:
        """Send a message, and replace the worker as soon as the run is in a tool call. Return the agent's output."""
        context = self.context(agent)
        task = context.send("go", wait=False)

        def is_in_the_tool() -> bool:
            activities = self.store.run(read_activities(Keys("a2a"), task["id"]))
            return activities is not None and len(activities.activities) >= 2

        eventually(is_in_the_tool, what="its activity is stored")
        self.replace()
        history: list[str] = output_of(context.wait_for_end(task))
        return history


@pytest.fixture(scope="module", params=POOLS)
def workers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Workers]:
    options = {"app": "tests.support.agents.steppers", "A2A_LEASE_TTL": "2", "A2A_REDISPATCH_AFTER": "3"}
    folder = tmp_path_factory.mktemp(request.param)
    with running_fleet(folder, broker, **options) as fleet:
        workers = Workers(fleet, folder, request.param)
        yield workers
        workers.store.close()


@pytest.mark.parametrize(("agent", "reason"), [("dies", "lost"), ("fails", "retried")])
def test_the_next_attempt_knows_where_the_last_one_ended(workers: Workers, agent: str, reason: str) -> None:
    assert workers.move_run(agent) == [
        BEGIN,
        "INITIALIZING to TOOL_EXECUTION search",
        f"TOOL_EXECUTION to ERROR {reason}",
        "ERROR to IDLE",
        BEGIN,
    ]


def test_the_answer_and_the_next_task_of_a_session_continue_the_machine(workers: Workers) -> None:
    context = workers.context("converses")
    question_task = context.send("ask")
    assert state(question_task) == "INPUT_REQUIRED"
    workers.replace()

    answered_task = context.send("blue", question_task)
    history = [BEGIN, "INITIALIZING to INTERRUPTED", "INTERRUPTED to INITIALIZING"]
    assert output_of(answered_task) == history
    workers.replace()

    third_task = context.send("more")
    assert third_task["id"] != question_task["id"]
    assert output_of(third_task) == [*history, "INITIALIZING to COMPLETED", "COMPLETED to INITIALIZING"]
