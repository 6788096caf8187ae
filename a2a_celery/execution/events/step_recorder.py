"""Recording of execution steps in the same batches as the events of the run.

Steps are written in order with the events around them, under the same fences. Steps are not log entries, so readers of
the log do not see them. A run that ends before its steps are due costs no additional write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from a2a.types import TaskState

from ...concurrency import LeanEvent
from ...lifecycle import Event
from ...lifecycle.steps import Step

STEPS_WAIT = 0.5
"""Seconds that a step waits for an event to be written with. A lost worker loses at most the steps of this time."""

MAX_UNWRITTEN = 512
"""Number of unwritten events and steps at which further steps are dropped."""


class StepRecorder:
    """Recorder of the steps of one run.

    Args:
        pending: The unwritten events and steps of the run's queue.
        lost: Set when the run is lost.
        flush: Starts the writer of the queue.
    """

    __slots__ = ("_flush", "_has_ended", "_lost", "_pending", "_timer", "on_end")

    def __init__(self, pending: list[Event | Step], lost: LeanEvent, flush: Callable[[], None]) -> None:
        self._pending = pending
        self._lost = lost
        self._flush = flush
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False
        self.on_end: Callable[[TaskState], None] | None = None
        """Called with the terminal state of the task before the state is queued. Steps recorded there precede it."""

    def record(self, step: Step) -> None:
        """Queue a step, to be written with the next event or after `STEPS_WAIT`.

        A step is dropped after the end of the task, if the run is lost, or if `MAX_UNWRITTEN` is reached.
        """
        if self._has_ended or self._lost.is_set() or len(self._pending) >= MAX_UNWRITTEN:
            return
        self._pending.append(step)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(STEPS_WAIT, self._write)

    def end(self, state: TaskState) -> None:
        """Call `on_end`, and accept no further steps."""
        if self.on_end is not None:
            self.on_end(state)
        self._has_ended = True

    def _write(self) -> None:
        self._timer = None
        self._flush()
