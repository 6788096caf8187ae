"""A gateway that is told to stop: calls that wait for the end of a task get what there is, while it can answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 5.0
"""Seconds for which calls that wait may still get the end they wait for."""


class Leaving:
    """Whether the gateway stops, and who waits in it. Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[Any]] = set()
        self._cut: set[asyncio.Task[Any]] = set()

    def begin(self) -> None:
        """The gateway stops; in `PATIENCE` seconds nobody waits any more."""
        asyncio.get_running_loop().call_later(PATIENCE, self._cut_short)

    @contextmanager
    def may_be_cut_short(self) -> Iterator[None]:
        """A block that just waits: it ends early when the gateway stops."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._cut or task.uncancel() > 0:
                raise
        finally:
            self._waiting.discard(task)
            self._cut.discard(task)

    def _cut_short(self) -> None:
        for task in self._waiting:
            self._cut.add(task)
            task.cancel()
