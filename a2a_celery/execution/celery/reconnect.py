"""Workarounds for defects of Celery, which let a worker reconnect and receive messages again after its broker
connection has failed.

After a reconnect, Celery reduces the prefetch count of a worker and raises it with each acknowledgement. In the thread
pool, the thread of the task raises the count, and waits for RabbitMQ's reply on the connection that the main thread
reads. The two threads take each other's frames, and no further messages are delivered. Prefetching all messages at once
is safe, because the store has the prefetched runs.

When a worker starts, it asks the other workers for their revoked tasks (mingle). If the broker does not reply, kombu
raises an error that Celery does not treat as a lost connection, and the worker exits.

Observed with Celery 5.7. When Celery has fixed both problems, tests/acceptance/test_cut_connections.py and
tests/execution/test_reconnect.py fail, and this file can be deleted.
"""

from __future__ import annotations

from typing import Any

from celery import Celery, bootsteps
from celery.concurrency.thread import TaskPool
from celery.signals import celeryd_after_setup
from kombu.exceptions import OperationalError


def connect(app: Celery) -> None:
    """Let workers of `app` reconnect while they start, and disable the prefetch reduction in the thread pool."""
    celeryd_after_setup.connect(prefetch_as_before, weak=False, dispatch_uid="a2a_celery.prefetch_as_before")
    app.steps["consumer"].add(ReconnectsWhileStarting)


class ReconnectsWhileStarting(bootsteps.Step):  # type: ignore[misc]
    """Boot step that makes the consumer treat kombu's error for an unresponsive broker as a lost connection."""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        parent.connection_errors = (*parent.connection_errors, OperationalError)


def prefetch_as_before(instance: Any, conf: Any, **_: Any) -> None:
    """Disable the reduction of the prefetch count for a worker with the thread pool."""
    if issubclass(instance.pool_cls, TaskPool):
        conf.worker_enable_prefetch_count_reduction = False
