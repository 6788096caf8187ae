"""What a worker makes sure of before it takes its first message: that it can import its agents, reads the store as it
is meant, can open the sessions there are, and knows where large parts are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery
from celery.signals import worker_init

from ..agents import Agent
from ..config import Settings
from ..dispatch import queue_of
from ..errors import ConfigError, StoreUnavailable
from ..sealing import require_secrets, sealer_of
from ..store import Keys, SyncStore
from ..store.blob_tasks import blobs_in_use, require_blobs_in
from ..store.blobs import blobs_of
from ..store.push_configs import secrets_in_use
from ..store.schema import judge, open_store
from ..store.start_check import unavailable, warn_of_eviction
from .import_check import import_errors

logger = logging.getLogger(__name__)

_installed: WeakKeyDictionary[Celery, tuple[Callable[[], Settings], Mapping[str, Agent]]] = WeakKeyDictionary()
"""Settings and agents of each app that has an A2A."""


def connect(app: Celery, settings: Callable[[], Settings], agents: Mapping[str, Agent]) -> None:
    """Makes `app`'s workers refuse to start without the code of `agents`, on a store of another schema, without the
    secrets that sessions are sealed with, or without the object store that tasks have parts in."""
    _installed[app] = settings, agents
    worker_init.connect(worker_starts, weak=False, dispatch_uid="a2a_celery.worker_starts")


def worker_starts(sender: Any = None, **_: Any) -> None:
    """A worker is about to start. Celery swallows whatever a receiver raises, but an exit."""
    settings_of, agents = _installed.get(sender.app, (None, {}))
    if settings_of is None or not agents:
        return
    consumed = set(sender.app.amqp.queues.consume_from)
    errors = import_errors(agent for agent in agents.values() if queue_of(sender.app, agent) in consumed)
    if errors:
        raise SystemExit("Error: " + "; ".join(f"agent {name!r}: {error}" for name, error in errors.items()))
    try:
        _look_at_store(settings_of(), sessions=any(agent.session for agent in agents.values()))
    except ConfigError as e:
        raise SystemExit(f"Error: {e}") from e


def _look_at_store(settings: Settings, *, sessions: bool) -> None:
    blobs_of(settings)
    store, keys = SyncStore(settings.store_url), Keys(settings.key_prefix)
    try:
        judge(open_store(store, keys), None)
        require_blobs_in(settings, store.run(blobs_in_use(keys)))
        if sessions:
            in_use = store.run(secrets_in_use(keys))
            require_secrets(sealer_of(settings), in_use)
        warn_of_eviction(store.redis.info("memory"))
    except StoreUnavailable as e:
        logger.warning("%s; runs wait until it is available", unavailable(store, e))
    finally:
        store.close()
