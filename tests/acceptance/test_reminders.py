"""Reminders of open questions with real processes that are killed: status events, webhooks and escalation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from a2a_celery.features.questions.reminder_poster import reminder_index
from a2a_celery.features.webhooks.push_configs import ESCALATION
from a2a_celery.lifecycle.own_metadata import ESCALATED, NAMESPACE, REMINDER
from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.log.pages import read_log
from tests.support.clients.bindings import message_json, rest, rpc
from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.receivers.posts import DELIVERING, body_with_config, version_of
from tests.support.receivers.receiver import ReceivedPost, Receiver, receiver
from tests.support.waiting import eventually

CLIENT, OPERATOR = "/client", "/operator"


@contextmanager
def fleet_with_webhooks(folder: Path, broker: str) -> Iterator[tuple[Fleet, Receiver]]:
    """Run a fleet, and the receiver of the client's and the agent's webhooks."""
    with receiver() as hooks:
        env = {**DELIVERING, "TEST_ESCALATION": hooks.url(OPERATOR)}
        with running_fleet(folder, broker, app="tests.support.agents.reminder_agents", **env) as fleet:
            yield fleet, hooks


def ask(gateway: Gateway, hooks: Receiver, agent: str) -> str:
    """Send a message with a webhook, and wait until the agent has asked. Return the task's id."""
    answer = rpc(gateway, "SendMessage", body_with_config(message_json("hello"), hooks.url(CLIENT)), agent=agent)
    task_id = str(answer["result"]["task"]["id"])
    eventually(lambda: get(gateway, agent, task_id)["status"]["state"] == "TASK_STATE_INPUT_REQUIRED", what="it asks")
    return task_id


def get(gateway: Gateway, agent: str, task_id: str) -> dict[str, Any]:
    """Return the current task from the gateway."""
    task: dict[str, Any] = rest(gateway, "GET", f"/tasks/{task_id}", agent=agent).json()
    return task


def answer(gateway: Gateway, agent: str, task_id: str, text: str) -> dict[str, Any]:
    """Answer the question, wait until the task is COMPLETED, and return the task."""
    rpc(gateway, "SendMessage", message_json(text, taskId=task_id), agent=agent)
    eventually(lambda: get(gateway, agent, task_id)["status"]["state"] == "TASK_STATE_COMPLETED", what="the task ends")
    return get(gateway, agent, task_id)


def posted_metadata(posts: list[ReceivedPost]) -> list[dict[str, Any]]:
    """Return the metadata of the posted reminders, without repeated posts.

    If a watcher is killed after a post, before it has recorded the post, another watcher repeats the post.
    """
    posts_by_version = {version_of(post): post.json() for post in posts}
    updates = [event.get("statusUpdate", {}) for _, event in sorted(posts_by_version.items())]
    return [u["metadata"] for u in updates if NAMESPACE + REMINDER in u.get("metadata", {})]


@pytest.mark.parametrize(("agent", "reply"), [("reminds", "yes"), ("reminds-of-all", '{"size": 3}')])
def test_reminders_come_once_although_every_process_is_killed(
    tmp_path: Path, broker: str, agent: str, reply: str
) -> None:
    with fleet_with_webhooks(tmp_path, broker) as (fleet, hooks):
        gateway, worker, watcher = fleet.gateway(), fleet.worker(), fleet.watcher()
        task_id = ask(gateway, hooks, agent)
        for process in (gateway, worker, watcher):
            process.kill()
        watchers = [fleet.watcher(), fleet.watcher()]
        eventually(lambda: posted_metadata(hooks.requests(CLIENT)), what="the first reminder")
        for watcher in watchers:
            watcher.kill()
        fleet.watcher()
        eventually(lambda: hooks.requests(OPERATOR), what="the last reminder is escalated")
        eventually(lambda: len(posted_metadata(hooks.requests(CLIENT))) == 2, what="the last reminder")

        first, last = posted_metadata(hooks.requests(CLIENT))
        assert first == {NAMESPACE + REMINDER: 1}
        assert last == {NAMESPACE + REMINDER: 2, NAMESPACE + ESCALATED: True}
        assert posted_metadata(hooks.requests(OPERATOR)) == [last]
        gateway = fleet.gateway()
        fleet.worker()
        assert get(gateway, agent, task_id)["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        configs = rest(gateway, "GET", f"/tasks/{task_id}/pushNotificationConfigs", agent=agent)
        assert hooks.url(CLIENT) in configs.text
        assert hooks.url(OPERATOR) not in configs.text
        for method in ("GetTaskPushNotificationConfig", "DeleteTaskPushNotificationConfig"):
            assert "error" in rpc(gateway, method, {"taskId": task_id, "id": ESCALATION}, agent=agent)

        ended_task = answer(gateway, agent, task_id, reply)

        assert not any(key.startswith(NAMESPACE + REMINDER) for key in ended_task.get("metadata", {}))
        eventually(lambda: "TASK_STATE_COMPLETED" in str(hooks.requests(OPERATOR)[-1].body), what="it follows the task")
        assert len(posted_metadata(hooks.requests(CLIENT))) == 2


def test_an_answer_cancels_the_reminders(tmp_path: Path) -> None:
    with fleet_with_webhooks(tmp_path, "redis") as (fleet, hooks):
        gateway, _ = fleet.gateway(), fleet.worker()
        store, keys = SyncStore(fleet.redis.store_url), Keys()
        task_id = ask(gateway, hooks, "reminds")
        assert store.redis.zscore(reminder_index(keys), task_id) is not None

        answer(gateway, "reminds", task_id, "yes")

        assert store.redis.zscore(reminder_index(keys), task_id) is None
        store.redis.zadd(reminder_index(keys), {task_id: 1})  # as if a watcher had read the list before the answer
        fleet.watcher()
        eventually(lambda: store.redis.zscore(reminder_index(keys), task_id) is None, what="a watcher has looked at it")
        assert NAMESPACE + REMINDER not in str(store.run(read_log(keys, task_id, 0)).entries)
