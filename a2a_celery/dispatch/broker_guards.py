"""What a worker's broker connection needs so that a Redis that restarts, hangs or refuses writes does not end or deafen
the worker.

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
from kombu.transport import virtual
from redis._parsers.base import BaseParser
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from .connection import redis_patience
from .redis_clients import keep_clients

logger = logging.getLogger(__name__)

LINE_CHECK_INTERVAL = 10
"""Seconds between two looks whether a line on which a worker waits is dead; after twice this it is dropped."""


class WriteRefused(ResponseError):
    """A Redis refuses writes for one of `REFUSAL_CODES`; redis-py has classes of its own for the other reasons."""

    def __init__(self, text: str = "", status_code: str | None = None) -> None:
        super().__init__(f"{status_code} {text}" if status_code else text, status_code=status_code)


REFUSAL_CODES = ("MISCONF", "NOREPLICAS")
WRITE_REFUSALS = (OutOfMemoryError, ReadOnlyError, WriteRefused)

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
    guard_refused_writes(transport)
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


def guard_refused_writes(transport: type) -> bool:
    """Treat a Redis that refuses writes as one that is unavailable: reconnect until it takes them.

    kombu 5.7.0 counts the refusals MISCONF, OOM and READONLY as errors of a command, on which celery ends the worker:
    "Unrecoverable error". A new channel makes sure that the broker takes writes, so celery waits between its attempts.

    A full Redis gives a message away and then refuses to note that it is not acknowledged. kombu raises, and the
    message is lost. With the guard the worker runs it; it does not come again if the worker is killed.

    Returns:
        True if the transport needed the guard.
    """
    if issubclass(OutOfMemoryError, transport.connection_errors):  # type: ignore[attr-defined]
        return False
    for code in REFUSAL_CODES:
        BaseParser.EXCEPTION_CLASSES.setdefault(code, WriteRefused)
    transport.connection_errors += WRITE_REFUSALS  # type: ignore[attr-defined]
    channel: Any = transport.Channel  # type: ignore[attr-defined]
    open_channel, append = channel.__init__, channel.QoS.append

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        open_channel(self, *args, **kwargs)
        try:
            self.client.zadd(self.unacked_index_key, {"": 0}, xx=True)  # a write that changes nothing
        except WRITE_REFUSALS:
            self.close()
            raise

    def append_or_log(self: Any, message: Any, delivery_tag: str) -> None:
        try:
            append(self, message, delivery_tag)
        except WRITE_REFUSALS as e:
            logger.warning("the broker refuses writes, so this message would not come again: %s", e)
            virtual.QoS.append(self, message, delivery_tag)  # type: ignore[no-untyped-call]

    channel.__init__, channel.QoS.append = __init__, append_or_log
    return True
