"""Cancellation of child tasks whose parent ended without a result, even if the parent's worker died or the parent had
no run, and of the called tasks of a turn that a message interrupted.

The script that writes CANCELED, FAILED or REJECTED adds the parent to a list, unless the parent can be resubmitted.
When a task is resubmitted, the new task continues to use the children. The script that begins the turn of an
interrupting message also adds the parent. A parent is removed from the list when all children to cancel have ended.
"""

from __future__ import annotations

import logging

from ..lifecycle.outcomes import CANCELED_WITH_RUN
from ..operations.service import TaskService
from ..store.tasks.family import OrphanedChild, acquire_ended_parents
from ..telemetry.logs import about
from ..telemetry.names import Action

logger = logging.getLogger(__name__)

PARENT_BATCH = 20

REPEAT_US = 10_000_000
"""µs after which the children of an ended parent are checked again."""


class ChildCanceller:
    """Watcher role that cancels the children of tasks that ended without a result, and the called tasks of interrupted
    turns. Concurrent watchers cancel each child only once."""

    name = "child canceller"
    every = 1.0

    def __init__(self, service: TaskService) -> None:
        self._service = service

    async def tick(self) -> None:
        """Cancel the children of all due parents, including the children of children that this tick cancels."""
        acquire = acquire_ended_parents(self._service.keys, limit=PARENT_BATCH, delay_us=REPEAT_US)
        while children := await self._service.store.run(acquire):
            for child in children:
                await self._cancel(child)

    async def _cancel(self, child: OrphanedChild) -> None:
        result = await self._service.cancel(child.scope, child.task_id, child.context_id, text=CANCELED_WITH_RUN)
        fields = about(Action.CANCEL_REQUESTED, agent=child.scope.agent, task=child.task_id)
        text = "task %s: cancellation requested with its parent %s: %s"
        logger.info(text, child.task_id, child.parent_id, type(result).__name__, extra=fields)
