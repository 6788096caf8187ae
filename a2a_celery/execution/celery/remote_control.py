"""Remote-control commands of a worker: ``a2a_report`` for ``celery a2a doctor``, ``a2a_load`` for ``celery a2a top``,
and the commands of ``celery a2a drain``.

A drained worker stops consuming. Runs that the worker has not begun are requeued in the store, so that other workers
begin these runs immediately. Active runs continue. A worker stays drained until it ends, even if it loses its
connection to the broker.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from threading import Thread
from typing import Any

from amqp.exceptions import ResourceLocked
from celery import Celery
from celery.exceptions import WorkerShutdown
from celery.platforms import EX_FAILURE
from celery.signals import task_received
from celery.worker import state as worker
from celery.worker.control import control_command, inspect_command
from kombu.entity import Queue
from kombu.pidbox import Node
from kombu.transport.virtual.exchange import TopicExchange

from ...errors import ConfigError, StoreUnavailable
from ...settings import visible_settings
from ...store import SyncStore
from ...store.admin.schema import SCHEMA
from ...store.admin.start_check import server_of
from ...telemetry.versions import versions
from ..process.forced_stop import abandoned_runs
from ..process.shutdown import is_run
from ..process.worker_process import installed_on
from .request import unfinished_requests

STORE_TIMEOUT = 1.0
"""Timeout of the store in seconds. Calls to the store block the worker's main process."""


class WorkerMailbox(Node):
    """Mailbox of a worker, whose queue in RabbitMQ is exclusive to the worker's connection."""

    def listen(self, channel: Any = None, callback: Any = None) -> Any:
        """Consume the queue, or end the worker with a log line if another worker has its node name."""
        try:
            return super().listen(channel, callback)  # type: ignore[no-untyped-call]
        except ResourceLocked as e:
            logger.critical(
                "another worker on this broker is named %s, or a worker of this name has not closed its connection: "
                "start each worker with its own name, celery -A … worker -n NAME@%%h",
                self.hostname,
            )
            raise WorkerShutdown(EX_FAILURE) from e


def connect(app: Celery) -> None:
    """Use `WorkerMailbox` in the workers of `app`."""
    app.control.mailbox.node_cls = WorkerMailbox


@inspect_command()  # type: ignore[untyped-decorator]
def a2a_report(state: Any) -> dict[str, Any]:
    """Return the configuration, the load and the state of this worker for A2A."""
    components = installed_on(state.app)
    if components is None:
        return {"error": "its app has no A2A object"}
    pool = type(state.consumer.pool).__module__.rpartition(".")[2]
    report: dict[str, Any] = {
        "pool": {"thread": "threads", "pool": "asyncio"}.get(pool, pool),
        **_load_of(state.consumer),
        "agents": sorted(components.agents),
        "schema": SCHEMA,
        "abandoned": sorted(abandoned_runs),
        "events": _sends_events(state.consumer),
        "versions": versions(),
    }
    try:
        settings = components.settings()
    except ConfigError as e:
        return report | {"error": str(e)}
    return report | {"settings": visible_settings(settings), "store": _store(settings.store_url)}


@inspect_command()  # type: ignore[untyped-decorator]
def a2a_load(state: Any) -> dict[str, Any]:
    """Return this worker's queues and its counts of slots, active runs, prefetched runs and other Celery tasks."""
    return _load_of(state.consumer)


def _load_of(consumer: Any) -> dict[str, Any]:
    requests = unfinished_requests()
    runs = [request for request in requests if is_run(request)]
    active = sum(request in worker.active_requests for request in runs)
    return {
        "slots": consumer.controller.concurrency,
        "active": active,
        "prefetched": len(runs) - active,
        "others": len(requests) - len(runs),
        "queues": [queue.name for queue in consumer.task_consumer.queues] if consumer.task_consumer else [],
        "drained": sorted(drained_queues),
    }


def _sends_events(consumer: Any) -> bool:
    """Return True if the worker sends Celery's task events, which Flower shows."""
    sender = consumer.event_dispatcher
    return sender is not None and bool(sender.enabled) and (not sender.groups or "task" in sender.groups)


