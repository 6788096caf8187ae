"""Script that an agent of any framework follows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from a2a_celery import Turn, current_step_key
from a2a_celery.features.steps.journal import MAX_RESULT_BYTES
from tests.execution.attempts import WorkerDies


@dataclass(frozen=True)
class ToolCall:
    """Tool call that the model requests."""

    id: str
    name: str
    at: str

    @property
    def arguments(self) -> dict[str, str]:
        return {} if self.name.startswith("transfer") else {"at": self.at}

    @property
    def json(self) -> str:
        return json.dumps(self.arguments)


class Script:
    """Agent whose model requests one round of tool calls in each response, and then returns the results.

    A subclass for a framework creates the agent. Its model calls `begin_request` first.

    Attributes:
        calls: Model requests (by number) and tool calls of all attempts.
        keys: Keys of the recorded steps in which tools were called.
        dies_at: Number of the model request at which the worker dies.
    """

    failure = "fail a"
    """Tool call that fails."""
    error = "rror"
    """Part of the result that the model receives for a failed tool call."""

    def __init__(self, *rounds: Sequence[str], durable: bool = True) -> None:
        self.rounds = rounds
        self.durable = durable
        self.calls: list[str] = []
        self.keys: set[str] = set()
        self.dies_at: int | None = None

    @property
    def function(self) -> Callable[[Turn], AsyncIterator[Any]]:
        """Return the agent function of the framework's adapter."""
        raise NotImplementedError

    async def run(self, turn: Turn) -> str:
        return "".join([chunk async for chunk in self.function(turn) if isinstance(chunk, str)])

    def begin_request(self, number: int) -> list[ToolCall]:
        """Record a model request, and return the tool calls of its response, or an empty list for the last response.

        Raises:
            WorkerDies: The worker dies at this request.
        """
        self.calls.append(f"question {number}")
        if number == self.dies_at:
            raise WorkerDies
        calls = self.rounds[number] if number < len(self.rounds) else ()
        return [ToolCall(f"call-{number}-{n}", *call.split(" ", 1)) for n, call in enumerate(calls)]

    @staticmethod
    def results(*texts: str) -> str:
        """Return the model's last response after the tools have returned `texts`."""
        return f"results: {'; '.join(text[:40] for text in texts)}"

    def record(self, at: str) -> None:
        """Record a tool call and its step."""
        self.calls.append(at)
        if self.durable:
            self.keys.add(current_step_key())

    async def look(self, at: str) -> str:
        """Look at something."""
        self.record(at)
        return f"seen {at}"

    def look_in_thread(self, at: str) -> str:
        """Look at something, in a thread."""
        self.record(at)
        return f"seen {at}"

    async def fail(self, at: str) -> str:
        """Fail."""
        self.calls.append(at)
        raise ValueError(at)

    async def grow(self, at: str) -> str:
        """Return more than can be recorded."""
        self.calls.append(at)
        return at * MAX_RESULT_BYTES

    def add_place(self, state: dict[str, Any], at: str) -> str:
        """Record a tool call, add a place to a state, and return the places."""
        self.calls.append(at)
        places: list[str] = state.setdefault("seen", [])
        places.append(at)
        return ", ".join(places)

    async def ask_client(self, turn: Turn, at: str) -> str:
        """Record a tool call, and ask the client."""
        self.calls.append(at)
        return f"{at}: {await turn.ask(at)}"
