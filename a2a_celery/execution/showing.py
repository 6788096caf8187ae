"""Who hears of a run's execution: its history, Celery's events, the span at hand and, if it shall, the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any

from a2a.types import TaskState, TaskStatus, TaskStatusUpdateEvent

from ..agents import Agent
from ..lifecycle.execution import ExecutionState, Transition
from ..lifecycle.saved import Scalar
from ..lifecycle.states import WORKING
from ..lifecycle.steps import Step
from ..store.runs import Claim
from ..telemetry.tracing import tracing
from .noting import NotingEvents
from .steps import MAX_NAME, Execution, end_in

EXECUTION_KEY = "execution"
"""Metadata of a status that shows a step: an object with `state` and, if the agent named one, `model` or `tool`."""

DETAILS = ("model", "tool", "reason", "reference")
"""What a transition's detail may say outside of the agent's code: names, and words of ours."""

_SHOWN = frozenset({ExecutionState.MODEL_CALL, ExecutionState.TOOL_EXECUTION})


@dataclass(frozen=True, slots=True)
class Tell:
    """Sends the fields of a transition to Celery's listeners, who know the worker as `worker`; returns at once."""

    worker: str
    send: Callable[[dict[str, Scalar]], object]


def begin_execution(
    agent: Agent, claim: Claim, events: NotingEvents, *, runner: str, tell: Tell | None = None
) -> Execution:
    """The execution of a run that begins now, on the loop of its `events`. `tell` is for Celery; None: nobody hears."""
    execution = Execution(ExecutionState.IDLE if claim.paused_in is None else ExecutionState.INTERRUPTED)
    hearing = _Hearing(execution, claim, events, runner)
    execution.add_listener(hearing.note)
    if tell is not None:
        execution.add_listener(lambda made: tell.send(fields_of(agent, claim, made)))
    spans = tracing()
    if spans is not None:
        execution.add_listener(lambda made: spans.transition(fields_of(agent, claim, made), made.at_us))
    if agent.show_execution:
        execution.add_listener(hearing.show)
    events.on_end = hearing.end
    execution.transition(ExecutionState.INITIALIZING)
    return execution


class _Hearing:
    """What is made of a run's transitions on the loop that this is made on; each run that waits has one."""

    __slots__ = ("_claim", "_events", "_execution", "_loop", "_runner", "_thread")

    def __init__(self, execution: Execution, claim: Claim, events: NotingEvents, runner: str) -> None:
        self._execution = execution
        self._claim = claim
        self._events = events
        self._runner = runner
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()

    def note(self, made: Transition) -> None:
        known = replace(made, detail=known_detail(made)) if made.detail else made
        step = Step(self._claim.ref.run, self._claim.attempt, self._runner, known)
        self._on_loop(lambda: self._events.note(step))

    def show(self, made: Transition) -> None:
        if made.after in _SHOWN:
            self._on_loop(lambda: self._events.show(_status(made)))

    def end(self, state: TaskState) -> None:
        after, detail = end_in(state)
        self._execution.try_transition(after, **detail)

    def _on_loop(self, function: Callable[[], None]) -> None:
        """At once in the loop's own thread, so nothing overtakes it; else soon."""
        if get_ident() == self._thread:
            function()
        else:
            self._loop.call_soon_threadsafe(function)


def fields_of(agent: Agent, claim: Claim, made: Transition) -> dict[str, Scalar]:
    """What is told of a transition: names and numbers, and nothing that a client or an agent said."""
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
    """What is shown of a transition's detail: an agent that moves the machine itself may write anything into it."""
    known = {name: made.detail[name] for name in DETAILS if name in made.detail}
    return {name: value[:MAX_NAME] if isinstance(value, str) else value for name, value in known.items()}


def _status(made: Transition) -> TaskStatusUpdateEvent:
    shown: dict[str, Any] = {"state": made.after.value, **known_detail(made)}
    return TaskStatusUpdateEvent(status=TaskStatus(state=WORKING), metadata={EXECUTION_KEY: shown})
