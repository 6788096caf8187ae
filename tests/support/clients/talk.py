"""Minimal HTTP+JSON client, for tests that are not about clients or bindings."""

from __future__ import annotations

from typing import Any

import httpx

from tests.support.processes.fleet import Gateway
from tests.support.waiting import eventually

HEADERS = {"A2A-Version": "1.0"}
TIMEOUT = 60.0


def send(
    gateway: Gateway, agent: str, text: str = "", *, data: Any = None, task_id: str = "", **configuration: Any
) -> dict[str, Any]:
    """Send a message to `agent`, as a new task or to the task `task_id`, and return the task. With `data`, the message
    has a data part instead of a text part."""
    part = {"text": text} if data is None else {"data": data}
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [part], "taskId": task_id}
    answer = httpx.post(
        f"{gateway.url}/agents/{agent}/message:send",
        json={"message": message, "configuration": configuration},
        headers=HEADERS,
        timeout=TIMEOUT,
    )
    assert answer.status_code == 200, answer.text
    task: dict[str, Any] = answer.json()["task"]
    return task


def read(gateway: Gateway, agent: str, task: dict[str, Any]) -> dict[str, Any]:
    """Return the current state of `task`."""
    url = f"{gateway.url}/agents/{agent}/tasks/{task['id']}"
    task_json: dict[str, Any] = httpx.get(url, headers=HEADERS, timeout=TIMEOUT).json()
    return task_json


def cancel(gateway: Gateway, agent: str, task: dict[str, Any]) -> dict[str, Any]:
    """Cancel `task` and return the task in the response."""
    url = f"{gateway.url}/agents/{agent}/tasks/{task['id']}:cancel"
    task_json: dict[str, Any] = httpx.post(url, headers=HEADERS, timeout=TIMEOUT).json()
    return task_json


def cancel_task(gateway: Gateway, agent: str, task: dict[str, Any]) -> dict[str, Any]:
    """Cancel `task`, wait until the task is no longer SUBMITTED or WORKING, and return it.

    CancelTask may return before the task is CANCELED.
    """
    cancel(gateway, agent, task)
    going_on = ("SUBMITTED", "WORKING")
    return eventually(
        lambda: current_task if state(current_task := read(gateway, agent, task)) not in going_on else {},
        what=f"{agent} ends",
    )


def state(task: dict[str, Any]) -> str:
    """Return the state of `task` without its prefix."""
    return str(task["status"]["state"]).removeprefix("TASK_STATE_")
