"""Taking a worker out of service while it lives: what ``celery a2a drain`` asks for by remote-control commands.

It stops consuming, and what it has fetched and not begun is handed back in the store, so that it runs elsewhere at
once; what has begun goes on. A worker forgets that it is drained when it ends, and not when it loses its broker.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import Any

from celery.signals import task_received
from celery.worker import state as worker
from celery.worker.control import control_command, inspect_command
from kombu.entity import Queue
from kombu.transport.virtual.exchange import TopicExchange

from ..process.shutdown import is_run

logger = logging.getLogger(__name__)

drained: set[str] = set()
"""Queues that this worker consumed until it was told to stop."""

_leaving: set[str] = set()
"""Those of them that it is about to stop consuming."""


_topics: Any = TopicExchange(None)  # type: ignore[no-untyped-call]


@control_command()  # type: ignore[untyped-decorator]
def a2a_drain(state: Any, queues: list[str] | None = None) -> dict[str, Any]:
    """Takes nothing more from `queues`, None: from any, and hands back the runs from there that have not begun."""
    consumer = state.consumer
    consumed = [queue.name for queue in consumer.task_consumer.queues] if consumer.task_consumer else []
    leaving = [name for name in consumed if queues is None or name in queues]
    task_received.connect(_received, weak=False, dispatch_uid="a2a_celery.received_while_drained")
    drained.update(leaving)
    waiting = [request for request in _from_drained(consumer) if is_run(request) and request.time_start is None]
    _leaving.update(leaving)
    consumer.call_soon(_leave, consumer)
    left = sorted(name for name in drained if queues is None or name in queues)
    return {"queues": left, "handed_back": len(waiting)}


@control_command()  # type: ignore[untyped-decorator]
def a2a_undrain(state: Any, queues: list[str] | None = None) -> dict[str, Any]:
    """Consumes again what it was told to leave, or those of it that are among `queues`."""
    consumer = state.consumer
    again = sorted(name for name in drained if queues is None or name in queues)
    for name in again:
        consumer.call_soon(consumer.add_task_queue, name)
    drained.difference_update(again)
    return {"queues": again}


@inspect_command()  # type: ignore[untyped-decorator]
def a2a_busy(state: Any) -> dict[str, Any]:
    """What is still to end of what came from drained queues: runs that have begun, and how many other Celery tasks; and
    which queues these are, for a worker that was started again has none."""
    left = _from_drained(state.consumer)
    return {
        "drained": sorted(drained),
        "leaving": sorted(_leaving),
        "runs": sorted(request.id for request in left if is_run(request) and request in worker.active_requests),
        "tasks": sum(not is_run(request) for request in left),
    }


def _from_drained(consumer: Any) -> list[Any]:
    return [request for request in tuple(worker.requests.values()) if _is_from(request, consumer, drained)]


def _is_from(request: Any, consumer: Any, names: Collection[str]) -> bool:
    """Return True if the message of `request` came from one of these queues, as far as the message shows it."""
    info = request.delivery_info
    exchange, key = info.get("exchange") or "", info.get("routing_key")
    known = [queue for name, queue in consumer.app.amqp.queues.items() if name in names]
    return any(_brings(queue, exchange, key or "") for queue in known)


def _brings(queue: Queue, exchange: str, key: str) -> bool:
    """Whether a broker puts into `queue` what is sent to `exchange` ("" for the queue itself) with this routing key."""
    if not exchange:
        return bool(key == queue.name)
    for way in queue.bindings or (queue,):
        if way.exchange.name != exchange:
            continue
        match way.exchange.type:
            case "fanout":
                return True
            case "topic" if re.match(_topics.key_to_pattern(way.routing_key), key):
                return True
            case _ if way.routing_key == key:
                return True
    return False


def _leave(consumer: Any) -> None:
    for name in tuple(_leaving):
        consumer.cancel_task_queue(name)
    _leaving.clear()
    # only now: what is handed back would come to this very worker again
    for request in _from_drained(consumer):
        if is_run(request) and request.time_start is None:
            request.give_up()


def _received(sender: Any = None, request: Any = None, **_: Any) -> None:
    """A message that was on its way when its queue was left."""
    try:
        if drained and is_run(request) and _is_from(request, sender, drained):
            request.give_up()
    except Exception:
        logger.exception("a message that came to a drained worker was not handed back")
