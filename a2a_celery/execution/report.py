"""What a worker says of itself when ``celery a2a doctor`` asks by a remote-control command, ``a2a_report``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery
from celery.worker.control import inspect_command

from ..agents import Agent
from ..config import Settings, shown
from ..errors import ConfigError, StoreUnavailable
from ..store import SyncStore
from ..store.installation import server_of
from ..store.schema import SCHEMA
from ..versions import versions
from .draining import drained
from .force import left_behind

STORE_TIMEOUT = 1.0
"""Seconds that the store has to answer: the worker does nothing else meanwhile."""

_installed: WeakKeyDictionary[Celery, tuple[Callable[[], Settings], Mapping[str, Agent]]] = WeakKeyDictionary()
"""Settings and agents of each app that has an A2A."""


def connect(app: Celery, settings: Callable[[], Settings], agents: Mapping[str, Agent]) -> None:
    """Makes `app`'s workers report `settings` and the names of `agents`."""
    _installed[app] = settings, agents


@inspect_command()  # type: ignore[untyped-decorator]
def a2a_report(state: Any) -> dict[str, Any]:
    """How this worker is set up for A2A."""
    installed = _installed.get(state.app)
    if installed is None:
        return {"error": "its app has no A2A"}
    settings_of, agents = installed
    pool = type(state.consumer.pool).__module__.rpartition(".")[2]
    consumer = state.consumer.task_consumer
    report: dict[str, Any] = {
        "pool": {"thread": "threads", "pool": "asyncio"}.get(pool, pool),
        "queues": [queue.name for queue in consumer.queues] if consumer else [],
        "agents": sorted(agents),
        "drained": sorted(drained),
        "schema": SCHEMA,
        "left_behind": sorted(left_behind),
        "events": _sends_events(state.consumer),
        "versions": versions(),
    }
    try:
        settings = settings_of()
    except ConfigError as e:
        return report | {"error": str(e)}
    return report | {"settings": shown(settings), "store": _store(settings.store_url)}


def _sends_events(consumer: Any) -> bool:
    """Whether it tells Celery's events of tasks: what Flower shows."""
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
