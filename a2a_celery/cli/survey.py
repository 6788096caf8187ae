"""What ``a2a doctor`` asks the installation, once, before anything is judged: see `diagnosis`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from celery import Celery

from ..agents import Agent
from ..app import A2A
from ..config import Settings
from ..dispatch import entry_name
from ..errors import StoreUnavailable
from ..store import Keys, SyncStore
from ..store.deliveries import deliveries
from ..store.installation import Server, server_of, watchers
from ..store.push_configs import secrets_in_use
from .client import DEFAULT_URL

BROKER_TIMEOUT = 3.0
GATEWAY_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Webhooks:
    """What is owed to them."""

    secrets: frozenset[str] = frozenset()
    """Fingerprints of the secrets that their configs are sealed with; none: there are no configs."""

    failing: int = 0
    dead: int = 0
    """How many were given up."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found. Where an answer is missing there is a text instead that says why."""

    settings: Settings
    store: Server | str
    watchers: tuple[Mapping[str, Any], ...] | str
    webhooks: Webhooks = Webhooks()
    broker: str = ""
    """"" : it was reached."""

    workers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What each worker reports (see ``execution.report``), by Celery's name for it; "error" if it does not know how."""

    queues: Mapping[str, str | None] = field(default_factory=dict)
    """The queue that each agent's runs go to, where no `route` says another; None: its options name none."""

    gateway: str = ""
    gateway_named: bool = False
    """Whether somebody said where the gateway is."""

    gateway_says: Mapping[str, Any] | str = ""


def survey(found: A2A, url: str | None, timeout: float) -> Survey:
    """Asks everybody; workers have `timeout` seconds to answer."""
    settings, app = found.settings, found.celery
    store = SyncStore(settings.store_url)
    server: Server | str
    watching: tuple[Mapping[str, Any], ...] | str
    webhooks = Webhooks()
    keys = Keys(settings.key_prefix)
    try:
        server = server_of(store)
        watching = tuple(json.loads(said) for said in store.run(watchers(keys)))
        webhooks = _webhooks(store, keys)
    except StoreUnavailable as e:
        server = watching = str(e)
    finally:
        store.close()
    broker = _broker(app)
    named = url or settings.public_url
    return Survey(
        settings=settings,
        store=server,
        watchers=watching,
        webhooks=webhooks,
        broker=broker,
        workers={} if broker else _workers(app, timeout),
        queues={name: _queue(app, agent) for name, agent in found.agents.items()},
        gateway=(named or DEFAULT_URL).rstrip("/"),
        gateway_named=named is not None,
        gateway_says=_gateway((named or DEFAULT_URL).rstrip("/")),
    )


def _webhooks(store: SyncStore, keys: Keys) -> Webhooks:
    failing = sum(row.how == "failing" for row in deliveries(store, keys))
    dead = sum(row.how == "dead" for row in deliveries(store, keys, dead=True))
    return Webhooks(store.run(secrets_in_use(keys)), failing, dead)


def _broker(app: Celery) -> str:
    try:
        with app.connection_for_write(connect_timeout=BROKER_TIMEOUT) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0.1, timeout=BROKER_TIMEOUT)
    except Exception as e:  # each transport has errors of its own
        return f"{type(e).__name__}: {e}"
    return ""


def _workers(app: Celery, timeout: float) -> dict[str, Mapping[str, Any]]:
    answers = app.control.broadcast("a2a_report", reply=True, timeout=timeout) or []
    return {node: report for answer in answers for node, report in answer.items()}


def _queue(app: Celery, agent: Agent) -> str | None:
    name, options = entry_name(agent.name), dict(agent.options)
    if agent.kind == "task":
        name = agent.code.name
        if getattr(agent.code, "queue", None):
            options.setdefault("queue", agent.code.queue)
    queue = app.amqp.router.route(options, name).get("queue")
    return None if queue is None else str(getattr(queue, "name", queue))


def _gateway(url: str) -> Mapping[str, Any] | str:
    try:
        answer = httpx.get(f"{url}/health/ready", timeout=GATEWAY_TIMEOUT)
        said = answer.json()
    except httpx.HTTPError as e:
        return f"{type(e).__name__}: {e}"
    except ValueError:
        return f"it answers {answer.status_code}, and not as a gateway does"
    return said if isinstance(said, dict) else "it does not answer as a gateway does"
