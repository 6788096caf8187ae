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
    on_loop = _on_this_loop()

    def note(made: Transition) -> None:
        step = Step(claim.ref.run, claim.attempt, runner, replace(made, detail=known_detail(made)))
        on_loop(lambda: events.note(step))

    def show(made: Transition) -> None:
        if made.after in _SHOWN:
            on_loop(lambda: events.show(_status(made)))

    def end(state: TaskState) -> None:
        after, detail = end_in(state)
        execution.try_transition(after, **detail)

    execution.add_listener(note)
    if tell is not None:
        execution.add_listener(lambda made: tell.send(fields_of(agent, claim, made)))
    spans = tracing()
    if spans is not None:
        execution.add_listener(lambda made: spans.transition(fields_of(agent, claim, made), made.at_us))
    if agent.show_execution:
        execution.add_listener(show)
    events.on_end = end
    execution.transition(ExecutionState.INITIALIZING)
    return execution


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


def _on_this_loop() -> Callable[[Callable[[], None]], None]:
    """Makes calls on the loop that runs now: at once from its own thread, so nothing overtakes them; else soon."""
    loop, thread = asyncio.get_running_loop(), get_ident()

    def call(function: Callable[[], None]) -> None:
        if get_ident() == thread:
            function()
        else:
            loop.call_soon_threadsafe(function)

    return call
