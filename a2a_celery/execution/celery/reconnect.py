"""A worker whose broker connection fails: it connects again, and receives messages again.

After a reconnect Celery reduces what a worker may prefetch, and raises it again with each acknowledgement. On threads
it does that in the thread of the task, where it waits for RabbitMQ's answer on the connection that the main thread
reads: one takes the other's frames, and no message is ever delivered again. Prefetching all at once costs nothing here:
what a worker holds is in the store.

A worker that starts asks the others for their revoked tasks (mingle). If the broker does not answer then, kombu raises
an error that Celery does not take for a lost connection, and the worker ends.

Seen in Celery 5.7; tests/acceptance/test_cut_connections.py and tests/execution/test_reconnecting.py say when this file
can go.
"""

from __future__ import annotations

from typing import Any

from celery import Celery, bootsteps
from celery.concurrency.thread import TaskPool
from celery.signals import celeryd_after_setup
from kombu.exceptions import OperationalError


def connect(app: Celery) -> None:
    """Let the workers of `app` connect again also while they start, and those of threads prefetch as before then."""
    celeryd_after_setup.connect(prefetch_as_before, weak=False, dispatch_uid="a2a_celery.prefetch_as_before")
    app.steps["consumer"].add(ReconnectsWhileStarting)


class ReconnectsWhileStarting(bootsteps.Step):  # type: ignore[misc]
    """Makes the consumer take kombu's own error for a broker that does not answer as a lost connection."""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        parent.connection_errors = (*parent.connection_errors, OperationalError)


def prefetch_as_before(instance: Any, conf: Any, **_: Any) -> None:
    """A worker knows its pool, and is about to start."""
    if issubclass(instance.pool_cls, TaskPool):
        conf.worker_enable_prefetch_count_reduction = False
