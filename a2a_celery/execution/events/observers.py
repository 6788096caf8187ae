"""Observers of a run's execution: recorded steps, Celery events, the current span and, optionally, the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any

from a2a.types import TaskState, TaskStatus, TaskStatusUpdateEvent

from ...agents import Agent
from ...lifecycle.execution import ExecutionState, Listener, Step, Transition
from ...lifecycle.own_metadata import EXECUTION, own_metadata
from ...lifecycle.saved_json import Scalar
from ...lifecycle.states import WORKING
from ...store.runs.commands import Claim
from ...telemetry.tracing import tracing
from .queue import RunEventQueue
from .steps import MAX_NAME, Execution, end_in

DETAILS = ("model", "tool", "reason", "reference")
"""Fields of a transition's detail that external observers receive: names and fixed words."""

_SHOWN = frozenset({ExecutionState.MODEL_CALL, ExecutionState.TOOL_EXECUTION})


@dataclass(frozen=True, slots=True)
class CeleryEventEmitter:
    """Emitter of Celery events for transitions, from the worker named `worker`. `send` returns immediately."""

    worker: str
    send: Callable[[dict[str, Scalar]], object]


def begin_execution(
    agent: Agent,
    claim: Claim,
    events: RunEventQueue,
    *,
    runner: str,
    emitter: CeleryEventEmitter | None = None,
    hook: Listener | None = None,
) -> Execution:
    """Begin the execution of a run on the event loop of its `events`.

    Args:
        runner: Id of the worker process.
        emitter: Emitter of Celery events, or None.
        hook: Listener for each transition, including the first, or None.
    """
    execution = restored_execution(claim)
    observer = _StepObserver(execution, claim, events, runner)
    execution.add_listener(observer.record)
    if emitter is not None:
        execution.add_listener(lambda made: emitter.send(fields_of(agent, claim, made)))
    spans = tracing()
    if spans is not None:
        execution.add_listener(lambda made: spans.transition(fields_of(agent, claim, made), made.at_us))
    if agent.show_execution:
        execution.add_listener(observer.show)
    if hook is not None:
        execution.add_listener(hook)
    events.steps.on_end = observer.end
    execution.transition(ExecutionState.INITIALIZING)
    return execution


def restored_execution(claim: Claim) -> Execution:
    """Return the state machine in the state that earlier runs left, ready for a new run.

    If those runs stored no steps, the state is INTERRUPTED for a task that waited for its client, and IDLE otherwise.
    """
    if not claim.execution:
        return Execution(ExecutionState.IDLE if claim.interrupted_state is None else ExecutionState.INTERRUPTED)
    execution = Execution()
    execution.restore(step.transition for step in claim.execution)
    execution.return_to_idle()
    return execution


class _StepObserver:
    """Observer that records and shows transitions on the event loop of the run."""

    __slots__ = ("_claim", "_events", "_execution", "_loop", "_runner", "_thread")

    def __init__(self, execution: Execution, claim: Claim, events: RunEventQueue, runner: str) -> None:
        self._execution = execution
        self._claim = claim
        self._events = events
        self._runner = runner
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()

    def record(self, made: Transition) -> None:
        known = replace(made, detail=known_detail(made)) if made.detail else made
        step = Step(self._claim.ref.run, self._claim.attempt, self._runner, known)
        self._on_loop(lambda: self._events.record(step))

    def show(self, made: Transition) -> None:
        if made.after in _SHOWN:
            self._on_loop(lambda: self._events.enqueue_optional(_status(made)))

    def end(self, state: TaskState) -> None:
        after, detail = end_in(state)
        self._execution.try_transition(after, **detail)

    def _on_loop(self, function: Callable[[], None]) -> None:
        """Call `function` immediately if this is the thread of the event loop, to keep the order of calls. On other
        threads, schedule the call."""
        if get_ident() == self._thread:
            function()
        else:
            self._loop.call_soon_threadsafe(function)


def fields_of(agent: Agent, claim: Claim, made: Transition) -> dict[str, Scalar]:
    """Return the fields of a transition for external observers: names and numbers, but no text from clients or
    agents."""
    return {
        **known_detail(made),
        "task_id": claim.task.id,
        "run": claim.ref.run,
        "attempt": claim.attempt,
        "agent": agent.name,
        "from_state": made.before.value,
        "to_state": made.after.value,
    }


def known_detail(made: Transition) -> dict[str, Scalar]:
    """Return the known fields of a transition's detail. Agents that move the machine themselves may add arbitrary
    fields."""
    known = {name: made.detail[name] for name in DETAILS if name in made.detail}
    return {name: value[:MAX_NAME] if isinstance(value, str) else value for name, value in known.items()}


def _status(made: Transition) -> TaskStatusUpdateEvent:
    """Return a status that shows a step. Its metadata contains `state` and, if the agent named one, `model` or
    `tool`."""
    shown: dict[str, Any] = {"state": made.after.value, **known_detail(made)}
    return TaskStatusUpdateEvent(status=TaskStatus(state=WORKING), metadata=own_metadata({EXECUTION: shown}))
