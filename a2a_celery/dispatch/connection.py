"""How long a connection to the broker waits for a broker that takes what it is sent and is silent.

Celery's own default is for ever, which is until TCP gives up: a quarter of an hour, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from celery import Celery
from kombu import pools
from kombu.messaging import Producer

from .redis_clients import keep_clients

CONNECT_TIMEOUT = 4.0
ANSWER_TIMEOUT = 5.0
"""Seconds. A broker answers in milliseconds; one that takes this long is in trouble, and the store keeps the run."""


def redis_patience(given: Mapping[str, Any]) -> dict[str, Any]:
    """Transport options for Redis, without those that are `given` already."""
    ours = {
        "socket_timeout": ANSWER_TIMEOUT,
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_keepalive": True,
    }
    return {name: value for name, value in ours.items() if name not in given}


def amqp_patience(given: Mapping[str, Any]) -> dict[str, Any]:
    """Transport options for RabbitMQ, without those that are `given` already.

    A publish is confirmed: without it, what is sent into a connection that is dead counts as published.
    """
    ours = {"confirm_publish": True, "read_timeout": ANSWER_TIMEOUT, "write_timeout": ANSWER_TIMEOUT}
    return {name: value for name, value in ours.items() if name not in given}


PATIENCE: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {"redis": redis_patience, "py-amqp": amqp_patience}
"""By the name of kombu's driver; other drivers are left as they are."""


class PublishingPool:
    """Connections of our own to the broker that `app` publishes to: `app`'s have the patience that it gave them."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def acquire(self) -> Any:
        """A producer, to be used in a ``with``; waits for one that is free."""
        return pools.producers[self.connection].acquire(block=True)

    @property
    def batches(self) -> bool:
        """Whether what is published in a ``producer.batch()`` goes to the broker in one round trip."""
        producer = Producer(self.connection, auto_declare=False)  # type: ignore[no-untyped-call]
        return bool(producer.supports_batch_publish)

    def is_dead(self, error: BaseException) -> bool:
        """Whether `error` says that the broker can't be reached, and not that it, or kombu, refuses one message.

        kombu calls both the same, an OperationalError: a queue that is full or forbidden, too. And on Redis it counts
        any KeyError as an error of the connection.
        """
        try:
            errors = self.connection.connection_errors
        except Exception:  # the address is none of a broker
            return True
        error = error.__cause__ or error
        return isinstance(error, errors) and not isinstance(error, KeyError)

    @cached_property
    def connection(self) -> Any:
        """What the connections of the pool are like; made at the first use, when `app` is configured."""
        transport = self._app.connection_for_write().get_transport_cls()
        driver = transport.driver_name
        if driver == "redis":
            keep_clients(transport.Channel)
        given = self._app.conf.broker_transport_options
        ours = PATIENCE[driver](given) if driver in PATIENCE else {}
        return self._app.connection_for_write(transport_options=ours)
