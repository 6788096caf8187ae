"""Workers without a2a_celery, whose results reach clients and webhooks through Celery's result backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from a2a.types import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from redis import Redis

from a2a_celery.lifecycle import Event
from a2a_celery.lifecycle.own_metadata import ATTEMPT, CELERY_STATE, own_metadata
from tests.support.clients import message_json, rest
from tests.support.fleet import Fleet, Gateway, running_fleet
from tests.support.posts import DELIVERING, body_with_config, event_of
from tests.support.receiver import Receiver, receiver
from tests.support.talk import read, send, state
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
    with running_fleet(tmp_path, broker, app="tests.support.plain_tasks", **settings) as fleet:
        fleet.worker(app="tests.support.old_release")
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
    with running_fleet(tmp_path, broker, app="tests.support.plain_tasks", **settings) as fleet:
        fleet.worker(app="tests.support.old_release")
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


def test_an_end_is_known_while_the_watcher_has_to_subscribe_again(tmp_path: Path) -> None:
    settings = {"A2A_REDISPATCH_AFTER": NEVER}
    with running_fleet(tmp_path, app="tests.support.plain_tasks", **settings) as fleet:
        gateway, _ = fleet.gateway(), fleet.worker(app="tests.support.old_release")
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
    with running_fleet(tmp_path, broker, app="tests.support.plain_tasks", **settings) as fleet:
        gateway, _ = fleet.gateway(), fleet.worker(app="tests.support.old_release")
        fleet.watcher().wait_for_output("results are polled")
        start_file = tmp_path / "begun"
        task = send(gateway, "waits", str(start_file), returnImmediately=True)

        eventually(lambda: state(read(gateway, "waits", task)) == "WORKING", what="STARTED is polled")
        Path(f"{start_file}.go").touch()

        assert state(end(gateway, "waits", task)) == "COMPLETED"
