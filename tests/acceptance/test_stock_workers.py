"""Workers without a2a_celery, whose results reach clients and webhooks through Celery's result backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest
from a2a.types import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from redis import Redis

from a2a_celery.lifecycle import Event
from a2a_celery.lifecycle.outcomes import WORKER_LOST
from a2a_celery.lifecycle.own_metadata import ATTEMPT, CELERY_STATE, own_metadata
from a2a_celery.store import Keys
from a2a_celery.watcher.dispatcher import UNREPORTED_WAITS
from tests.support.clients.bindings import message_json, rest
from tests.support.clients.talk import read, send, state
from tests.support.processes.consumers import wait_for_acknowledgement
from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.processes.system_under_test import text_of
from tests.support.receivers.posts import DELIVERING, body_with_config, event_of
from tests.support.receivers.receiver import Receiver, receiver
from tests.support.waiting import eventually

NEVER = "3600"
"""Value of `redispatch_after` in seconds, long enough that a watcher learns results only from its subscription."""


@pytest.fixture
def hooks() -> Iterator[Receiver]:
    with receiver() as hooks:
        yield hooks


def begin(fleet: Fleet, hooks: Receiver, agent: str, data: dict[str, Any]) -> None:
    """Start a gateway, and begin a task whose events are posted to "/hook"."""
    body = body_with_config(message_json(""), hooks.url("/hook"))
    body["message"]["parts"] = [{"data": data}]
    body["configuration"]["returnImmediately"] = True
    assert rest(fleet.gateway(), "POST", "/message:send", body, agent=agent).status_code == 200


def event_content(event: Event) -> tuple[str, dict[str, Any]] | str:
    """Return the state and the metadata of a status, or the text of an artifact."""
    if isinstance(event, TaskArtifactUpdateEvent):
        return event.artifact.parts[0].text
    assert isinstance(event, Task | TaskStatusUpdateEvent)
    return TaskState.Name(event.status.state).removeprefix("TASK_STATE_"), dict(event.metadata)


def post_contents(hooks: Receiver) -> list[tuple[str, dict[str, Any]] | str]:
    return [event_content(event_of(got)) for got in hooks.requests("/hook")]


def listening_watchers(fleet: Fleet, count: int) -> None:
    """Start watchers, and wait until each has subscribed to the results."""
    for _ in range(count):
        fleet.watcher().wait_for_output("subscribed to the result backend")


@pytest.mark.each_kind
def test_the_states_of_a_stock_worker_reach_a_webhook_when_they_are_stored(
    tmp_path: Path, broker: str, hooks: Receiver
) -> None:
    settings = {"A2A_REDISPATCH_AFTER": NEVER, "TEST_FOLDER": str(tmp_path), **DELIVERING}
    with running_fleet(tmp_path, broker, app="tests.support.agents.plain_tasks", **settings) as fleet:
        fleet.worker(app="tests.support.agents.old_release")
        listening_watchers(fleet, 2)
        begin(fleet, hooks, "progress", {"steps": 2})

        expected: list[Any] = [("SUBMITTED", {}), ("WORKING", {})]
        eventually(lambda: post_contents(hooks) == expected, what="STARTED is posted")
        for step in (1, 2):
            (tmp_path / f"step {step}").touch()
            progress = {"step": step, "of": 2, **own_metadata({CELERY_STATE: "PROGRESS"})}
            expected.append(("WORKING", progress))
            eventually(lambda: post_contents(hooks) == expected, what=f"step {step} is posted")
        (tmp_path / "end").touch()
        expected += ["done", ("COMPLETED", {})]
        eventually(lambda: post_contents(hooks) == expected, what="the end is posted")


@pytest.mark.each_kind
def test_a_retry_of_a_stock_worker_reaches_a_webhook(tmp_path: Path, broker: str, hooks: Receiver) -> None:
    settings = {"A2A_REDISPATCH_AFTER": NEVER, "TEST_FOLDER": str(tmp_path), **DELIVERING}
    with running_fleet(tmp_path, broker, app="tests.support.agents.plain_tasks", **settings) as fleet:
        fleet.worker(app="tests.support.agents.old_release")
        listening_watchers(fleet, 1)
        begin(fleet, hooks, "flaky", {"succeed_at": 2})

        expected: list[Any] = [("SUBMITTED", {}), ("WORKING", {})]
        eventually(lambda: post_contents(hooks) == expected, what="STARTED is posted")
        (tmp_path / "attempt 1").touch()
        expected += [("WORKING", own_metadata({ATTEMPT: 2})), ("WORKING", {})]
        eventually(lambda: post_contents(hooks) == expected, what="RETRY and the next STARTED are posted")
        (tmp_path / "attempt 2").touch()
        expected += ["attempt 2", ("COMPLETED", {})]
        eventually(lambda: post_contents(hooks) == expected, what="the end is posted")


def end(gateway: Gateway, agent: str, task: dict[str, Any]) -> dict[str, Any]:
    """Wait until the task is COMPLETED or FAILED, and return the task."""
    eventually(lambda: state(read(gateway, agent, task)) in ("COMPLETED", "FAILED"), what=f"{agent} ends")
    return read(gateway, agent, task)


def texts(task: dict[str, Any]) -> list[str]:
    """Return the texts of the artifacts of `task`."""
    return [artifact["parts"][0]["text"] for artifact in task.get("artifacts", [])]


def test_an_end_is_known_while_the_watcher_has_to_subscribe_again(tmp_path: Path) -> None:
    settings = {"A2A_REDISPATCH_AFTER": NEVER}
    with running_fleet(tmp_path, app="tests.support.agents.plain_tasks", **settings) as fleet:
        gateway, _ = fleet.gateway(), fleet.worker(app="tests.support.agents.old_release")
        listening_watchers(fleet, 1)
        start_file = tmp_path / "begun"
        task = send(gateway, "waits", str(start_file), returnImmediately=True)
        eventually(lambda: state(read(gateway, "waits", task)) == "WORKING", what="STARTED is known")

        with Redis.from_url(fleet.redis.store_url) as redis:
            redis.client_kill_filter(_type="pubsub")
        Path(f"{start_file}.go").touch()

        assert state(end(gateway, "waits", task)) == "COMPLETED"


def test_a_result_backend_without_subscriptions_is_polled(tmp_path: Path, broker: str) -> None:
    backend = f"db+sqlite:///{tmp_path}/results"
    settings = {"A2A_REDISPATCH_AFTER": "1", "TEST_RESULTS": backend}
    with running_fleet(tmp_path, broker, app="tests.support.agents.plain_tasks", **settings) as fleet:
        gateway, _ = fleet.gateway(), fleet.worker(app="tests.support.agents.old_release")
        fleet.watcher().wait_for_output("results are polled")
        start_file = tmp_path / "begun"
        task = send(gateway, "waits", str(start_file), returnImmediately=True)

        eventually(lambda: state(read(gateway, "waits", task)) == "WORKING", what="STARTED is polled")
        Path(f"{start_file}.go").touch()

        assert state(end(gateway, "waits", task)) == "COMPLETED"


def test_a_polled_result_is_known_soon(tmp_path: Path) -> None:
    settings = {"A2A_REDISPATCH_AFTER": NEVER, "TEST_RESULTS": f"db+sqlite:///{tmp_path}/results"}
    with running_fleet(tmp_path, app="tests.support.agents.plain_tasks", **settings) as fleet:
        gateway, _, _ = fleet.gateway(), fleet.worker(app="tests.support.agents.old_release"), fleet.watcher()

        task = send(gateway, "shout", "hey", returnImmediately=True)

        assert texts(end(gateway, "shout", task)) == ["HEY as ever"]


UNTRACKED = {"A2A_REDISPATCH_AFTER": "1", "TEST_UNTRACKED": "1"}
"""Variables of a fleet whose stock workers do not store STARTED, which is Celery's default."""

