"""Receiver of Celery's events."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery


class CeleryEvents:
    """Receiver that records Celery's events. `of` lists the types of each task's events in order, without the prefix
    "task-"."""

    def __init__(self, broker_url: str) -> None:
        self.of: dict[str, list[str]] = defaultdict(list)
        self.whole: list[dict[str, Any]] = []
        """All events in order of arrival, including those of workers."""
        self._app = Celery(broker=broker_url, set_as_current=False)
        self._stopping = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="celery-events", daemon=True)
        self._thread.start()
        assert self._ready.wait(30)

    def ends_of(self, celery_id: str) -> list[str]:
        """Return the types of a Celery task's events that report a final state or a retry."""
        return [kind for kind in self.of[celery_id] if kind not in ("sent", "received", "started")]

    def stop(self) -> None:
        self._stopping = True
        self._thread.join(10)

    def _listen(self) -> None:
        with self._app.connection_for_read() as connection:
            receiver = self._app.events.Receiver(connection, handlers={"*": self._take})
            with receiver.consumer_context() as (_, channel, _consumers):
                self._ready.set()
                while not self._stopping:
                    try:
                        channel.connection.client.drain_events(timeout=0.2)
                    except TimeoutError:
                        pass
                    except TypeError:  # an event of another fleet on the same broker, in a different format
                        pass

    def _take(self, event: dict[str, Any]) -> None:
        self.whole.append(event)
        if event["type"].startswith("task-"):
            self.of[event["uuid"]].append(event["type"].removeprefix("task-"))


@contextmanager
def celery_events(broker_url: str) -> Iterator[CeleryEvents]:
    """Record the events on `broker_url` while the block runs."""
    events = CeleryEvents(broker_url)
    try:
        yield events
    finally:
        events.stop()
