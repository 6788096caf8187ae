"""What the broker says of itself, by what it is: a Redis, a RabbitMQ, or another that Celery knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery import Celery

TIMEOUT = 3.0
"""Seconds to connect."""

VISIBILITY_TIMEOUT = 3600.0
"""kombu's own for a Redis: seconds after which it sends again what is not acknowledged."""

CONSUMER_TIMEOUT = 1800.0
"""RabbitMQ's own, since 3.8.17: seconds after which it closes the channel of who does not acknowledge. It tells nobody
whether it was changed."""


@dataclass(frozen=True, slots=True)
class BrokerServer:
    """The server behind a broker's address. What it does not say is "", or None."""

    kind: str = ""
    """"Redis", "RabbitMQ" …"""

    version: str = ""
    identity: str = ""
    """Of a Redis: the same for all who use the same process."""

    evicts: str = ""
    """Of a Redis: its ``maxmemory-policy``."""

    max_memory: int = 0
    """Of a Redis, in bytes; 0: no limit."""

    patience: float | None = None
    """Seconds for which a message may be unacknowledged: a Redis then sends it again, RabbitMQ closes the channel."""

    def __str__(self) -> str:
        return f"{self.kind} {self.version}".strip()


def broker_server(app: Celery) -> BrokerServer | str:
    """The broker of `app`; a text that says why, if it can't be reached."""
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
    except Exception as e:  # each transport has errors of its own
        return f"{type(e).__name__}: {e}"


def _redis(connection: Any, options: dict[str, Any]) -> BrokerServer:
    patience = float(options.get("visibility_timeout", VISIBILITY_TIMEOUT))
    try:
        info = connection.default_channel.client.info()
    except Exception:  # a user that may not ask can use it all the same
        return BrokerServer("Redis", patience=patience)
    valkey = info.get("server_name") == "valkey"
    return BrokerServer(
        "Valkey" if valkey else "Redis",
        str(info.get("valkey_version" if valkey else "redis_version", "")),
        str(info.get("run_id", "")),
        str(info.get("maxmemory_policy", "")),
        int(info.get("maxmemory", 0)),
        patience,
    )


def _amqp(connection: Any) -> BrokerServer:
    said = getattr(connection.connection, "server_properties", None) or {}
    kind, version = (_text(said.get(name, "")) for name in ("product", "version"))
    return BrokerServer(kind or "amqp", version, patience=CONSUMER_TIMEOUT if kind == "RabbitMQ" else None)


def _text(said: Any) -> str:
    return said.decode() if isinstance(said, bytes) else str(said)
