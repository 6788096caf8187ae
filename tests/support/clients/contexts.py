"""Client contexts, for tests of sessions and of serialized runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from tests.support.clients.talk import HEADERS, read, state
from tests.support.processes.fleet import Fleet, Gateway
from tests.support.waiting import LIMIT, eventually


class Context:
    """Client context with one agent. `notes` contains the lines that the agent's runs wrote."""

    def __init__(self, gateway: Gateway, agent: str, folder: Path) -> None:
        self.id = str(uuid4())
        self.agent = agent
        self._gateway = gateway
        self._folder = folder

    def send(self, text: str, task: dict[str, Any] | None = None, *, wait: bool = True) -> dict[str, Any]:
        """Send a message and return the task. If `wait` is true, wait until the task is terminal or interrupted."""
        message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": text}], "contextId": self.id}
        if task is not None:
            message["taskId"] = task["id"]
        answer = httpx.post(
            f"{self._gateway.url}/agents/{self.agent}/message:send",
            json={"message": message, "configuration": {"returnImmediately": not wait}},
            headers=HEADERS,
            timeout=LIMIT,
        )
        assert answer.status_code == 200, answer.text
        return answer.json()["task"]  # type: ignore[no-any-return]

    def wait_for_end(self, task: dict[str, Any], *ends: str) -> dict[str, Any]:
        """Wait until the task is in one of the states `ends`, by default any terminal state, and return the task."""
        wanted_states = ends or ("COMPLETED", "FAILED", "CANCELED", "REJECTED")

        def look() -> dict[str, Any] | None:
            current = read(self._gateway, self.agent, task)
            return current if state(current) in wanted_states else None

        return eventually(look, what=f"{self.agent} ends") or {}

    @property
    def notes(self) -> list[str]:
        file = self._folder / self.id
        return file.read_text().splitlines() if file.exists() else []


def output_of(task: dict[str, Any]) -> Any:
    """Return the data or the text of the task's last artifact."""
    [part] = task["artifacts"][-1]["parts"]
    return part.get("data", part.get("text"))


class Fold:
    """Fleet whose agents have sessions."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet, self.folder = fleet, folder
        self.gateway = fleet.gateway()

    def context(self, agent: str) -> Context:
        return Context(self.gateway, agent, self.folder)
