"""Execution of a run as seen by operators and clients: Celery events, ``a2a get --execution``, and status metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from celery import Celery
from click.testing import CliRunner, Result

from a2a_celery import A2A
from a2a_celery.cli.commands import a2a
from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.runs.release import read_activities
from tests.support.agents.basic import card
from tests.support.clients.bindings import message_json
from tests.support.clients.talk import HEADERS, cancel, read, send, state
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.receivers.celery_events import CeleryEvents, celery_events
from tests.support.waiting import LIMIT, eventually

SECRET = "secret words"


def send_to(gateway: Gateway, agent: str, task_id: str = "") -> dict[str, Any]:
    """Send a message that continues the task `task_id`, or begins a task if `task_id` is "". Return the task without
    waiting for the end of the turn."""
    body = {**message_json(SECRET), "configuration": {"returnImmediately": True}}
    if task_id:
        body["message"]["taskId"] = task_id
    answer = httpx.post(f"{gateway.url}/agents/{agent}/message:send", json=body, headers=HEADERS, timeout=LIMIT)
    task: dict[str, Any] = answer.json()["task"]
    return task


class WatchedFleet:
    """Fleet of agents that record steps, and the Celery events of the fleet."""

    def __init__(self, fleet: Fleet, events: CeleryEvents) -> None:
        self.fleet, self.events = fleet, events
        self.gateway: Gateway = fleet.gateway(A2A_LEASE_TTL="2")
        self.worker: Process
        self.store = SyncStore(fleet.redis.store_url)

    def work(self, pool: str, *options: str) -> None:
        """Start a worker with the pool and additional options."""
        number = len(self.fleet.processes)
        arguments = ("worker", "-n", f"w{number}-{self.fleet.queue}@%h", "-P", pool, "-c", "2", "-l", "INFO", *options)
        self.worker = self.fleet.start(f"worker-{number}", *arguments, A2A_LEASE_TTL="2")
        self.worker.wait_for_output(" ready.")

    def celery_events(self, task_id: str) -> list[str]:
        """Return the Celery events about the execution of the task, as text."""
        celery_events = [event for event in self.events.whole if event["type"] == "a2a-execution"]
        return [
            " ".join([e["to_state"], *[e[name] for name in ("model", "tool", "reason") if name in e]])
            for e in celery_events
            if e["task_id"] == task_id
        ]

    def run_task(self, agent: str, *states: str, task_id: str = "") -> str:
        """Send a message to `agent`, and wait until the task is in one of `states`. Return the task's id."""
        task = send_to(self.gateway, agent, task_id)
        eventually(lambda: state(read(self.gateway, agent, task)) in states, what=f"{agent}: {states}")
        return str(task["id"])

    def stored_steps(self, task_id: str) -> list[str]:
        """Return the stored steps of the task, as text."""
        steps = self.store.run(read_activities(Keys("a2a"), task_id))
        assert steps is not None
        return [" ".join([s.transition.after, *map(str, s.transition.detail.values())]) for s in steps.activities]

    def get(self, task_id: str, *options: str) -> Result:
        """Run ``a2a get --execution`` in this process, with an operator's app."""
        app = Celery(broker="memory://", set_as_current=False)
        app.conf.a2a_store_url = self.fleet.redis.store_url
        A2A(app).add_agent(card("echo"), "no:code", name="echo")
        return CliRunner().invoke(a2a, ["get", task_id, "--execution", *options], obj=SimpleNamespace(app=app))

    def shown_steps(self, task_id: str) -> list[dict[str, Any]]:
        """Return the JSON output of ``a2a get --execution``."""
        result = self.get(task_id, "--json")
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]


@contextmanager
def running_watched_fleet(folder: Path) -> Iterator[WatchedFleet]:
    with (
        running_fleet(folder, app="tests.support.agents.steppers") as fleet,
        celery_events(fleet.broker_url) as events,
    ):
        watched_fleet = WatchedFleet(fleet, events)
        yield watched_fleet
        watched_fleet.store.close()


@pytest.fixture(scope="module")
def watched_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedFleet]:
    with running_watched_fleet(tmp_path_factory.mktemp("fleet")) as watched_fleet:
        yield watched_fleet


@pytest.fixture
def killed_fleet(tmp_path: Path) -> Iterator[WatchedFleet]:
    """Fleet of one test, which kills the only worker."""
    with running_watched_fleet(tmp_path) as watched_fleet:
        yield watched_fleet


@pytest.fixture(scope="module", params=["prefork", "threads"])
def observed_fleet(request: pytest.FixtureRequest, watched_fleet: WatchedFleet) -> Iterator[WatchedFleet]:
    """Fleet with a worker that sends events."""
    watched_fleet.work(request.param, "-E")
    yield watched_fleet
    watched_fleet.worker.kill()


