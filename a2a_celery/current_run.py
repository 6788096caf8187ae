"""Run to which the current code belongs, for code that starts further work: tasks, remote tasks and Celery tasks.

The started work is registered with the run when it starts, and removed when it ends. ``execution`` cancels the
registered work when the run is cancelled or retried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar

from .lifecycle.references import RunRef

logger = logging.getLogger(__name__)

_under_way: set[asyncio.Task[None]] = set()
"""Cancel requests in flight. The set keeps the tasks alive, because asyncio holds only weak references."""


class CurrentRun:
    """Run with the work that its code has started. Thread-safe, except for `cancel_all`.

    Attributes:
        is_replayed: True if a later run of the turn finds the work that is added again.
        name: Celery id of the run.
        trace: Function that returns the stored trace headers of the run.
    """

    __slots__ = ("_cancels", "name", "trace")
    is_replayed = False

    def __init__(self, name: str, trace: Callable[[], Mapping[str, str]] = dict) -> None:
        self.name = name
        self.trace = trace
        self._cancels: dict[str, Callable[[], Awaitable[object]]] = {}

    @property
    def task_id(self) -> str:
        """Id of the run's task."""
        ref = RunRef.of(self.name)
        return "" if ref is None else ref.task_id

    def add(self, name: str, cancel: Callable[[], Awaitable[object]]) -> None:
        """Register the work `name` and the function that cancels it, which may be called on another event loop."""
        self._cancels[name] = cancel

    def remove(self, name: str) -> None:
        """Remove the work `name`, which has ended. An unknown name is ignored."""
        self._cancels.pop(name, None)

    def replayed(self) -> CurrentRun:
        """Return a view of the run. A retry of the run does not cancel the work that is added to the view."""
        return _ReplayedRun(self)

    def cancel_all(self, *, is_retried: bool = False) -> None:
        """Start cancelling the work on the running loop. Failures are logged. If the run is retried, the work that the
        next run finds again is left running."""
        cancels, self._cancels = self._cancels, {}
        if is_retried:
            cancels = {name: cancel for name, cancel in cancels.items() if not name.startswith(REPLAYED)}
        for name, cancel in cancels.items():
            sending = asyncio.create_task(_cancel(name, cancel), name=f"a2a-cancel-{name}")
            _under_way.add(sending)
            sending.add_done_callback(_under_way.discard)


REPLAYED = "durable "
"""Prefix of the names of work that survives a retry of the run."""


class _ReplayedRun(CurrentRun):
    """View of a run. Work that is added to the view survives a retry of the run."""

    __slots__ = ("_run",)
    is_replayed = True

    def __init__(self, run: CurrentRun) -> None:
        super().__init__(run.name, run.trace)
        self._run = run

    def add(self, name: str, cancel: Callable[[], Awaitable[object]]) -> None:
        self._run.add(REPLAYED + name, cancel)

    def remove(self, name: str) -> None:
        self._run.remove(REPLAYED + name)


async def _cancel(name: str, cancel: Callable[[], Awaitable[object]]) -> None:
    try:
        await cancel()
    except Exception as e:
        logger.warning("%s was not cancelled with the run that started it: %r", name, e)


CURRENT_RUN: ContextVar[CurrentRun | None] = ContextVar("a2a_celery_current_run", default=None)
"""Run to which the current code belongs, or None outside of a run."""
