"""Remote-control command ``a2a_report``, with which ``celery a2a doctor`` inspects a worker."""

from __future__ import annotations

from threading import Thread
from typing import Any

from celery.worker.control import inspect_command

from ...errors import ConfigError, StoreUnavailable
from ...settings import shown
from ...store import SyncStore
from ...store.admin.installation import server_of
from ...store.admin.schema import SCHEMA
from ...versions import versions
from ..installation import installed_on
from ..process.forced_stop import abandoned
from .drain import drained

STORE_TIMEOUT = 1.0
"""Seconds that the store has to answer: the worker does nothing else meanwhile."""


@inspect_command()  # type: ignore[untyped-decorator]
def a2a_report(state: Any) -> dict[str, Any]:
    """Return how this worker is set up for A2A."""
    installed = installed_on(state.app)
    if installed is None:
        return {"error": "its app has no A2A"}
    pool = type(state.consumer.pool).__module__.rpartition(".")[2]
    consumer = state.consumer.task_consumer
    report: dict[str, Any] = {
        "pool": {"thread": "threads", "pool": "asyncio"}.get(pool, pool),
        "queues": [queue.name for queue in consumer.queues] if consumer else [],
        "agents": sorted(installed.agents),
        "drained": sorted(drained),
        "schema": SCHEMA,
        "abandoned": sorted(abandoned),
        "events": _sends_events(state.consumer),
        "versions": versions(),
    }
    try:
        settings = installed.settings()
    except ConfigError as e:
        return report | {"error": str(e)}
    return report | {"settings": shown(settings), "store": _store(settings.store_url)}


def _sends_events(consumer: Any) -> bool:
    """Return True if the worker sends Celery's task events, which Flower shows."""
    sender = consumer.event_dispatcher
    return sender is not None and bool(sender.enabled) and (not sender.groups or "task" in sender.groups)


def _store(url: str) -> dict[str, Any]:
    """The identity of the store and how far this machine's clock is ahead of its, or the error."""
    found: dict[str, Any] = {"error": f"no answer within {STORE_TIMEOUT:g} s"}

    def ask() -> None:
        store = SyncStore(url)
        try:
            server = server_of(store)
        except StoreUnavailable as e:
            found["error"] = str(e)
        else:
            found.update(identity=server.identity, ahead=server.ahead, error="")
        finally:
            store.close()

    asking = Thread(target=ask, name="a2a-report", daemon=True)
    asking.start()
    asking.join(STORE_TIMEOUT)
    return dict(found)
