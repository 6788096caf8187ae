"""Timeouts and corrections that keep a worker alive when its broker connection breaks; see ``integrations``."""

from __future__ import annotations

import logging
from typing import Any
from weakref import WeakSet

from celery import Celery
from celery.concurrency.asynpool import AsynPool
from celery.signals import celeryd_init

from ..integrations.celery import correct_ended_children
from ..integrations.kombu import correct_closed_channels, correct_refused_writes, reuse_clients
from .connection import redis_timeouts

logger = logging.getLogger(__name__)

HEALTH_CHECK_INTERVAL = 10
"""Seconds between two checks of an idle connection; a dead one is dropped after twice this."""

_guarded: WeakSet[Celery] = WeakSet()


def guard_workers(app: Celery) -> None:
    """Guard the broker connection of each worker of `app` before the worker connects."""
    _guarded.add(app)
    celeryd_init.connect(_before_a_worker_connects, weak=False, dispatch_uid="a2a_celery.broker_guards")


def _before_a_worker_connects(instance: Any = None, **_: Any) -> None:
    try:
        if instance.app in _guarded:
            guard(instance.app)
    except Exception:
        logger.exception("the worker's broker connection was not guarded")


def guard(app: Celery) -> None:
    """Apply the correction of the prefork pool, and set timeouts and apply corrections if `app` consumes from Redis."""
    correct_ended_children(AsynPool)
    transport = app.connection_for_read().get_transport_cls()
    if transport.driver_name != "redis":
        return
    options = app.conf.broker_transport_options
    app.conf.broker_transport_options = {
        "health_check_interval": HEALTH_CHECK_INTERVAL,
        **options,
        **redis_timeouts(options),
    }
    correct_closed_channels(transport.Channel)
    correct_refused_writes(transport)
    reuse_clients(transport.Channel)
