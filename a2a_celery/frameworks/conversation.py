"""State of a framework's agent in a context, and the open questions of each task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from a2a.types import Message
from google.protobuf.json_format import MessageToDict

from ..execution.agents.turn import Turn

MAX_PAUSED = 16
"""Maximum interrupted tasks of a context. Beyond it the oldest is dropped, and an answer to it fails."""


class Conversation:
    """State of a framework's agent in the session of a run, as a JSON object of the framework.

    Each interrupted task has separate state, so that turns of other tasks do not come between a question and its
    answer. The context continues from the turn that ends last.
    """

    def __init__(self, turn: Turn) -> None:
        self._task_id = turn.task_id
        self._state = turn.session.state
        paused = self._state.get("paused", {}).get(turn.task_id, {})
        self.questions: list[dict[str, Any]] = paused.get("questions", [])
        """Open questions of the task."""
        self.memory: dict[str, Any] | None = paused.get("memory") or self._state.get("memory")
        """State that was saved last, or None."""

    def go_on(self, memory: dict[str, Any]) -> None:
        """Store `memory` as the state from which the context's next turn begins."""
        self._state["memory"] = memory
        self._state.get("paused", {}).pop(self._task_id, None)

    def pause(self, memory: dict[str, Any], questions: list[dict[str, Any]]) -> None:
        """Store `memory` as the state from which the answer to `questions` continues."""
        paused = self._state.setdefault("paused", {})
        paused.pop(self._task_id, None)
        paused[self._task_id] = {"memory": memory, "questions": questions}
        for oldest in list(paused)[:-MAX_PAUSED]:
            del paused[oldest]


def data_of(message: Message) -> Iterator[dict[str, Any]]:
    """Yield each data part of `message` that is an object."""
    for part in message.parts:
        if part.HasField("data"):
            data = MessageToDict(part.data)
            if isinstance(data, dict):
                yield data
