"""Agents of each kind, with hooks that reject runs, rewrite events, add metadata and fail."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Part, TaskArtifactUpdateEvent

from a2a_celery import Rejected, RunInfo, Turn
from a2a_celery.lifecycle.execution import Transition
from tests.support.agents.basic import a2a, app, card

AGENTS = ("function", "plain-function", "executor", "celery-task")
SECRET = "a secret"
transitions: defaultdict[str, list[str]] = defaultdict(list)
"""Recorded state transitions by task id."""


@a2a.agent("function")
async def function(turn: Turn) -> str:
    """Return the message."""
    return turn.text


@a2a.agent("plain-function")
def plain_function(turn: Turn) -> str:
    """Return the message from a plain function."""
    return turn.text


class Executor(AgentExecutor):
    """Executor that sends the message as an artifact and completes the task."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        await updater.start_work()
        await updater.add_artifact([Part(text=context.get_user_input())])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


a2a.add_agent(card("executor"), Executor)


@app.task(name="hooked.celery-task", shared=False)
def celery_task(text: str) -> str:
    """Return the message from a Celery task."""
    return text


a2a.expose(celery_task, name="celery-task")


@a2a.before_run(*AGENTS)
async def admit(run: RunInfo) -> None:
    """Reject the message "refuse". Add metadata to other runs."""
    if run.message.parts[0].text == "refuse":
        raise Rejected("Not today.")
    run.metadata["before"] = run.agent


@a2a.on_event(*AGENTS)
def redact(run: RunInfo, event: Any) -> Any:
    """Redact the secret in an artifact. If the artifact's text is "exit", exit."""
    if isinstance(event, TaskArtifactUpdateEvent):
        [part] = event.artifact.parts
        if part.text == "exit":
            sys.exit(3)
        part.text = part.text.replace(SECRET, "***")
    return event


@a2a.on_transition(*AGENTS)
async def collect(run: RunInfo, transition: Transition) -> None:
    """Record a state transition of the task."""
    transitions[run.task_id].append(f"{transition.before} to {transition.after}")


@a2a.after_run(*AGENTS)
def add_outcome(run: RunInfo) -> None:
    """Add the outcome and the first transition to the task's metadata, and then exit."""
    run.metadata.update(after=run.outcome, first=transitions.pop(run.task_id)[0])
    sys.exit(3)