ENOUGH_CHECKS = UNREPORTED_WAITS + 3
"""Number of checks of a run after which a watcher would have published the run again, or ended it as lost."""


@pytest.fixture
def unwatched_fleet(tmp_path: Path, broker: str, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Fleet whose stock workers do not store STARTED. The parameter sets the result backend."""
    results = {"TEST_RESULTS": request.param} if getattr(request, "param", None) else {}
    settings = {**UNTRACKED, "TEST_FOLDER": str(tmp_path), **results}
    with running_fleet(tmp_path, broker, app="tests.support.agents.plain_tasks", **settings) as fleet:
        yield fleet


@pytest.fixture
def untracked_fleet(unwatched_fleet: Fleet) -> Fleet:
    """The `unwatched_fleet` with a watcher."""
    unwatched_fleet.watcher()
    return unwatched_fleet


def count(gateway: Gateway, name: str) -> dict[str, Any]:
    """Send a message to the agent "counts", and return the task."""
    return send(gateway, "counts", data={"name": name}, returnImmediately=True)


def executions(fleet: Fleet, name: str) -> int:
    return len(list(fleet.folder.glob(f"{name}.execution-*")))


def has_begun(fleet: Fleet, name: str) -> None:
    """Wait until a worker executes the task `name`."""
    eventually(lambda: executions(fleet, name), what=f"{name} begins")


def checked_often(fleet: Fleet, task: dict[str, Any]) -> None:
    """Wait until a watcher has checked the run of `task` often."""
    due_times = set()
    with Redis.from_url(fleet.redis.store_url) as redis:

        def is_checked_often() -> bool:
            due_times.add(redis.zscore(Keys("a2a").dispatch, f"{task['id']}.1"))
            return len(due_times) > ENOUGH_CHECKS

        eventually(is_checked_often, what="the run is checked often")


@pytest.mark.each_kind
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_long_run_of_a_stock_worker_is_executed_once(untracked_fleet: Fleet, pool: str) -> None:
    fleet, gateway = untracked_fleet, untracked_fleet.gateway()
    for _ in range(2):
        fleet.worker(app="tests.support.agents.old_release", pool=pool)
    task = count(gateway, "long")
    has_begun(fleet, "long")
    fleet.worker()  # a second copy of the run would begin on this worker

    checked_often(fleet, task)
    (fleet.folder / "long.go").touch()

    assert texts(end(gateway, "counts", task)) == ["long"]
    assert executions(fleet, "long") == 1


@pytest.mark.each_kind
def test_a_run_that_waits_in_the_prefetch_of_a_stock_worker_is_executed_once(untracked_fleet: Fleet) -> None:
    fleet, gateway = untracked_fleet, untracked_fleet.gateway()
    fleet.worker(app="tests.support.agents.old_release", concurrency=1)
    first = count(gateway, "first")
    has_begun(fleet, "first")
    second = count(gateway, "second")

    checked_often(fleet, second)
    for name in ("first", "second"):
        (fleet.folder / f"{name}.go").touch()

    for task in (first, second):
        assert state(end(gateway, "counts", task)) == "COMPLETED"
    assert [executions(fleet, name) for name in ("first", "second")] == [1, 1]


@pytest.mark.each_kind
@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "two workers"])
def test_a_run_of_a_killed_stock_worker_ends_as_lost(untracked_fleet: Fleet, is_alone: bool) -> None:
    fleet, gateway = untracked_fleet, untracked_fleet.gateway()
    worker = fleet.worker(app="tests.support.agents.old_release")
    task = count(gateway, "killed")
    has_begun(fleet, "killed")
    wait_for_acknowledgement(fleet, worker)
    if not is_alone:
        fleet.worker(app="tests.support.agents.old_release")

    worker.kill()

    ended_task = end(gateway, "counts", task)
    assert (state(ended_task), text_of(ended_task)) == ("FAILED", WORKER_LOST)
    assert executions(fleet, "killed") == 1


def test_a_run_of_a_silent_stock_worker_is_executed_once(untracked_fleet: Fleet) -> None:
    """A worker of the solo pool does not reply while it executes a task."""
    fleet, gateway = untracked_fleet, untracked_fleet.gateway()
    fleet.worker(app="tests.support.agents.old_release", pool="solo")
    task = count(gateway, "solo")
    has_begun(fleet, "solo")

    assert state(end(gateway, "counts", task)) == "FAILED"
    (fleet.folder / "solo.go").touch()
    probe = count(gateway, "probe")  # the worker receives the probe after all copies of the run
    (fleet.folder / "probe.go").touch()
    assert state(end(gateway, "counts", probe)) == "COMPLETED"
    assert executions(fleet, "solo") == 1


@pytest.mark.each_kind
@pytest.mark.parametrize("unwatched_fleet", ["rpc://", "disabled://"], indirect=True)
def test_a_run_whose_result_cannot_be_read_is_executed_once(untracked_fleet: Fleet) -> None:
    fleet, gateway = untracked_fleet, untracked_fleet.gateway()
    fleet.worker(app="tests.support.agents.old_release")
    task = count(gateway, "unread")
    has_begun(fleet, "unread")

    checked_often(fleet, task)
    assert state(read(gateway, "counts", task)) == "SUBMITTED"
    (fleet.folder / "unread.go").touch()

    assert state(end(gateway, "counts", task)) == "FAILED"
    assert executions(fleet, "unread") == 1


@pytest.mark.each_kind
def test_a_lost_message_is_published_again_if_all_workers_claim_runs(unwatched_fleet: Fleet) -> None:
    fleet, gateway = unwatched_fleet, unwatched_fleet.gateway()
    with kombu.Connection(fleet.broker_url) as connection:
        channel = connection.default_channel
        channel.queue_declare(fleet.queue, durable=True, auto_delete=False)
        task = count(gateway, "again")
        eventually(lambda: channel.queue_purge(fleet.queue), what="the message is lost")

    fleet.worker()
    # with the `redispatch_after` of the fleet, a worker that replies late would be taken for no worker after 5 s
    fleet.watcher(A2A_REDISPATCH_AFTER="10")

    assert texts(end(gateway, "counts", task)) == ["at once"]
