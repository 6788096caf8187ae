"""What a worker makes sure of before it takes its first message: that it can open the sessions there are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery
from celery.signals import worker_init

from ..agents import Agent
from ..config import Settings
from ..errors import ConfigError, StoreUnavailable
from ..sealing import require_secrets, sealer_of
from ..store import Keys, SyncStore
from ..store.push_configs import secrets_in_use

logger = logging.getLogger(__name__)

_installed: WeakKeyDictionary[Celery, tuple[Callable[[], Settings], Mapping[str, Agent]]] = WeakKeyDictionary()
"""Settings and agents of each app that has an A2A."""


def connect(app: Celery, settings: Callable[[], Settings], agents: Mapping[str, Agent]) -> None:
    """Makes `app`'s workers refuse to start without the secrets that sessions of its `agents` are sealed with."""
    _installed[app] = settings, agents
    worker_init.connect(worker_starts, weak=False, dispatch_uid="a2a_celery.worker_starts")


def worker_starts(sender: Any = None, **_: Any) -> None:
    """A worker is about to start. Celery swallows whatever a receiver raises, but an exit."""
    settings_of, agents = _installed.get(sender.app, (None, {}))
    if settings_of is None or not any(agent.session for agent in agents.values()):
        return
    try:
        _require_secrets(settings_of())
    except ConfigError as e:
        raise SystemExit(f"Error: {e}") from e


def _require_secrets(settings: Settings) -> None:
    store = SyncStore(settings.store_url)
    try:
        in_use = store.run(secrets_in_use(Keys(settings.key_prefix)))
        require_secrets(sealer_of(settings), in_use)
    except StoreUnavailable as e:
        logger.warning("whether the secret key is the right one is not known: %s", e)
    finally:
        store.close()
