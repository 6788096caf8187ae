"""Server of the broker, with the settings that ``a2a doctor`` checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import click
from celery import Celery

from ...errors import BrokerUnavailable
from ...integrations.kombu import broker_error_text, require_confirmed_messages
from ...store.admin.start_check import product_of
from ...store.client.redis_clients import sentinel_timeouts

CONNECT_TIMEOUT = 3.0
"""Seconds to wait for a connection to the broker, and for its confirmation of a message."""

VISIBILITY_TIMEOUT = 3600.0
"""kombu's default for Redis: seconds until an unacknowledged message is redelivered."""

CONSUMER_TIMEOUT = 1800.0
"""RabbitMQ's default since 3.8.17: seconds until RabbitMQ closes the channel of a consumer that does not acknowledge.
Clients cannot read the configured value."""


@dataclass(frozen=True, slots=True)
class BrokerServer:
    """Server of the broker.

    Attributes:
        kind: Product, such as "Redis" or "RabbitMQ".
        version: Version, or "" if it is unknown.
        ack_timeout: Seconds that a message may stay unacknowledged, or None for no limit. After that time, Redis
            redelivers the message, and RabbitMQ closes the channel.
        info: Reply of Redis to INFO. Empty for other brokers, and if the user may not read it.
    """

    kind: str
    version: str = ""
    ack_timeout: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind} {self.version}".strip()


def broker_server(app: Celery) -> BrokerServer | str:
    """Return the broker of `app`, or an error text if the broker cannot be reached or confirms no messages."""
    options: dict[str, Any] = dict(app.conf.broker_transport_options or {})
    try:
        timeouts: dict[str, Any] = {}
        if app.connection_for_write().get_transport_cls().driver_type == "redis":
            sentinels = {**(options.get("sentinel_kwargs") or {}), **sentinel_timeouts()}
            timeouts = {"socket_timeout": CONNECT_TIMEOUT, "socket_connect_timeout": CONNECT_TIMEOUT}
            timeouts["sentinel_kwargs"] = sentinels
        with app.connection_for_write(connect_timeout=CONNECT_TIMEOUT, transport_options=timeouts) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0.1, timeout=CONNECT_TIMEOUT)
            require_confirmed_messages(connection, CONNECT_TIMEOUT)
            match connection.transport.driver_type:
                case "redis":
                    return _redis(connection, float(options.get("visibility_timeout", VISIBILITY_TIMEOUT)))
                case "amqp":
                    return _amqp(connection)
                case other:
                    return BrokerServer(str(other))
    except BrokerUnavailable as e:
        return str(e)
    except Exception as e:  # each transport has its own errors
        return broker_error_text(e)


def require_broker(app: Celery) -> None:
    """Raise a click.ClickException if the broker of `app` cannot be reached."""
    broker = broker_server(app)
    if isinstance(broker, str):
        raise unavailable_broker(broker)


def unavailable_broker(text: str) -> click.ClickException:
    """Return the error of a command for a broker that failed with the error `text`."""
    return click.ClickException(f"{text}: is the broker up? See CELERY_BROKER_URL")


def _redis(connection: Any, ack_timeout: float) -> BrokerServer:
    try:
        info = connection.default_channel.client.info()
    except Exception:  # the user may not have permission for INFO
        return BrokerServer("Redis", ack_timeout=ack_timeout)
    return BrokerServer(*product_of(info), ack_timeout, info)


def _amqp(connection: Any) -> BrokerServer:
    properties = getattr(connection.connection, "server_properties", None) or {}
    values = (properties.get(name, "") for name in ("product", "version"))
    kind, version = (value.decode() if isinstance(value, bytes) else str(value) for value in values)
    return BrokerServer(kind or "amqp", version, CONSUMER_TIMEOUT if kind == "RabbitMQ" else None)
