"""Acceptance and publication of a message in one script, with one Redis server as broker and store."""

from __future__ import annotations

from typing import Any

import httpx
import redis

from a2a_celery.store import Keys
from tests.support.clients.talk import HEADERS, TIMEOUT, read, send, state
from tests.support.processes.fleet import Fleet, Gateway
from tests.support.waiting import eventually

PUBLISHED = b"published_at"


def push_task(fleet: Fleet, gateway: Gateway) -> dict[str, Any]:
    """Send a message. Return its task, or {} if no script pushed the run to the queue."""
    with redis.Redis.from_url(fleet.redis.store_url) as client, client.monitor() as monitor:
        task = send(gateway, "echo", "hello", returnImmediately=True)
        client.echo("that is all")
        for entry in monitor.listen():
            name, *arguments = entry["command"].split()
            if name == "LPUSH" and entry["client_type"] == "lua" and arguments[0] == fleet.queue:
                return task
            if name == "ECHO":
                break
    return {}


def test_a_killed_gateway_loses_no_accepted_message_and_needs_no_watcher(fleet: Fleet) -> None:
    gateway = fleet.gateway()
    task = eventually(lambda: push_task(fleet, gateway), what="the store pushes a message")
    gateway.kill()

    fleet.worker(pool="threads")

    next_gateway = fleet.gateway()
    eventually(lambda: state(read(next_gateway, "echo", task)) == "COMPLETED", what="the task is completed")


def test_an_answered_question_is_queued_in_the_same_step(fleet: Fleet) -> None:
    gateway = fleet.gateway()
    fleet.worker(pool="threads")
    eventually(lambda: push_task(fleet, gateway), what="the store pushes a message")
    task = send(gateway, "ask", "hello")
    keys = Keys().task(str(task["id"]))
    with redis.Redis.from_url(fleet.redis.store_url) as client:
        publish_state = client.hget(keys.record, PUBLISHED)

        message = {"messageId": "n", "taskId": task["id"], "role": "ROLE_USER", "parts": [{"text": "blue"}]}
        url = f"{gateway.url}/agents/ask/message:send"
        reply = httpx.post(url, json={"message": message}, headers=HEADERS, timeout=TIMEOUT)
        assert reply.status_code == 200, reply.text

        next_publish_state = client.hget(keys.record, PUBLISHED)
    assert publish_state.split()[0] == b"1"  # type: ignore[union-attr]
    assert next_publish_state.split()[0] == b"2"  # type: ignore[union-attr]
