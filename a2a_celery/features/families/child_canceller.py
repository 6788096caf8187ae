"""Cancellation of child tasks whose parent ended without a result, even if the parent's worker died or the parent had
no run, and of the called tasks of a turn that a message interrupted.

The core adds such a parent to the list that the parent's record names; see ``scripts/lib/cleanup.lua``. The called
children of a task that can be resubmitted continue, because the new task uses them. A parent is removed from the list
when all children to cancel have ended.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ...lifecycle.outcomes import CANCELED_WITH_RUN
from ...lifecycle.references import Scope
from ...operations.service import TaskService
from ...store import Keys
from ...store.operation import Operation
from ...store.verbs import Key, Reply, verb
from ...telemetry.logs import about
from ...telemetry.names import Action

logger = logging.getLogger(__name__)

PARENT_BATCH = 20

REPEAT_US = 10_000_000
"""µs after which the children of an ended parent are checked again."""


@dataclass(frozen=True, slots=True)
class OrphanedChild:
    """Live child task to cancel, because its parent has ended without a result, or a message has interrupted the turn
    that waits for the child."""

    parent_id: str
    task_id: str
    context_id: str
    scope: Scope


def ended_parents_key(keys: Keys) -> str:
    """Return the key of the sorted set of the tags of parents that ended without a result, or of which a message
    interrupted a turn, scored by the time at which a watcher cancels their children.

    A watcher removes a parent that has no live child to cancel.
    """
    return f"{keys.prefix}:ended_parents"


def acquire_ended_parents(keys: Keys, *, limit: int, delay_us: int) -> Operation[list[OrphanedChild]]:
    """Acquire up to `limit` tasks that ended, or of which a turn was interrupted, and read the children to cancel.

    A task with live children to cancel is due again after `delay_us`.
    """
    return _acquire_ended_parents(keys, ended_parents_key(keys), limit, delay_us)


@verb
def _acquire_ended_parents(keys: Keys, ended_parents: Key, limit: int, delay_us: int) -> Reply[list[OrphanedChild]]:
    def parse(reply: Sequence[bytes]) -> list[OrphanedChild]:
        fields = zip(*[(value.decode() for value in reply)] * 4, strict=True)
        return [
            OrphanedChild(parent, task_id, context_id, Scope.parse(scope))
            for parent, task_id, context_id, scope in fields
        ]

    return Reply(parse)


class ChildCanceller:
    """Watcher role that cancels the children of tasks that ended without a result, and the called tasks of interrupted
    turns. Concurrent watchers cancel each child only once."""

    name = "child canceller"
    every = 1.0

    def __init__(self, service: TaskService) -> None:
        self._service = service
        self.channel = f"{ended_parents_key(service.keys)}:notifications"

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
