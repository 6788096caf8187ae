"""Import of agents that are registered by name. Worker processes begin the import when they start, and do not wait
for the first message.

A prefork child imports the agents after the fork, because an event loop, a thread or a connection that an import
creates would not survive the fork. The import runs in a separate thread, because Celery kills a child that is not ready
within `worker_proc_alive_timeout`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from threading import Thread
from typing import Any

from celery import Celery
from celery.app import app_or_default
from celery.concurrency import prefork
from celery.signals import worker_process_init, worker_ready

from ...dispatch import queue_of
from ...errors import ConfigError
from ..agents.adapters import load
from .forced_stop import in_pool_child
from .worker_process import Receivers, installed_on

logger = logging.getLogger(__name__)


def child_starts(**_: Any) -> None:
    """Start the imports of a prefork child. The solo pool also sends this signal, but before the checks of its
    worker."""
    if in_pool_child():
        preload(app_or_default())


def worker_is_ready(sender: Any = None, **_: Any) -> None:
    """Start the imports of a worker whose runs share its process.

    A prefork worker must not import agents before it forks. On green pools, an import would block every task.
    """
    pool = sender.pool
    if not (isinstance(pool, prefork.TaskPool) or pool.is_green):
        preload(sender.app)


RECEIVERS: Receivers = ((worker_process_init, child_starts), (worker_ready, worker_is_ready))


def preload(app: Celery) -> Thread | None:
    """Import the agents of `app` in a thread. Return the thread, or None if there is nothing to import."""
    components = installed_on(app)
    if components is None or not components.settings().preload_agents:
        return None
    queue_names = set(app.amqp.queues.consume_from)
    names = {agent.name: agent.code for agent in components.agents.values() if queue_of(app, agent) in queue_names}
    codes = {name: code for name, code in names.items() if isinstance(code, str)}
    if not codes:
        return None
    thread = Thread(target=_import, args=(codes,), name="a2a-preload", daemon=True)
    thread.start()
    return thread


def _import(codes: Mapping[str, str]) -> None:
    for name, code in codes.items():
        try:
            load(code)
        except ConfigError as e:
            logger.warning("agent %r was not imported when its process started; its next run tries again: %s", name, e)
