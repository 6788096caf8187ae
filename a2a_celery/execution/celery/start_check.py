"""Checks at the start of a worker, before the worker receives its first message.

The worker checks the imports of its agents and of its spawned children, the store, and the secrets of stored data. The
worker then adds the version queues of its agents.
"""

from __future__ import annotations

import logging
from typing import Any

from billiard import get_start_method
from celery.concurrency import get_implementation, prefork
from celery.signals import worker_init

from ...crypto.sealing import require_secrets, sealer_of
from ...dispatch import queue_of, version_queue, version_queues
from ...errors import ConfigError, StoreUnavailable
from ...settings import Settings
from ...store import Keys, SyncStore
from ...store.admin.schema import open_store, require_compatible
from ...store.admin.start_check import secrets_in_use, unavailable, warn_of_eviction
from ...store.blobs.blob_store import blobs_of
from ...store.blobs.cleanup import blobs_in_use, require_blobs_in
from ..agents.adapters import import_errors
from ..process.worker_process import Receivers, installed_on
from .worker_signals import import_path

logger = logging.getLogger(__name__)

SPAWN_TIMEOUT = 60.0
"""Minimum of `worker_proc_alive_timeout` if the children are spawned, in seconds. Celery kills children that are not
ready by then, and its default of 4 seconds is too short for the imports of a new interpreter."""


def worker_starts(sender: Any = None, **_: Any) -> None:
    """Check whether a worker can start, and make it consume the version queues of its agents.

    Raises:
        SystemExit: The worker cannot import its agents, a setting is invalid, a feature names an unknown agent, the
            store has a different schema, or the secrets of stored data or the object store of tasks are missing. Celery
            swallows every other exception of a receiver.
    """
    components = installed_on(sender.app)
    if components is None:
        return
    agents = components.agents
    queue_names = set(sender.app.amqp.queues.consume_from)
    errors = import_errors(agent for agent in agents.values() if queue_of(sender.app, agent) in queue_names)
    if errors:
        raise SystemExit("Error: " + "; ".join(f"agent {name!r}: {error}" for name, error in errors.items()))
    try:
        settings = components.settings()
        for feature in components.app_features:
            feature.require_agents(agents)
        if agents:
            _look_at_store(settings, needs_secrets=any(agent.saves_context_data for agent in agents.values()))
    except ConfigError as e:
        raise SystemExit(f"Error: {e}") from e
    for name in version_queues(sender.app, agents.values(), queue_names):
        sender.app.amqp.queues.select_add(version_queue(sender.app, name))


def prepare_spawning(sender: Any = None, **_: Any) -> None:
    """Check whether the spawned children of a prefork pool can import the app, and give them time for their imports.

    Raises:
        SystemExit: No module has a variable with the app.
    """
    app, pool = sender.app, get_implementation(sender.pool_cls)
    spawns = issubclass(pool, prefork.TaskPool) and {sender.pool_start_method, get_start_method()} != {"fork"}
    if not spawns or installed_on(app) is None:
        return
    if import_path(app) is None:
        raise SystemExit(
            "Error: this prefork worker spawns its children (worker_pool_start_method, and by default on macOS), and "
            "they cannot import its Celery app: assign the app to a variable of a module, or start it with -P threads"
        )
    app.conf.worker_proc_alive_timeout = max(app.conf.worker_proc_alive_timeout, SPAWN_TIMEOUT)


RECEIVERS: Receivers = ((worker_init, worker_starts), (worker_init, prepare_spawning))


def _look_at_store(settings: Settings, *, needs_secrets: bool) -> None:
    blobs_of(settings)
    store, keys = SyncStore(settings.store_url), Keys(settings.key_prefix)
    try:
        require_compatible(open_store(store, keys), None)
        require_blobs_in(settings, store.run(blobs_in_use(keys)))
        if needs_secrets:
            in_use = store.run(secrets_in_use(keys))
            require_secrets(sealer_of(settings.secret_keys), in_use)
        warn_of_eviction(store.redis.info("memory"))
    except StoreUnavailable as e:
        logger.warning("%s; runs wait until it is available", unavailable(store, e))
    finally:
        store.close()
