"""What a worker's broker connection needs so that a Redis that restarts or hangs does not end or deafen the worker.

A guard names what it mends, applies only while the mistake is there, and goes when it is mended upstream. Nothing
happens for brokers other than Redis.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

from celery import Celery
from celery.signals import celeryd_init

from .connection import redis_patience
from .redis_clients import keep_clients

logger = logging.getLogger(__name__)

LINE_CHECK_INTERVAL = 10
"""Seconds between two looks whether a line on which a worker waits is dead; after twice this it is dropped."""

_guarded: WeakSet[Celery] = WeakSet()


def guard_workers(app: Celery) -> None:
    """Makes `app`'s workers put the guards on before they connect. Once per app and process is enough."""
    _guarded.add(app)
    celeryd_init.connect(_before_a_worker_connects, weak=False, dispatch_uid="a2a_celery.broker_guards")


def _before_a_worker_connects(instance: Any = None, **_: Any) -> None:
    try:
        if instance.app in _guarded:
            guard(instance.app)
    except Exception:
        logger.exception("the worker's broker connection was not guarded")


def guard(app: Celery) -> None:
    """Puts the guards on for the broker that `app` consumes from."""
    transport = app.connection_for_read().get_transport_cls()
    if transport.driver_name != "redis":
        return
    options = app.conf.broker_transport_options
    app.conf.broker_transport_options = {
        "health_check_interval": LINE_CHECK_INTERVAL,
        **redis_patience(options),
        **options,
    }
    guard_closed_channels(transport.Channel)
    keep_clients(transport.Channel)


def guard_closed_channels(channel: type) -> bool:
    """A channel of a connection that was collected says it is closed, instead of ending the worker; True: it needed to.

    kombu 5.7.0 (celery/kombu#582): after a Redis restart the worker collects its connection and then closes it. If that
    gives back messages that are not acknowledged, ``Channel._connparams`` reads ``connection.client.hostname``, and the
    client is None by then. celery expects a connection error there, and ends: "Unrecoverable error: AttributeError".
    """
    connparams = channel._connparams  # type: ignore[attr-defined]
    if not _fails_on_a_closed_connection(channel):
        return False

    def _connparams(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self.connection, "client", None) is None:
            raise ConnectionError("the connection to the broker is closed")
        return connparams(self, *args, **kwargs)

    channel._connparams = _connparams  # type: ignore[attr-defined]
    return True


def _fails_on_a_closed_connection(channel: type) -> bool:
    closed: Any = object.__new__(channel)
    closed.connection = SimpleNamespace(client=None, default_port=0)
    try:
        closed._connparams()
    except AttributeError as e:
        return e.obj is None
    except Exception:
        return False
    return False
