"""Webhook deliveries of final states that no agent sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from a2a_celery.lifecycle.outcomes import CANCELED_BY_OPERATOR, WORKER_LOST
from tests.support.clients.bindings import message_json, rpc
from tests.support.processes.system_under_test import SystemUnderTest, running_system, text_of
from tests.support.receivers.posts import (
    DELIVERING,
    body_with_config,
    require_all,
    require_signed,
    states,
    version_of,
    visible_events,
)
from tests.support.receivers.receiver import Receiver, receiver
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def hooks() -> Iterator[Receiver]:
    with receiver() as hooks:
        yield hooks


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemUnderTest]:
    with running_system(tmp_path_factory.mktemp("system"), "prefork", A2A_INPUT_TIMEOUT="1", **DELIVERING) as system:
        system.fleet.watcher()
        yield system


def send_with_webhook(system: SystemUnderTest, hooks: Receiver, agent: str, text: str = "") -> tuple[str, str]:
    """Send a message with a webhook. Return the task's id, and the path to which its events are posted."""
    body = body_with_config(message_json(text), hooks.url(path := f"/{agent}/{message_json()['message']['messageId']}"))
    body["configuration"]["returnImmediately"] = True
    return system.send_body(agent, body), path


def posted_states(system: SystemUnderTest, hooks: Receiver, task_id: str, path: str) -> list[str]:
    """Wait until all events of the log have been posted to `path`. Check all posts and return the posted states."""
    expected = visible_events(system.store, task_id)
    eventually(lambda: {version_of(got) for got in hooks.requests(path)} >= set(expected), what=f"{expected}")
    posts = hooks.requests(path)
    require_signed(posts)
    require_all(posts, expected)
    return states(posts)


def test_canceled_in_its_queue(system: SystemUnderTest, hooks: Receiver) -> None:
    with system.pause_consumer():
        task_id, path = send_with_webhook(system, hooks, "echo")
        rpc(system.gateway, "CancelTask", {"id": task_id}, agent="echo")

        assert posted_states(system, hooks, task_id, path) == ["SUBMITTED", "CANCELED"]


def test_canceled_while_it_runs(system: SystemUnderTest, hooks: Receiver) -> None:
    task_id, path = send_with_webhook(system, hooks, "silent", "60")
    eventually(lambda: system.is_in(task_id, "WORKING"))

    rpc(system.gateway, "CancelTask", {"id": task_id}, agent="silent")

    system.wait_for_end("silent", task_id)
    assert posted_states(system, hooks, task_id, path) == ["SUBMITTED", "WORKING", "CANCELED"]


def test_not_answered_in_time(system: SystemUnderTest, hooks: Receiver) -> None:
    task_id, path = send_with_webhook(system, hooks, "ask")
    eventually(lambda: system.is_in(task_id, "FAILED"))

    assert posted_states(system, hooks, task_id, path) == ["SUBMITTED", "WORKING", "INPUT_REQUIRED", "FAILED"]


def test_revoked_before_it_began(system: SystemUnderTest, hooks: Receiver) -> None:
    with system.pause_consumer():
        task_id, path = send_with_webhook(system, hooks, "echo")
        system.revoke(task_id)

    assert text_of(system.wait_for_end("echo", task_id)) == CANCELED_BY_OPERATOR
    assert posted_states(system, hooks, task_id, path) == ["SUBMITTED", "CANCELED"]


def test_terminated_while_it_runs(system: SystemUnderTest, hooks: Receiver) -> None:
    task_id, path = send_with_webhook(system, hooks, "silent", "60")
    eventually(lambda: system.is_in(task_id, "WORKING"))

    system.celery.control.revoke(f"{task_id}.1", terminate=True)

    assert text_of(system.wait_for_end("silent", task_id)) == CANCELED_BY_OPERATOR
    assert posted_states(system, hooks, task_id, path) == ["SUBMITTED", "WORKING", "CANCELED"]


def test_a_run_whose_process_was_killed(system: SystemUnderTest, hooks: Receiver) -> None:
    task_id, path = send_with_webhook(system, hooks, "ends", "SIGKILL")

    system.wait_for_end("ends", task_id)

    assert posted_states(system, hooks, task_id, path) == ["SUBMITTED", "WORKING", "FAILED"]


def test_a_lost_machine_ends_its_run(system: SystemUnderTest, hooks: Receiver) -> None:
    machine = system.fleet.worker(concurrency=8)
    with system.pause_consumer():
        task_id, path = send_with_webhook(system, hooks, "silent", "60")
        eventually(lambda: system.is_in(task_id, "WORKING"))
    machine.kill()

    assert text_of(system.wait_for_end("silent", task_id)) == WORKER_LOST
    assert posted_states(system, hooks, task_id, path) == ["SUBMITTED", "WORKING", "FAILED"]
