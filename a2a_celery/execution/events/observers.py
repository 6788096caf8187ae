"""Observers of a run's execution: recorded activities, Celery events, the current span and, optionally, the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any

from a2a.types import TaskStatus, TaskStatusUpdateEvent

from ...agents import Agent
from ...lifecycle.events import portable_metadata
from ...lifecycle.execution import Activity, ExecutionState, Transition
from ...lifecycle.own_metadata import EXECUTION, own_metadata
from ...lifecycle.saved_json import Scalar
from ...lifecycle.states import WORKING
from ...store.runs.commands import Claim
from ...telemetry.tracing import tracing
from .activities import MAX_NAME, Execution
from .queue import RunEventQueue

DETAILS = ("model", "tool", "reason", "reference")
"""Fields of a transition's detail that external observers receive. The fields contain only names and fixed words."""

_SHOWN = frozenset({ExecutionState.MODEL_CALL, ExecutionState.TOOL_EXECUTION})


@dataclass(frozen=True, slots=True)
class CeleryEventEmitter:
    """Emitter of Celery events for transitions, from the worker named `worker`. `send` returns immediately."""

    worker: str
    send: Callable[[dict[str, Scalar]], object]


def begin_execution(
    execution: Execution,
    agent: Agent,
    claim: Claim,
    events: RunEventQueue,
    *,
    runner: str,
    emitter: CeleryEventEmitter | None = None,
) -> None:
    """Begin the execution of a run with its observers.

    Call this function on the event loop of the run.

    Args:
        execution: Execution of the run, as returned by `restored_execution`.
        runner: Id of the worker process.
        emitter: Emitter of Celery events, or None.
    """
    observer = _ActivityObserver(claim, events, runner)
    execution.add_listener(observer.record)
    if emitter is not None:
        execution.add_listener(lambda transition: emitter.send(fields_of(agent, claim, transition)))
    spans = tracing()
    if spans is not None:
        execution.add_listener(
            lambda transition: spans.transition(fields_of(agent, claim, transition), transition.at_us)
        )
    if agent.show_execution:
        execution.add_listener(observer.show)
    execution.transition(ExecutionState.INITIALIZING)


def restored_execution(claim: Claim) -> Execution:
    """Restore the state machine from the activities of earlier runs, and prepare it for a new run.

    If earlier runs stored no activities, the state is INTERRUPTED for a task that waited for its client, and IDLE
    otherwise.
    """
    if not claim.activities:
        return Execution(ExecutionState.IDLE if claim.turn.interrupted_state is None else ExecutionState.INTERRUPTED)
    execution = Execution()
    execution.restore(activity.transition for activity in claim.activities)
    execution.return_to_idle()
    return execution


class _ActivityObserver:
    """Observer that records transitions and, if enabled, sends them to the client, on the run's event loop."""

    __slots__ = ("_claim", "_events", "_loop", "_runner", "_thread")

    def __init__(self, claim: Claim, events: RunEventQueue, runner: str) -> None:
        self._claim = claim
        self._events = events
        self._runner = runner
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()

    def record(self, transition: Transition) -> None:
        safe_transition = replace(transition, detail=known_detail(transition)) if transition.detail else transition
        activity = Activity(self._claim.ref.run, self._claim.turn.attempt, self._runner, safe_transition)
        self._on_loop(lambda: self._events.record(activity))

    def show(self, transition: Transition) -> None:
        if transition.after in _SHOWN:
            self._on_loop(lambda: self._events.enqueue_optional(_status(transition)))

    def _on_loop(self, function: Callable[[], None]) -> None:
        """Call `function` immediately if this is the thread of the event loop, to keep the order of calls. On other
        threads, schedule the call."""
        if get_ident() == self._thread:
            function()
        else:
            self._loop.call_soon_threadsafe(function)


def fields_of(agent: Agent, claim: Claim, transition: Transition) -> dict[str, Scalar]:
    """Return the fields of a transition for external observers: names and numbers, but no text from clients or
    agents."""
    return {
        **known_detail(transition),
        "task_id": claim.task.id,
        "run": claim.ref.run,
        "attempt": claim.turn.attempt,
        "agent": agent.name,
        "from_state": transition.before.value,
        "to_state": transition.after.value,
    }


def known_detail(transition: Transition) -> dict[str, Scalar]:
    """Return the known fields of a transition's detail. Agents that make transitions themselves may add
    arbitrary fields."""
    detail = {name: transition.detail[name] for name in DETAILS if name in transition.detail}
    return {name: value[:MAX_NAME] if isinstance(value, str) else value for name, value in detail.items()}


def _status(transition: Transition) -> TaskStatusUpdateEvent:
    """Return a status that shows an activity. The metadata of the status contains `state` and, if known, `model` or
    `tool`."""
    execution: dict[str, Any] = {"state": transition.after.value, **known_detail(transition)}
    metadata = portable_metadata(own_metadata({EXECUTION: execution}))
    return TaskStatusUpdateEvent(status=TaskStatus(state=WORKING), metadata=metadata)
