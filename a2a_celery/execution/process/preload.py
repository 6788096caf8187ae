"""Import of agents that are registered by name. Worker processes begin the import when they start, and do not wait
for the first message.

A prefork child imports the agents after the fork, because an event loop, a thread or a connection that an import
creates would not survive the fork. The import runs in a separate thread, because Celery kills a child that is not ready
within `worker_proc_alive_timeout`.

The objects that exist after the start of a process are excluded from garbage collection; see `memory.freeze_heap`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from threading import Thread, current_thread, main_thread
from typing import Any

from celery import Celery
from celery.app import app_or_default
from celery.concurrency import prefork
from celery.signals import worker_process_init, worker_ready

from ...dispatch import queue_of
from ...errors import ConfigError
from ...memory import freeze_heap
from ..agents.adapters import load
from .forced_stop import in_pool_child
from .worker_process import Receivers, installed_on

logger = logging.getLogger(__name__)


def child_starts(**_: Any) -> None:
    """Exclude the inherited objects of a prefork child from garbage collection, and start the child's imports. The solo
    pool also sends this signal, but before the checks of its worker."""
    if in_pool_child():
        freeze_heap(collect=False)
        preload(app_or_default(), then=partial(freeze_heap, collect=False))


def worker_is_ready(sender: Any = None, **_: Any) -> None:
    """Exclude the worker's objects from garbage collection, and start the imports of a worker whose runs share its
    process.

    A prefork worker must not import agents before it forks. On green pools, an import would block every task. A worker
    in a thread of another program, such as a test, does not exclude the program's objects.
    """
    freeze = freeze_heap if current_thread() is main_thread() else _do_nothing
    freeze()
    pool = sender.pool
    if not (isinstance(pool, prefork.TaskPool) or pool.is_green):
        preload(sender.app, then=freeze)


def _do_nothing() -> None:
    pass


RECEIVERS: Receivers = ((worker_process_init, child_starts), (worker_ready, worker_is_ready))


def preload(app: Celery, *, then: Callable[[], object] = _do_nothing) -> Thread | None:
    """Import the agents of `app` in a thread, and call `then` there. Return the thread, or None if there is nothing to
    import."""
    components = installed_on(app)
    if components is None:
        return None
    queue_names = set(app.amqp.queues.consume_from)
    names = {agent.name: agent.code for agent in components.agents.values() if queue_of(app, agent) in queue_names}
    codes = {name: code for name, code in names.items() if isinstance(code, str)}
    if not codes:
        return None
    thread = Thread(target=_import, args=(codes, then), name="a2a-preload", daemon=True)
    thread.start()
    return thread


def _import(codes: Mapping[str, str], then: Callable[[], object]) -> None:
    for name, code in codes.items():
        try:
            load(code)
        except ConfigError as e:
            logger.warning("agent %r was not imported when its process started; its next run tries again: %s", name, e)
    then()
