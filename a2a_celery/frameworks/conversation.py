"""What a framework's agent remembers of a context, and what each of its tasks waits for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from a2a.types import Message
from google.protobuf.json_format import MessageToDict

from ..execution.turn import Turn

MAX_PAUSED = 16
"""Tasks of one context that may wait at a time; of more, the oldest is forgotten, and an answer to it fails."""


class Conversation:
    """The memory of a framework's agent, in the session of a run: a JSON object that the framework makes and reads.

    A task that waits for an answer has a memory of its own, so that what is said meanwhile in other tasks of the
    context does not get between a question and its answer. The turn that ends last is what the context goes on from.
    """

    def __init__(self, turn: Turn) -> None:
        self._task_id = turn.task_id
        self._state = turn.session.state
        paused = self._state.get("paused", {}).get(turn.task_id, {})
        self.questions: list[dict[str, Any]] = paused.get("questions", [])
        """What the task waits for; [] when it doesn't."""
        self.memory: dict[str, Any] | None = paused.get("memory") or self._state.get("memory")
        """What was saved last; None at the beginning."""

    def go_on(self, memory: dict[str, Any]) -> None:
        """The turn is over: `memory` is what the context's next one begins with."""
        self._state["memory"] = memory
        self._state.get("paused", {}).pop(self._task_id, None)

    def pause(self, memory: dict[str, Any], questions: list[dict[str, Any]]) -> None:
        """The task waits: `memory` is what the answer to `questions` is for."""
        paused = self._state.setdefault("paused", {})
        paused.pop(self._task_id, None)
        paused[self._task_id] = {"memory": memory, "questions": questions}
        for oldest in list(paused)[:-MAX_PAUSED]:
            del paused[oldest]


def data_of(message: Message) -> Iterator[dict[str, Any]]:
    """Each data part of `message` that is an object."""
    for part in message.parts:
        if part.HasField("data"):
            data = MessageToDict(part.data)
            if isinstance(data, dict):
                yield data
