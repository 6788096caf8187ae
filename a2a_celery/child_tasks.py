"""Tasks that the code of a run has started with other agents, and that are cancelled with the run.

`client` adds tasks and takes out those that have ended; `execution` cancels the rest when its run is cancelled or
retried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

logger = logging.getLogger(__name__)

CANCELED_BY = "canceledBy"
"""Metadata of a CancelTask: who cancels, `BY_PARENT`; else it is the client."""

BY_PARENT = "parent"

_under_way: set[asyncio.Task[None]] = set()
"""Cancels that are being sent; asyncio itself refers to its tasks weakly."""


class ChildTasks:
    """The tasks that one run has started. May be used in any thread, but for `cancel_all`."""

    __slots__ = ("_cancels",)

    def __init__(self) -> None:
        self._cancels: dict[str, Callable[[], Awaitable[object]]] | None = None  # a dict takes 64 bytes when empty

    def add(self, name: str, cancel: Callable[[], Awaitable[object]]) -> None:
        """Have the task `name` cancelled with the run, by `cancel`, which may be called on another loop."""
        if self._cancels is None:
            self._cancels = {}
        self._cancels[name] = cancel

    def remove(self, name: str) -> None:
        """The task `name` has ended; an unknown one is no error."""
        if self._cancels is not None:
            self._cancels.pop(name, None)

    def cancel_all(self) -> None:
        """Begin to cancel the tasks, on the running loop; a failure is logged."""
        cancels, self._cancels = self._cancels or {}, None
        for name, cancel in cancels.items():
            sending = asyncio.create_task(_cancel(name, cancel), name=f"a2a-cancel-{name}")
            _under_way.add(sending)
            sending.add_done_callback(_under_way.discard)


async def _cancel(name: str, cancel: Callable[[], Awaitable[object]]) -> None:
    try:
        await cancel()
    except Exception as e:
        logger.warning("%s goes on, its parent was cancelled or retried: %r", name, e)


CURRENT_CHILDREN: ContextVar[ChildTasks | None] = ContextVar("a2a_celery_child_tasks", default=None)
"""Those of the run that this code works for; None: it works for none."""
