"""Requeuing of a dead letter by a gateway, as with ``celery a2a requeue``."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any
from uuid import uuid4

from a2a.types import TaskState
from a2a.utils.errors import UnsupportedOperationError

from ...acceptance.errors import not_found
from ...dispatch import RunOptions
from ...settings import Settings
from ...store import AsyncStore, Keys
from ...store.runs.commands import RunRef
from ...store.tasks.dead_letters import Alive, AlreadyRequeued, DeadLetter, read_dead_letter, requeue_task
from ...store.tasks.results import Ended, Missing
from ...telemetry.logs import about
from ...telemetry.names import Action
from ..operations.send_message import BackgroundPublisher

logger = logging.getLogger(__name__)

REQUIREMENT = "only a task that failed because its worker was lost or its steps changed can be requeued"


class OperatorRequeuer:
    """Requeuer of the dead letters of `agents`, for the operator's API."""

    def __init__(
        self,
        agents: Collection[str],
        settings: Settings,
        store: AsyncStore,
        keys: Keys,
        publisher: BackgroundPublisher,
    ) -> None:
        self._agents = agents
        self._retention = settings.retention
        self._store = store
        self._keys = keys
        self._publisher = publisher

    async def requeue(self, task_id: str, operator: str) -> dict[str, Any]:
        """Create a new task from the dead letter `task_id` and publish its run. Concurrent calls create one task.

        Args:
            task_id: Id of the dead letter.
            operator: Name of the caller, for the log.

        Returns:
            The ids of the new task and of the dead letter, and whether an earlier call has created the task.

        Raises:
            TaskNotFoundError: There is no such task.
            UnsupportedOperationError: The task is not a dead letter, or this gateway does not have its agent.
        """
        while True:
            match await self._store.run(read_dead_letter(self._keys, task_id)):
                case DeadLetter() as dead_letter:
                    result = await self._resubmit(dead_letter, operator)
                    if result is not None:
                        return result
                    # another operator was faster, so read the dead letter again
                case AlreadyRequeued(new_id):
                    return {"task": new_id, "requeuedFrom": task_id, "before": True}
                case Missing():
                    raise not_found(task_id)
                case Alive(state):
                    raise _refusal(task_id, f"has not ended ({TaskState.Name(state)}): {REQUIREMENT}")
                case Ended(state):
                    raise _refusal(task_id, f"is {TaskState.Name(state)}: {REQUIREMENT}")

    async def _resubmit(self, dead_letter: DeadLetter, operator: str) -> dict[str, Any] | None:
        """Return the new task, or None if another operator has already created it."""
        dead, new = dead_letter.task.id, str(uuid4())
        if dead_letter.agent not in self._agents:
            raise _refusal(
                dead,
                f"belongs to the agent {dead_letter.agent!r}, which this gateway does not have: requeue it at a "
                "gateway with this agent",
            )
        options = RunOptions.from_json(dead_letter.options).resubmitted()
        operation = requeue_task(self._keys, dead_letter, new, retention=self._retention, options=options.to_json())
        reply = await self._store.run(operation)
        if reply == "gone":
            return None
        if reply == "requeued":
            self._publisher.publish(dead_letter.agent, RunRef(new, 1), options)
        fields = about(Action.TASK_REQUEUED, agent=dead_letter.agent, task=new)
        logger.info("task %s: requeued as %s by the operator %r", dead, new, operator, extra=fields)
        return {"task": new, "requeuedFrom": dead, "before": False}


def _refusal(task_id: str, reason: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(f"Task {task_id} {reason}", data={"taskId": task_id})
