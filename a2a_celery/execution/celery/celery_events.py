"""Celery events of executions: one event for each transition.

The events follow Celery's rules: they are sent if the worker sends events (``-E``), at most once, and are dropped
rather than delayed. A prefork child cannot use the event dispatcher of its worker, so each process has its own
dispatcher.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from queue import Full, Queue
from threading import Lock, Thread
from typing import Any

from celery import Celery, Task
from celery.worker.request import Request
from kombu.connection import Connection

from ...lifecycle.saved_json import Scalar
from ..events.observers import CeleryEventEmitter

logger = logging.getLogger(__name__)

EXECUTION_EVENT = "a2a-execution"
"""Type of the Celery events."""

EVENTS_ON = "a2a_events"
"""Key that the main process sets in a request if the worker sends events. The process of the run reads the key."""

MAX_WAITING = 1000
"""Maximum number of queued events. Further events are dropped, for example while the broker is unavailable."""


def mark_events_enabled(request: Request) -> None:
    """Record in the request whether this worker sends task events, for the process that executes the call."""
    events = request.eventer
    sends_events = events is not None and events.enabled and request.task.send_events
    if sends_events and events.groups:  # without -E there is no group "task"
        sends_events = "task" in events.groups
    request.request_dict.pop(EVENTS_ON, None)  # the sender of the message must not set this key
    if sends_events:
        request.request_dict[EVENTS_ON] = True


class EventSender:
    """Sender of Celery events from this process, in a thread that is started with the first event."""

    def __init__(self) -> None:
        self._waiting: Queue[dict[str, Any]] = Queue(MAX_WAITING)
        self._lock = Lock()
        self._thread: Thread | None = None

    def emitter(self, task: Task) -> CeleryEventEmitter | None:
        """Return an emitter for the call to `task`, or None if its worker sends no events."""
        if not getattr(task.request, EVENTS_ON, False):
            return None
        app, celery_id, hostname = task.app, task.request.id, task.request.hostname

        def send(fields: dict[str, Scalar]) -> None:
            self._begin(app, hostname)
            with suppress(Full):
                self._waiting.put_nowait({"uuid": celery_id, **fields})

        return CeleryEventEmitter(hostname, send)

    def _begin(self, app: Celery, hostname: str) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = Thread(target=self._send, args=(app, hostname), name="a2a-celery-events", daemon=True)
                    thread.start()
                    self._thread = thread

    def _send(self, app: Celery, hostname: str) -> None:
        fields = self._waiting.get()
        while True:
            try:
                with app.connection_for_write() as connection:
                    self._send_on(connection, app, hostname, fields)
            except Exception as e:
                logger.warning("Celery events of executions are dropped: %s", e)
            fields = self._waiting.get()

    def _send_on(self, connection: Connection, app: Celery, hostname: str, fields: dict[str, Any]) -> None:
        """Send `fields` and all later events until the connection breaks."""
        dispatcher = app.events.Dispatcher(connection, hostname=hostname, buffer_while_offline=False)
        while True:
            dispatcher.send(EXECUTION_EVENT, **fields)
            fields = self._waiting.get()
