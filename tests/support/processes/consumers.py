"""Queues that workers consume."""

from __future__ import annotations

from celery import Celery

from tests.support.waiting import eventually


def stop_consuming(app: Celery, node: str, queue: str) -> None:
    """Make the worker `node` stop consuming `queue`, and wait until the broker delivers no more messages to it.

    The reply and the log line of the command come earlier.
    """
    assert app.control.cancel_consumer(queue, destination=[node], reply=True, timeout=30)

    def has_stopped() -> bool:
        queues = (app.control.inspect([node], limit=1).active_queues() or {}).get(node)
        return queues is not None and queue not in {consumed["name"] for consumed in queues}

    eventually(has_stopped, what=f"{node} stops consuming {queue}")
