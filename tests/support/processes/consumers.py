"""Queues and messages that workers consume."""

from __future__ import annotations

from celery import Celery

from tests.support.processes.fleet import Fleet, Process
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


def wait_for_acknowledgement(fleet: Fleet, worker: Process) -> None:
    """Wait until a worker has acknowledged the message of a task that it executes.

    A worker acknowledges a message after its pool has begun to execute the task. If the worker is killed in between,
    the broker delivers the message again.
    """

    node = fleet.node_name(worker)
    with Celery(broker=fleet.broker_url, set_as_current=False) as app:

        def is_acknowledged() -> bool:
            requests = (app.control.inspect([node], limit=1).active() or {}).get(node, [])
            return any(request["acknowledged"] for request in requests)

        eventually(is_acknowledged, what=f"{node} acknowledges a message")