def test_a_history_outlives_its_worker_and_is_stored_without_celery_events(killed_fleet: WatchedFleet) -> None:
    killed_fleet.work("prefork")
    task = send(killed_fleet.gateway, "waits", returnImmediately=True)
    eventually(lambda: killed_fleet.stored_steps(task["id"])[1:] == ["TOOL_EXECUTION slow"], what="its step is stored")
    killed_fleet.worker.kill()
    last = killed_fleet.shown_steps(task["id"])[-1]
    assert last["open"]
    assert last["seconds"] > 0

    killed_fleet.fleet.watcher(A2A_LEASE_TTL="2")
    eventually(lambda: state(read(killed_fleet.gateway, "waits", task)) == "FAILED", what="it is FAILED")

    output = killed_fleet.get(task["id"]).stdout.splitlines()
    assert output[0].endswith(": FAILED")
    assert output[1].split() == ["RUN", "ATTEMPT", "STATE", "WHEN", "FOR", "WHAT", "WORKER"]
    assert re.fullmatch(r"1 +1 +INITIALIZING +[-0-9]+ [0-9:.]+ +[0-9.]+ s +- +\S+", output[2])
    assert re.fullmatch(r"1 +1 +TOOL_EXECUTION +[-0-9]+ [0-9:.]+ +lost +tool slow +\S+", output[3])
    assert killed_fleet.celery_events(task["id"]) == []


STEPS = ["INITIALIZING", "MODEL_CALL m1", "TOOL_EXECUTION search", "COMPLETED"]


@pytest.mark.parametrize(
    ("agent", "steps"),
    [
        ("echo", ["INITIALIZING", "COMPLETED"]),
        ("steps", STEPS),
        ("blocking", [*STEPS[:3], "MODEL_CALL m1", "COMPLETED"]),
        ("executor", ["INITIALIZING", "TOOL_EXECUTION of an executor", "COMPLETED"]),
        ("plain", ["INITIALIZING", "TOOL_EXECUTION of a task", "COMPLETED"]),
    ],
)
def test_celery_events_report_each_step_of_every_kind_of_agent(
    observed_fleet: WatchedFleet, agent: str, steps: list[str]
) -> None:
    task_id = observed_fleet.run_task(agent, "COMPLETED")

    eventually(lambda: len(observed_fleet.celery_events(task_id)) >= len(steps), what="Celery's events")

    assert observed_fleet.celery_events(task_id) == steps
    mine = [event for event in observed_fleet.events.whole if event.get("task_id") == task_id]
    assert {(e["uuid"], e["run"], e["attempt"], e["agent"]) for e in mine} == {(f"{task_id}.1", 1, 1, agent)}
    assert all(e["hostname"].startswith("w") for e in mine)
    assert SECRET not in repr(mine)
    assert observed_fleet.stored_steps(task_id) == steps


def test_a_task_that_asked_shows_both_of_its_runs(observed_fleet: WatchedFleet) -> None:
    task_id = observed_fleet.run_task("asks", "INPUT_REQUIRED")
    observed_fleet.run_task("asks", "COMPLETED", task_id=task_id)

    execution_json = observed_fleet.shown_steps(task_id)

    assert [(row["run"], row["from"], row["state"]) for row in execution_json] == [
        (1, "IDLE", "INITIALIZING"),
        (1, "INITIALIZING", "MODEL_CALL"),
        (1, "MODEL_CALL", "INTERRUPTED"),
        (2, "INTERRUPTED", "INITIALIZING"),
        (2, "INITIALIZING", "MODEL_CALL"),
        (2, "MODEL_CALL", "COMPLETED"),
    ]
    assert [row["seconds"] is None for row in execution_json] == [False, False, True] * 2
    nodes = {event["hostname"] for event in observed_fleet.events.whole if event.get("task_id") == task_id}
    assert {row["worker"] for row in execution_json} == nodes, "the steps and Celery have one name for the worker"
    assert all(row["process"].startswith(f"{gethostname()}.") for row in execution_json)


def test_the_history_of_a_cancelled_task_ends_with_it(observed_fleet: WatchedFleet) -> None:
    task = send(observed_fleet.gateway, "waits", returnImmediately=True)
    eventually(
        lambda: observed_fleet.stored_steps(task["id"])[1:] == ["TOOL_EXECUTION slow"], what="its step is stored"
    )
    cancel(observed_fleet.gateway, "waits", task)

    assert observed_fleet.stored_steps(task["id"])[2:] == ["CANCELLED"]


def test_clients_see_the_steps_of_an_agent_that_shows_them(observed_fleet: WatchedFleet) -> None:
    url = f"{observed_fleet.gateway.url}/agents/{{}}/message:stream"
    shown_steps = {}
    for agent in ("steps", "blocking"):
        stream = httpx.post(url.format(agent), json=message_json(SECRET), headers=HEADERS, timeout=LIMIT)
        frames = [json.loads(line[5:]) for line in stream.text.splitlines() if line.startswith("data:")]
        shown_steps[agent] = [
            frame["statusUpdate"]["metadata"]["execution"]
            for frame in frames
            if "execution" in frame.get("statusUpdate", {}).get("metadata", {})
        ]

    assert shown_steps == {
        "steps": [{"state": "MODEL_CALL", "model": "m1"}, {"state": "TOOL_EXECUTION", "tool": "search"}],
        "blocking": [],
    }


@pytest.mark.parametrize(
    ("options", "code", "error"),
    [
        (("--url", "http://127.0.0.1:1"), 2, "reads the store, not a gateway: leave out --url"),
        (("--header", "a: b"), 2, "leave out --header"),
        (("--agent", "nobody"), 1, "no agent 'nobody'; this app has echo"),
        (("--agent", "echo"), 1, "no task nothing of echo"),
        ((), 1, "no task nothing"),
    ],
)
def test_what_cannot_be_shown_is_an_error(
    watched_fleet: WatchedFleet, options: tuple[str, ...], code: int, error: str
) -> None:
    result = watched_fleet.get("nothing", *options)

    assert (result.exit_code, error in result.output) == (code, True), result.output