def _store(url: str) -> dict[str, Any]:
    """Return the store's identity and the offset of this machine's clock from the store's clock, or an error."""
    report: dict[str, Any] = {"error": f"no reply within {STORE_TIMEOUT:g} s"}

    def ask() -> None:
        store = SyncStore(url)
        try:
            server = server_of(store)
        except StoreUnavailable as e:
            report["error"] = str(e)
        else:
            report.update(identity=server.identity, clock_offset=server.clock_offset, error="")
        finally:
            store.close()

    asking = Thread(target=ask, name="a2a-report", daemon=True)
    asking.start()
    asking.join(STORE_TIMEOUT)
    return dict(report)


logger = logging.getLogger(__name__)

drained_queues: set[str] = set()
"""Queues that this worker has stopped consuming for a drain."""

_stopping: set[str] = set()
"""Queues in `drained_queues` that the worker still consumes for a short time."""


_topics: Any = TopicExchange(None)  # type: ignore[no-untyped-call]


@control_command()  # type: ignore[untyped-decorator]
def a2a_drain(state: Any, queues: list[str] | None = None) -> dict[str, Any]:
    """Stop consuming `queues` (None for all), and requeue their runs that have not begun."""
    consumer = state.consumer
    queue_names = [queue.name for queue in consumer.task_consumer.queues] if consumer.task_consumer else []
    stopping = [name for name in queue_names if queues is None or name in queues]
    task_received.connect(_requeue_received, weak=False, dispatch_uid="a2a_celery.received_while_drained")
    drained_queues.update(stopping)
    waiting = [request for request in _from_drained(consumer) if is_run(request) and request.time_start is None]
    _stopping.update(stopping)
    consumer.call_soon(_leave, consumer)
    names = sorted(name for name in drained_queues if queues is None or name in queues)
    return {"queues": names, "returned": len(waiting)}


@control_command()  # type: ignore[untyped-decorator]
def a2a_undrain(state: Any, queues: list[str] | None = None) -> dict[str, Any]:
    """Consume all drained queues again, or only the drained queues in `queues`."""
    consumer = state.consumer
    names = sorted(name for name in drained_queues if queues is None or name in queues)
    for name in names:
        consumer.call_soon(consumer.add_task_queue, name)
    drained_queues.difference_update(names)
    return {"queues": names}


@inspect_command()  # type: ignore[untyped-decorator]
def a2a_busy(state: Any) -> dict[str, Any]:
    """Return the drained queues, their active runs and the number of their other unfinished Celery tasks.

    A restarted worker has no drained queues.
    """
    requests = _from_drained(state.consumer)
    return {
        "drained": sorted(drained_queues),
        "stopping": sorted(_stopping),
        "runs": sorted(request.id for request in requests if is_run(request) and request in worker.active_requests),
        "tasks": sum(not is_run(request) for request in requests),
    }


def _from_drained(consumer: Any) -> list[Any]:
    return [request for request in unfinished_requests() if is_from(request, consumer, drained_queues)]


def is_from(request: Any, consumer: Any, names: Collection[str]) -> bool:
    """Return True if the message of `request` came from one of the queues `names`, according to its delivery info."""
    info = request.delivery_info
    exchange, key = info.get("exchange") or "", info.get("routing_key")
    queues = [queue for name, queue in consumer.app.amqp.queues.items() if name in names]
    return any(_brings(queue, exchange, key or "") for queue in queues)


def _brings(queue: Queue, exchange: str, key: str) -> bool:
    """Return True if a broker routes messages with this `exchange` ("" for the queue itself) and routing key to
    `queue`."""
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
    for name in tuple(_stopping):
        consumer.cancel_task_queue(name)
    _stopping.clear()
    # requeue after the queues are cancelled, because otherwise this worker could receive the run again
    for request in _from_drained(consumer):
        if is_run(request) and request.time_start is None:
            request.give_up()


def _requeue_received(sender: Any = None, request: Any = None, **_: Any) -> None:
    """Requeue a run whose message was in flight when its queue was drained."""
    try:
        if drained_queues and is_run(request) and is_from(request, sender, drained_queues):
            request.give_up()
    except Exception:
        logger.exception("a message that reached a drained worker was not requeued")
