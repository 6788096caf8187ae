"""Cancellation of child tasks whose parent is CANCELED, even if the parent's worker died or the parent had no run.

The script that writes CANCELED adds the parent to a list. A parent is removed from the list when all children that are
cancelled with their parent have ended.
"""

from __future__ import annotations

import logging

from ..dispatch import Canvas, Publisher
from ..lifecycle.outcomes import CANCELED_BY_PARENT
from ..store import AsyncStore, Keys
from ..store.runs.commands import RunRef
from ..store.tasks.commands import request_cancel
from ..store.tasks.family import CanceledChild, acquire_canceled_parents
from ..store.tasks.results import CanceledNow
from ..telemetry.logs import about
from ..telemetry.names import Action

logger = logging.getLogger(__name__)

PARENT_BATCH = 20

REPEAT_US = 10_000_000
"""µs after which the children of a canceled parent are checked again."""


class ChildCanceller:
    """Role that cancels the children of canceled tasks. Concurrent watchers cancel each child once."""

    name = "child canceller"
    every = 1.0

    def __init__(self, store: AsyncStore, keys: Keys, publisher: Publisher) -> None:
        self._store = store
        self._keys = keys
        self._publisher = publisher

    async def tick(self) -> None:
        """Cancel the children of all due parents, including the children of children that this tick cancels."""
        acquire = acquire_canceled_parents(self._keys, limit=PARENT_BATCH, again_us=REPEAT_US)
        while children := await self._store.run(acquire):
            for child in children:
                await self._cancel(child)

    async def _cancel(self, child: CanceledChild) -> None:
        cancel = request_cancel(self._keys, child.scope, child.task_id, child.context_id, text=CANCELED_BY_PARENT)
        result = await self._store.run(cancel)
        fields = about(Action.CANCEL_ASKED, agent=child.scope.agent, task=child.task_id)
        text = "task %s: cancellation requested with its parent %s: %s"
        logger.info(text, child.task_id, child.parent_id, type(result).__name__, extra=fields)
        if isinstance(result, CanceledNow):
            if result.run is not None:
                self._publisher.revoke_soon([RunRef(child.task_id, result.run).name])
            if result.canvas:
                self._publisher.revoke_soon(Canvas.from_json(result.canvas).ids(), terminate=True)
