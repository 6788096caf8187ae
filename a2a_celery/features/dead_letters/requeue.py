"""Requeueing of dead letters, for commands and the operator's API."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from ...dispatch import RunOptions
from ...lifecycle.references import RunRef
from ...lifecycle.refusals import Reason, Refusal
from ...operations.service import TaskService
from ...store import Keys, SyncStore
from .. import KEPT_METADATA
from .dead_letter import AlreadyRequeued, DeadLetter, read_dead_letter, requeue_task


@dataclass(frozen=True, slots=True)
class RequeuedTask:
    """Result of a requeue: a dead letter and its new task.

    Attributes:
        dead: Id of the dead letter.
        task_id: Id of the new task.
        agent: Agent of the task, or "" if an earlier call has created the new task.
        is_published: True if the broker has the run, False if a watcher publishes it.
        is_blocked: True if the run waits for earlier runs of its context.
    """

    dead: str
    task_id: str
    agent: str = ""
    is_published: bool = False
    is_blocked: bool = False

    @property
    def was_requeued_before(self) -> bool:
        """True if an earlier call has created the new task."""
        return not self.agent


async def requeue(
    service: TaskService, task_id: str, *, from_start: bool = False, publishes: bool = True
) -> RequeuedTask | Refusal:
    """Create a new task from the dead letter `task_id`, and publish its run. Concurrent calls create one task.

    Args:
        service: Service whose store contains the dead letter, and which publishes the run.
        task_id: Id of the dead letter.
        from_start: True to forget the recorded steps.
        publishes: False to leave the publication to a watcher.
    """
    while True:
        match await service.store.run(read_dead_letter(service.keys, task_id, from_start=from_start)):
            case DeadLetter() as dead_letter:
                requeued = await _resubmit(service, dead_letter, from_start, publishes)
                if requeued is not None:
                    return requeued
                # another operator was faster, so read the dead letter again
            case AlreadyRequeued(new_id):
                return RequeuedTask(task_id, new_id)
            case refusal:
                return refusal


async def _resubmit(
    service: TaskService, dead_letter: DeadLetter, from_start: bool, publishes: bool
) -> RequeuedTask | Refusal | None:
    """Create the new task. Return None if another operator has already requeued the dead letter."""
    dead, agent = dead_letter.task.id, dead_letter.agent
    if agent not in service.agents:
        text = f"task {dead} belongs to the agent {agent!r}, which this app does not have"
        return Refusal(Reason.FEATURE, dead, {"text": f"{text}: requeue it with the app of the agent"})
    options, new = RunOptions.from_json(dead_letter.options).resubmitted(), str(uuid4())
    operation = requeue_task(
        service.keys,
        dead_letter,
        new,
        retention=service.settings.retention,
        options=options.to_json(),
        from_start=from_start,
        kept_metadata=KEPT_METADATA,
    )
    reply = await service.store.run(operation)
    if reply == "gone":
        return None
    if reply == "blocked":
        return RequeuedTask(dead, new, agent, is_blocked=True)
    is_published = publishes and await service.runs.publish(agent, RunRef(new, 1), options)
    return RequeuedTask(dead, new, agent, is_published)


def requeue_note(store: SyncStore, keys: Keys, task_id: str) -> str | None:
    """Return how to run a dead letter again, or the id of the task as which it was requeued, or None for other
    tasks."""
    match store.run(read_dead_letter(keys, task_id, from_start=True)):
        case DeadLetter():
            return f"run it again: a2a requeue {task_id}"
        case AlreadyRequeued(new_id):
            return f"requeued as task {new_id}"
        case _:
            return None
