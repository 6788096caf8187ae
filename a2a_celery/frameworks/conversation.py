"""Common parts of the adapters: conversation state, open questions, activities and stop reasons."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Hashable, Iterator
from typing import Any

from a2a.types import Message, Part, TaskStatus, TaskStatusUpdateEvent
from google.protobuf.json_format import MessageToDict

from ..errors import ConfigError
from ..execution.agents.turn import Turn
from ..execution.events.activities import Execution, OpenActivity, current_execution
from ..lifecycle.execution import ENDS
from ..lifecycle.outcomes import agent_message
from ..lifecycle.own_metadata import STOP_REASON, own_metadata
from ..lifecycle.questions import whole_numbers
from ..lifecycle.states import COMPLETED, FAILED, REJECTED
from .usage import Usage

MAX_PAUSED = 16
"""Maximum number of interrupted tasks whose state a context stores. If there are more, the state of the oldest task is
dropped, and an answer to its question fails."""


class Conversation:
    """State of a framework's agent. The run's session stores the state as a JSON object.

    Each interrupted task has its own state, so that turns of other tasks do not come between a question and its answer.
    A new task continues from the last completed turn of the context.
    """

    def __init__(self, turn: Turn) -> None:
        self._task_id = turn.task_id
        self._state = turn.session.state
        pause = self._state.get("paused", {}).get(turn.task_id, {})
        self.questions: list[dict[str, Any]] = pause.get("questions", [])
        """Open questions of the task."""
        self.memory: dict[str, Any] | None = pause.get("memory") or self._state.get("memory")
        """State from which the turn continues, or None if no state is stored."""
        self.usage = Usage(copy.deepcopy(pause.get("usage", {})))
        """Tokens of the turn, including those before its open questions."""

    def go_on(self, memory: dict[str, Any]) -> None:
        """Store `memory` as the state from which the next turn of the context starts."""
        self._state["memory"] = memory
        self._state.get("paused", {}).pop(self._task_id, None)

    def pause(self, memory: dict[str, Any], questions: list[dict[str, Any]]) -> None:
        """Store `memory` as the state from which the answer to `questions` continues."""
        pauses = self._state.setdefault("paused", {})
        pauses.pop(self._task_id, None)
        pauses[self._task_id] = {"memory": memory, "questions": questions, "usage": self.usage.by_model}
        for oldest in list(pauses)[:-MAX_PAUSED]:
            del pauses[oldest]


def data_of(message: Message) -> Iterator[dict[str, Any]]:
    """Yield each data part of `message` that is an object, with whole numbers as integers."""
    for part in message.parts:
        if part.HasField("data"):
            data = whole_numbers(MessageToDict(part.data))
            if isinstance(data, dict):
                yield data


def data_text(part: Part) -> str:
    """Return the value of a data part as JSON, with whole numbers as integers."""
    return json.dumps(whole_numbers(MessageToDict(part.data)), ensure_ascii=False)


def completed_status(task_id: str, context_id: str) -> TaskStatusUpdateEvent:
    """Return the final status of a completed turn."""
    return TaskStatusUpdateEvent(task_id=task_id, context_id=context_id, status=TaskStatus(state=COMPLETED))


class OpenActivities:
    """Registry of unfinished activities, keyed by ids that the framework provides. Outside a run, the methods have no
    effect."""

    def __init__(self) -> None:
        self._open: dict[Hashable, tuple[Execution, OpenActivity]] = {}

    def model_call(self, key: Hashable, model: str = "") -> None:
        """Begin a model call; see `Turn.model_call`."""
        execution = current_execution()
        if execution is not None:
            self._begin(key, execution, execution.model_call(model))

    def tool_call(self, key: Hashable, name: str) -> None:
        """Begin a tool call; see `Turn.tool_call`."""
        execution = current_execution()
        if execution is not None:
            self._begin(key, execution, execution.tool_call(name))

    def end(self, key: Hashable) -> None:
        """End the activity with `key` if the activity is open."""
        if key in self._open:
            _, activity = self._open.pop(key)
            activity.__exit__(None, None, None)

    def __len__(self) -> int:
        """Return the number of open activities."""
        return len(self._open)

    def _begin(self, key: Hashable, execution: Execution, activity: OpenActivity) -> None:
        over = [open_key for open_key, (of, _) in self._open.items() if of.state in ENDS]
        for open_key in (key, *over):
            self.end(open_key)  # a cancelled agent does not report the end of its activities
        self._open[key] = execution, activity
        activity.__enter__()


class EarlyStops:
    """Final status of turns that stopped early. The state is COMPLETED, or FAILED for the reasons in `fail_on`.

    Args:
        fail_on: Stop reasons that fail the task.
        known_reasons: Stop reasons of the framework, or None to allow any string.

    Raises:
        ConfigError: `fail_on` is a string, or contains a reason that is not in `known_reasons` or is not a string.
    """

    def __init__(self, fail_on: Collection[str], known_reasons: Collection[str] | None) -> None:
        reasons = [fail_on] if isinstance(fail_on, str) else fail_on
        wrong = next(
            (item for item in reasons if not isinstance(item, str) or item not in (known_reasons or (item,))), None
        )
        if isinstance(fail_on, str) or wrong is not None:
            choices = (
                f"some of {', '.join(sorted(known_reasons))}"
                if known_reasons
                else "reasons as the framework writes them"
            )
            raise ConfigError(f"fail_on = {fail_on!r}: a list or a set with {choices}")
        self._fail_on = frozenset(fail_on)

    def event(self, reason: str, task_id: str, context_id: str) -> TaskStatusUpdateEvent:
        """Return the final status of a turn that stopped for `reason`."""
        event = completed_status(task_id, context_id)
        self.apply(event, reason)
        return event

    def final_status(self, turn: Turn, reason: str | None, usage: Usage) -> Iterator[TaskStatusUpdateEvent]:
        """Yield the final status of a turn if the turn has a stop reason or tokens to report.

        Args:
            turn: The turn.
            reason: Reason why the turn stopped early, or None.
            usage: Tokens of the turn.
        """
        if reason:
            yield usage.apply(self.event(reason, turn.task_id, turn.context_id))
        elif usage.by_model:
            yield usage.apply(completed_status(turn.task_id, turn.context_id))

    def refusal(self, turn: Turn, reason: str, text: str, usage: Usage) -> TaskStatusUpdateEvent:
        """Return the final status of a turn that a check of the framework ended for `reason`. The state is REJECTED,
        or FAILED for the reasons in `fail_on`."""
        event = self.event(reason, turn.task_id, turn.context_id)
        event.status.state = FAILED if reason in self._fail_on else REJECTED
        event.status.message.CopyFrom(agent_message(text, turn.task_id, turn.context_id))
        return usage.apply(event)

    def apply(self, event: TaskStatusUpdateEvent, reason: str) -> None:
        """Add the stop reason to the turn's final status `event`. A reason in `fail_on` changes the state to FAILED."""
        event.metadata.update(own_metadata({STOP_REASON: reason}))
        if reason in self._fail_on:
            event.status.state = FAILED
            text = f"The agent stopped early: {reason}."
            event.status.message.CopyFrom(agent_message(text, event.task_id, event.context_id))
