"""Celery message of a run for the store, which pushes the message to the broker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...store.verbs import section


@section(Path(__file__).with_suffix(".lua"))
class PushedMessage(NamedTuple):
    """Section of ``create_task`` and ``continue_task``.

    The script pushes the Celery message if it executes in the Redis process `server` and the client's message begins
    the run `run`.

    Attributes:
        run: Name of the run, ``<task_id>.<run>``.
        server: Run id of the broker's process; see the command INFO.
        database: Number of the broker's database.
        store_database: Number of the store's database.
        queue: Key of the list that receives `body`.
        body: Celery message as kombu would write it.
        event_channel: Channel of the ``task-sent`` event, or "" if there is no event.
        event: Event as kombu would publish it.
        delay_us: µs until a watcher publishes the run again if no worker has claimed it.
    """

    run: str
    server: str
    database: int
    store_database: int
    queue: str
    body: bytes
    event_channel: str
    event: bytes
    delay_us: int

    def parse(self, task_id: str, reply: Sequence[bytes]) -> None:
        """Return None, because the section does not refuse a message."""
