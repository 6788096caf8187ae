"""State of an installation, collected once for the checks of ``a2a doctor``, and the findings of the checks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import click
import httpx
from celery import Celery

from ...agents import Agent
from ...app import A2A
from ...dispatch import queue_of, unreadable_results, worker_reports
from ...errors import ConfigError, StoreUnavailable
from ...execution.agents.adapters import import_errors
from ...gateway.cards import signatures_line
from ...gateway.health import authentication_line, broker_line, settings_line, store_line
from ...integrations.kombu import broker_error_text
from ...settings import Settings
from ...store import Keys, SyncStore
from ...store.admin.metrics import read_metrics
from ...store.admin.start_check import Server, announced_workers, server_of, watchers
from ...store.admin.version_workers import VersionWorker, version_workers
from ...store.client.redis_clients import sentinel_timeouts
from ...store.webhooks.deliveries import deliveries
from ...store.webhooks.push_configs import secrets_in_use
from ..client.task_commands import DEFAULT_URL
from ..output import json_line
from .archive_check import StorageState, read_storage_state

BROKER_CONNECT_TIMEOUT = 3.0
"""Seconds to wait for a connection to the broker."""

VISIBILITY_TIMEOUT = 3600.0
"""kombu's default for Redis: seconds until an unacknowledged message is redelivered."""

CONSUMER_TIMEOUT = 1800.0
"""RabbitMQ's default since 3.8.17: seconds until RabbitMQ closes the channel of a consumer that does not acknowledge.
Clients cannot read the configured value."""


@dataclass(frozen=True, slots=True)
class BrokerServer:
    """Server of the broker, with its configuration. Unknown values are "", 0 or None."""

    kind: str = ""
    """Product, such as "Redis" or "RabbitMQ"."""

    version: str = ""
    identity: str = ""
    """``run_id`` of the Redis process."""

    evicts: str = ""
    """``maxmemory-policy`` of the Redis server."""

    max_memory: int = 0
    """``maxmemory`` of the Redis server in bytes, or 0 for no limit."""

    ack_timeout: float | None = None
    """Seconds that a message may stay unacknowledged. After that time, Redis redelivers the message, and RabbitMQ
    closes the channel."""

    def __str__(self) -> str:
        return f"{self.kind} {self.version}".strip()


def broker_server(app: Celery) -> BrokerServer | str:
    """Return the broker of `app`, or an error text if the broker cannot be reached."""
    try:
        options = _redis_timeouts(app)
        with app.connection_for_write(connect_timeout=BROKER_CONNECT_TIMEOUT, transport_options=options) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0.1, timeout=BROKER_CONNECT_TIMEOUT)
            match connection.transport.driver_type:
                case "redis":
                    return _redis(connection, dict(app.conf.broker_transport_options or {}))
                case "amqp":
                    return _amqp(connection)
                case other:
                    return BrokerServer(str(other))
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


def _redis_timeouts(app: Celery) -> dict[str, Any]:
    """Return the transport options that limit the time for which a Redis broker, or its Sentinels, may not respond."""
    if app.connection_for_write().get_transport_cls().driver_type != "redis":
        return {}
    of_sentinels = (app.conf.broker_transport_options or {}).get("sentinel_kwargs") or {}
    return {
        "socket_timeout": BROKER_CONNECT_TIMEOUT,
        "socket_connect_timeout": BROKER_CONNECT_TIMEOUT,
        "sentinel_kwargs": {**of_sentinels, **sentinel_timeouts()},
    }


def _redis(connection: Any, options: dict[str, Any]) -> BrokerServer:
    ack_timeout = float(options.get("visibility_timeout", VISIBILITY_TIMEOUT))
    try:
        info = connection.default_channel.client.info()
    except Exception:  # the user may not have permission for INFO
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


GATEWAY_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Webhooks:
    """Secrets in use by webhooks, and the numbers of webhooks with problems."""

    secrets: frozenset[str] = frozenset()
    """Fingerprints of the secrets that encrypt the push configs."""

    failing: int = 0
    """Number of webhooks whose last post failed and is retried."""

    dead: int = 0
    """Number of webhooks whose deliveries were given up."""


@dataclass(frozen=True, slots=True)
class Work:
    """Properties of the runs of an agent."""

    limit: float | None = None
    """Time limit in seconds, or None."""

    late: bool = False
    """True if the message is acknowledged when the run ends."""

    plain: bool = False
    """True for an exposed Celery task."""


@dataclass(frozen=True, slots=True)
class Survey:
    """State of an installation. An error text replaces a value that cannot be read."""

    settings: Settings
    store: Server | str
    watchers: tuple[Mapping[str, Any], ...] | str
    webhooks: Webhooks = Webhooks()
    dead_letters: int = 0
    storage: StorageState | None = None
    """None if the store is unreachable."""

    broker: BrokerServer | str = field(default_factory=BrokerServer)

    lines: Mapping[str, str] = field(default_factory=dict)
    """Lines that a gateway logs when it starts, by subject, such as "store" or "settings"."""

    workers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Report of each worker by Celery node name. The report of a worker without the command contains an "error"."""

    announced: tuple[Mapping[str, Any], ...] = ()
    """Announcements of the workers that Celery's remote control cannot reach."""

    version_tasks: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Number of open tasks by agent and by version of the agent's code."""

    version_workers: Sequence[VersionWorker] = ()
    """Version queues, and the workers that consume them."""

    queues: Mapping[str, str | None] = field(default_factory=dict)
    """Queue of each agent for runs without a `route`, or None if the agent's options specify no queue."""

    import_errors: Mapping[str, str] = field(default_factory=dict)
    """Import errors by agent."""

    work: Mapping[str, Work] = field(default_factory=dict)
    """Properties of runs by agent."""

    unreadable_results: str | None = None
    """Reason why watchers cannot read the results of Celery tasks, with a remedy, or None if watchers can."""

    ignores_results: bool = False
    """True if Celery tasks do not store their results by default (`task_ignore_result`)."""

    gateway: str = ""
    gateway_named: bool = False
    """True if the URL of the gateway is configured."""

    gateway_health: Mapping[str, Any] | str = ""


