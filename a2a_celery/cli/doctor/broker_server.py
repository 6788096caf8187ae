"""Kind, version and limits of the broker: Redis, RabbitMQ or another transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery import Celery

TIMEOUT = 3.0
"""Seconds to connect."""

VISIBILITY_TIMEOUT = 3600.0
"""kombu's default for Redis: seconds until an unacknowledged message is redelivered."""

CONSUMER_TIMEOUT = 1800.0
"""RabbitMQ's default since 3.8.17: seconds until it closes the channel of a consumer that does not acknowledge. Clients
cannot read the configured value."""


@dataclass(frozen=True, slots=True)
class BrokerServer:
    """The broker's server. Unknown values are "" or None."""

    kind: str = ""
    """"Redis", "RabbitMQ" …"""

    version: str = ""
    identity: str = ""
    """Identity of a Redis process."""

    evicts: str = ""
    """``maxmemory-policy`` of a Redis."""

    max_memory: int = 0
    """``maxmemory`` of a Redis in bytes, or 0 for no limit."""

    ack_timeout: float | None = None
    """Seconds that a message may stay unacknowledged. Redis then redelivers it; RabbitMQ closes the channel."""

    def __str__(self) -> str:
        return f"{self.kind} {self.version}".strip()


def broker_server(app: Celery) -> BrokerServer | str:
    """Return the broker of `app`, or an error text if it cannot be reached."""
    try:
        with app.connection_for_write(connect_timeout=TIMEOUT) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0.1, timeout=TIMEOUT)
            match connection.transport.driver_type:
                case "redis":
                    return _redis(connection, dict(app.conf.broker_transport_options or {}))
                case "amqp":
                    return _amqp(connection)
                case other:
                    return BrokerServer(str(other))
    except Exception as e:  # each transport has its own errors
        return f"{type(e).__name__}: {e}"


def _redis(connection: Any, options: dict[str, Any]) -> BrokerServer:
    ack_timeout = float(options.get("visibility_timeout", VISIBILITY_TIMEOUT))
    try:
        info = connection.default_channel.client.info()
    except Exception:  # the user may lack the right to INFO
        return BrokerServer("Redis", ack_timeout=ack_timeout)
    valkey = info.get("server_name") == "valkey"
    return BrokerServer(
        "Valkey" if valkey else "Redis",
        str(info.get("valkey_version" if valkey else "redis_version", "")),
        str(info.get("run_id", "")),
        str(info.get("maxmemory_policy", "")),
        int(info.get("maxmemory", 0)),
        ack_timeout,
    )


def _amqp(connection: Any) -> BrokerServer:
    properties = getattr(connection.connection, "server_properties", None) or {}
    kind, version = (_text(properties.get(name, "")) for name in ("product", "version"))
    return BrokerServer(kind or "amqp", version, ack_timeout=CONSUMER_TIMEOUT if kind == "RabbitMQ" else None)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
