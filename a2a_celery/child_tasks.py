"""Tasks that the code of a run has started with other agents. They are cancelled with the run.

`client` adds tasks and removes those that have ended. `execution` cancels the others when its run is cancelled or
retried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

logger = logging.getLogger(__name__)

CANCELED_BY = "canceledBy"
"""Metadata key of a CancelTask that names the sender: `BY_PARENT`, or missing for the client."""

BY_PARENT = "parent"

_under_way: set[asyncio.Task[None]] = set()
"""Cancel requests in flight. The set keeps the tasks alive, because asyncio holds only weak references."""


class ChildTasks:
    """Tasks that one run has started. Thread-safe, except for `cancel_all`."""

    __slots__ = ("_cancels",)

    def __init__(self) -> None:
        self._cancels: dict[str, Callable[[], Awaitable[object]]] | None = None  # a dict takes 64 bytes when empty

    def add(self, name: str, cancel: Callable[[], Awaitable[object]]) -> None:
        """Register the task `name`. `cancel` cancels the task with the run and may be called on another loop."""
        if self._cancels is None:
            self._cancels = {}
        self._cancels[name] = cancel

    def remove(self, name: str) -> None:
        """Unregister the task `name`, which has ended. An unknown name is ignored."""
        if self._cancels is not None:
            self._cancels.pop(name, None)

    def cancel_all(self) -> None:
        """Start cancelling the tasks on the running loop. Failures are logged."""
        cancels, self._cancels = self._cancels or {}, None
        for name, cancel in cancels.items():
            sending = asyncio.create_task(_cancel(name, cancel), name=f"a2a-cancel-{name}")
            _under_way.add(sending)
            sending.add_done_callback(_under_way.discard)


async def _cancel(name: str, cancel: Callable[[], Awaitable[object]]) -> None:
    try:
        await cancel()
    except Exception as e:
        logger.warning("%s was not cancelled with its parent: %r", name, e)


CURRENT_CHILDREN: ContextVar[ChildTasks | None] = ContextVar("a2a_celery_child_tasks", default=None)
"""Child tasks of the run that the current code belongs to, or None outside of a run."""