def survey(a2a: A2A, url: str | None, timeout: float) -> Survey:
    """Collect the state of the installation.

    Args:
        url: URL of the gateway, or None for the configured URL.
        timeout: Seconds to wait for the workers' replies.
    """
    settings, app = a2a.settings, a2a.celery
    store = SyncStore(settings.store_url)
    server: Server | str
    watching: tuple[Mapping[str, Any], ...] | str
    webhooks, dead_letters = Webhooks(), 0
    announcements: tuple[Mapping[str, Any], ...] = ()
    version_tasks: Mapping[tuple[str, str], int] = {}
    with_version: list[VersionWorker] = []
    storage: StorageState | None = None
    keys = Keys(settings.key_prefix)
    try:
        server = server_of(store)
        watching = tuple(json.loads(report) for report in store.run(watchers(keys)))
        announcements = tuple(json.loads(text) for text in store.run(announced_workers(keys)))
        webhooks = _webhooks(store, keys)
        metrics = store.run(read_metrics(keys))
        dead_letters, version_tasks = metrics.dead_letters, metrics.counted("version")
        with_version = store.run(version_workers(keys))
        storage = read_storage_state(store, keys, settings)
    except (StoreUnavailable, ConfigError) as e:
        server = watching = str(e)
    finally:
        store.close()
    broker = broker_server(app)
    address = url or settings.public_url
    return Survey(
        settings=settings,
        store=server,
        watchers=watching,
        webhooks=webhooks,
        dead_letters=dead_letters,
        storage=storage,
        broker=broker,
        lines={
            "store": store_line(a2a.loaded),
            "broker": broker_line(app),
            "authentication": authentication_line(a2a.loaded),
            "signatures of webhooks": signatures_line(settings),
            "settings": settings_line(a2a.loaded),
        },
        workers={} if isinstance(broker, str) else worker_reports(app, timeout),
        announced=announcements,
        version_tasks=version_tasks,
        version_workers=with_version,
        queues={name: queue_of(app, agent) for name, agent in a2a.agents.items()},
        import_errors=import_errors(a2a.agents.values()),
        work={name: _work(agent) for name, agent in a2a.agents.items()},
        unreadable_results=unreadable_results(app),
        ignores_results=bool(app.conf.task_ignore_result),
        gateway=(address or DEFAULT_URL).rstrip("/"),
        gateway_named=address is not None,
        gateway_health=gateway_health((address or DEFAULT_URL).rstrip("/")),
    )


def _webhooks(store: SyncStore, keys: Keys) -> Webhooks:
    failing = sum(delivery.state == "failing" for delivery in deliveries(store, keys))
    dead = sum(delivery.state == "dead" for delivery in deliveries(store, keys, dead=True))
    return Webhooks(store.run(secrets_in_use(keys)), failing, dead)


def reporting(survey: Survey) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the workers that sent a complete report."""
    return [(node, report) for node, report in sorted(survey.workers.items()) if "settings" in report]


def _work(agent: Agent) -> Work:
    if agent.kind != "task":
        return Work(agent.time_limit)
    limits = (agent.time_limit, agent.code.time_limit, agent.code.soft_time_limit)
    return Work(min((limit for limit in limits if limit), default=None), bool(agent.code.acks_late), plain=True)


def gateway_health(url: str) -> Mapping[str, Any] | str:
    """Return the health report of the gateway at `url`, or the reason why there is none."""
    try:
        answer = httpx.get(f"{url}/health/ready", timeout=GATEWAY_TIMEOUT)
        reply = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL) as e:
        return f"{type(e).__name__}: {e}"
    except ValueError:
        return f"it responds {answer.status_code}, unlike a gateway"
    return reply if isinstance(reply, dict) else "it does not respond like a gateway"


Level = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of a check. The level "wrong" means that a feature does not work as documented, and "note" is a
    recommendation."""

    level: Level
    about: str
    text: str
    check: str = ""

    def __str__(self) -> str:
        return f"{self.level:<5}  {self.about}: {self.text}"

    def as_json(self) -> str:
        """Return the finding as one line of JSON."""
        fields = {"check": self.check, "level": self.level, "about": self.about, "text": self.text}
        return json_line(fields)


def ok(about: str, text: str) -> Finding:
    """Return a finding of the level "ok"."""
    return Finding("ok", about, text)


def note(about: str, text: str) -> Finding:
    """Return a finding of the level "note"."""
    return Finding("note", about, text)


def wrong(about: str, text: str) -> Finding:
    """Return a finding of the level "wrong"."""
    return Finding("wrong", about, text)


Check = Callable[[Survey], Iterator[Finding]]
