"""A client in four plain functions, over HTTP+JSON: for tests that are about something else."""

from __future__ import annotations

from typing import Any

import httpx

from .fleet import Gateway
from .waiting import eventually

HEADERS = {"A2A-Version": "1.0"}
TIMEOUT = 60.0


def send(gateway: Gateway, agent: str, text: str = "", **configuration: Any) -> dict[str, Any]:
    """Sends a message to `agent`; gives the task."""
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
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
    """The task as it is now."""
    url = f"{gateway.url}/agents/{agent}/tasks/{task['id']}"
    found: dict[str, Any] = httpx.get(url, headers=HEADERS, timeout=TIMEOUT).json()
    return found


def cancel(gateway: Gateway, agent: str, task: dict[str, Any]) -> dict[str, Any]:
    """Cancels the task, and gives it as it is then."""
    url = f"{gateway.url}/agents/{agent}/tasks/{task['id']}:cancel"
    found: dict[str, Any] = httpx.post(url, headers=HEADERS, timeout=TIMEOUT).json()
    return found


def canceled(gateway: Gateway, agent: str, task: dict[str, Any]) -> dict[str, Any]:
    """Cancels the task, and gives it when it has ended: the answer comes a moment after the grace, done or not."""
    cancel(gateway, agent, task)
    going_on = ("SUBMITTED", "WORKING")
    return eventually(
        lambda: found if state(found := read(gateway, agent, task)) not in going_on else {},
        what=f"{agent} ends",
    )


def state(task: dict[str, Any]) -> str:
    """The state of `task`, without its prefix."""
    return str(task["status"]["state"]).removeprefix("TASK_STATE_")
