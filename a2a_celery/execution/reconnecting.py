"""A worker of threads that loses its connection to RabbitMQ: Celery would leave it deaf.

After a reconnect Celery reduces what a worker may prefetch, and raises it again with each acknowledgement. On threads
it does that in the thread of the task, where it waits for RabbitMQ's answer on the connection that the main thread
reads: one takes the other's frames, and no message is ever delivered again. Prefetching all at once costs nothing here:
what a worker holds is in the store.

Seen in Celery 5.7; tests/acceptance/test_cut_connections.py says when this file can go.
"""

from __future__ import annotations

from typing import Any

from celery.concurrency.thread import TaskPool
from celery.signals import celeryd_after_setup


def connect() -> None:
    """Makes every worker of threads in this process prefetch as before when it is connected again."""
    celeryd_after_setup.connect(prefetch_as_before, weak=False, dispatch_uid="a2a_celery.prefetch_as_before")


def prefetch_as_before(instance: Any, conf: Any, **_: Any) -> None:
    """A worker knows its pool, and is about to start."""
    if issubclass(instance.pool_cls, TaskPool):
        conf.worker_enable_prefetch_count_reduction = False
