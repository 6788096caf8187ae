"""Broker connections of publishers, with timeouts.

By default, Celery waits for an unresponsive broker until TCP gives up, after a quarter of an hour or never.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from celery import Celery
from kombu import pools
from kombu.messaging import Producer

from ..integrations.kombu import reuse_clients

CONNECT_TIMEOUT = 4.0
SOCKET_TIMEOUT = 5.0
"""Seconds. A broker replies in milliseconds; if it takes this long, the run stays in the store."""


def redis_timeouts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the timeouts that transport options for Redis, or for its Sentinels, do not set themselves."""
    timeouts = {"socket_timeout": SOCKET_TIMEOUT, "socket_connect_timeout": CONNECT_TIMEOUT, "socket_keepalive": True}
    missing: dict[str, Any] = {name: value for name, value in timeouts.items() if name not in options}
    if options.get("sentinel_kwargs"):  # without these, kombu applies the timeouts of the primary to the Sentinels
        missing["sentinel_kwargs"] = {**timeouts, **options["sentinel_kwargs"]}
    return missing


def amqp_timeouts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the timeouts that transport options for RabbitMQ do not set themselves, and publisher confirms.

    Without confirms, a message that is sent into a dead connection counts as published.
    """
    timeouts = {"confirm_publish": True, "read_timeout": SOCKET_TIMEOUT, "write_timeout": SOCKET_TIMEOUT}
    return {name: value for name, value in timeouts.items() if name not in options}


TIMEOUTS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {"redis": redis_timeouts, "py-amqp": amqp_timeouts}
"""Timeouts by the name of kombu's driver; other drivers keep their options unchanged."""


class PublishingPool:
    """Pool of connections to the broker that `app` publishes to. The pool of `app` lacks the timeouts."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def acquire(self) -> Any:
        """Wait for a free producer; use it in a ``with`` statement."""
        return pools.producers[self.connection].acquire(block=True)

    @property
    def batches(self) -> bool:
        """True if the messages of a ``producer.batch()`` go to the broker in one round trip."""
        producer = Producer(self.connection, auto_declare=False)  # type: ignore[no-untyped-call]
        return bool(producer.supports_batch_publish)

    def is_dead(self, error: BaseException) -> bool:
        """Return True if `error` says that the broker is unreachable, not that one message was refused.

        kombu raises OperationalError for both, for example for a queue that is full or forbidden. On Redis, kombu
        counts any KeyError as an error of the connection.
        """
        try:
            errors = self.connection.connection_errors
        except Exception:  # not the address of a broker
            return True
        error = error.__cause__ or error
        return isinstance(error, errors) and not isinstance(error, KeyError)

    @cached_property
    def connection(self) -> Any:
        """Template of the pool's connections, built at the first use, when `app` is configured."""
        transport = self._app.connection_for_write().get_transport_cls()
        driver = transport.driver_name
        if driver == "redis":
            reuse_clients(transport.Channel)
        options = self._app.conf.broker_transport_options
        timeouts = TIMEOUTS[driver](options) if driver in TIMEOUTS else {}
        return self._app.connection_for_write(transport_options=timeouts)
