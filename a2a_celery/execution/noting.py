"""How the steps of a run's execution come to be kept with its task: on the way of its events, and at the cost of few.

They are written in order with the events around them, with the same fences and repetitions, and are none: no reader of
the log sees them. A run that is over sooner than they wait costs no write more than it would without them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from a2a.types import TaskState, TaskStatusUpdateEvent

from ..lifecycle import Event
from ..lifecycle.steps import Step
from .events import MAX_PENDING, RunEvents

STEPS_WAIT = 0.5
"""Seconds that a step waits for an event to be written with; so much a history may lose with its worker."""


class NotingEvents(RunEvents):
    """A run's events, and the steps of its execution."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.on_end: Callable[[TaskState], None] = lambda _: None
        """Called with the task's last state when its agent says that; what is noted meanwhile comes before it."""
        self._said_end = False
        self._waiting: asyncio.TimerHandle | None = None

    @property
    def state(self) -> TaskState:
        """The task's state, after all that was said."""
        return self._translator.state

    def note(self, step: Step) -> None:
        """Takes a step, to be written with the next event, or by itself after `STEPS_WAIT`.

        None comes behind the task's end; one is left out when the store is far behind.
        """
        if self._said_end or self.lost.is_set() or len(self._pending) >= 2 * MAX_PENDING:
            return
        self._pending.append(step)
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().call_later(STEPS_WAIT, self._write_steps)

    def show(self, event: TaskStatusUpdateEvent) -> None:
        """`enqueue_event` for what nobody waits for: it is left out when the store is far behind, and behind a pause,
        which it would take back."""
        if self._open and not (self.ended or self.paused) and len(self._pending) < MAX_PENDING:
            self._take(self._translator.translate(event))

    def _take(self, events: list[Event]) -> None:
        if events and self.ended:
            self.on_end(self.state)
            self._said_end = True
        super()._take(events)

    def _write_steps(self) -> None:
        self._waiting = None
        self._tell_writer()
