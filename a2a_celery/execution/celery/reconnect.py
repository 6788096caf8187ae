"""Workarounds for defects of Celery, which let a worker reconnect and receive messages again after its broker
connection has failed.

After a reconnect, Celery reduces the prefetch count of a worker and raises it with each acknowledgement. In the thread
pool, the thread of the task raises the count, and waits for RabbitMQ's reply on the connection that the main thread
reads. The two threads take each other's frames, and no further messages are delivered. Prefetching all messages at once
is safe, because the store has the prefetched runs.

When a worker starts, it asks the other workers for their revoked tasks (mingle). If the broker does not reply, kombu
raises an error that Celery does not treat as a lost connection, and the worker exits.

If a message waits in a worker for longer than the ``consumer_timeout`` of RabbitMQ, RabbitMQ closes the channel and
returns the worker's messages to their queues. Celery treats the closed channel as an error of the program, and the
worker exits.

Observed with Celery 5.7. When Celery has fixed the problems, tests/acceptance/test_cut_connections.py and
tests/execution/test_reconnect.py fail, and this file can be deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from amqp.exceptions import PreconditionFailed
from celery import Celery, bootsteps
from celery.concurrency.thread import TaskPool
from celery.signals import celeryd_after_setup
from kombu.exceptions import OperationalError


def connect(app: Celery) -> None:
    """Let workers of `app` reconnect while they start and after a ``consumer_timeout``, and disable the prefetch
    reduction in the thread pool."""
    celeryd_after_setup.connect(prefetch_as_before, weak=False, dispatch_uid="a2a_celery.prefetch_as_before")
    app.steps["consumer"].add(ReconnectStep)


class ReconnectStep(bootsteps.Step):  # type: ignore[misc]
    """Boot step that makes the consumer treat two errors as a lost connection: kombu's error for an unresponsive
    broker, and the error of RabbitMQ for a message that was not acknowledged in time."""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        parent.connection_errors = (*parent.connection_errors, OperationalError)
        parent.loop = _reconnecting_after_consumer_timeout(parent.loop)


def _reconnecting_after_consumer_timeout(loop: Callable[..., None]) -> Callable[..., None]:
    @wraps(loop)
    def consume(*args: Any) -> None:
        try:
            loop(*args)
        except PreconditionFailed as e:
            if "delivery acknowledgement" not in str(e):
                raise
            raise OperationalError(str(e)) from e

    return consume


def prefetch_as_before(instance: Any, conf: Any, **_: Any) -> None:
    """Disable the reduction of the prefetch count for a worker with the thread pool."""
    if issubclass(instance.pool_cls, TaskPool):
        conf.worker_enable_prefetch_count_reduction = False
