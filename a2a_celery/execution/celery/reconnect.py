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

A worker declares each queue before it consumes from the queue. If RabbitMQ stops between the two steps, or if it is so
slow that mingle's reply queue expires, RabbitMQ reports that the queue does not exist (celery/celery#4618). Celery
treats the report as an error of the program, and the worker exits.

Observed with Celery 5.7. When Celery has fixed the problems, tests/acceptance/test_cut_connections.py and
tests/execution/test_reconnect.py fail, and this file can be deleted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from amqp.exceptions import AMQPError, NotFound, PreconditionFailed
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
    """Boot step that makes the consumer treat three errors as a lost connection: kombu's error for an unresponsive
    broker, and the errors of RabbitMQ for a message that was not acknowledged in time and for a queue that disappeared
    after its declaration."""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        parent.connection_errors = (*parent.connection_errors, OperationalError)
        parent.blueprint.start = _reconnecting(parent.blueprint.start)


def _reconnecting(start: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(start)
    def start_or_reconnect(consumer: Any) -> None:
        try:
            start(consumer)
        except (PreconditionFailed, NotFound) as e:
            if not (_is_acknowledgement_timeout(e) or _is_lost_queue(e, consumer.app)):
                raise
            raise OperationalError(str(e)) from e

    return start_or_reconnect


def _is_acknowledgement_timeout(error: AMQPError) -> bool:
    return isinstance(error, PreconditionFailed) and "delivery acknowledgement" in str(error)


def _is_lost_queue(error: AMQPError, app: Celery) -> bool:
    """Return True if a queue that the worker declares did not exist when the worker began to consume from it.

    A worker does not declare a queue of the app with `no_declare`, so such an error would occur again.
    """
    name = _QUEUE_NAME.search(str(error)) if error.method_sig == _BASIC_CONSUME else None
    return name is not None and not getattr(app.amqp.queues.get(name[1]), "no_declare", False)


_BASIC_CONSUME = (60, 20)
"""Class and method of AMQP's command `basic.consume`."""

_QUEUE_NAME = re.compile("queue '(.+)' in vhost")


def prefetch_as_before(instance: Any, conf: Any, **_: Any) -> None:
    """Disable the reduction of the prefetch count for a worker with the thread pool."""
    if issubclass(instance.pool_cls, TaskPool):
        conf.worker_enable_prefetch_count_reduction = False
