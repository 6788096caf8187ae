"""State of an installation, collected once for the checks of ``a2a doctor``."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from typing import Any

import httpx

from ...agents import Agent
from ...app import A2A
from ...archive import Filter, open_archive
from ...crypto.sealing import require_secrets, sealer_of
from ...dispatch import queue_of, results_problem, worker_reports
from ...errors import A2ACeleryError, ConfigError, StoreUnavailable
from ...execution.agents.adapters import import_errors
from ...features.commands import CHECKS as FEATURE_CHECKS
from ...gateway.health import start_lines
from ...lifecycle.references import Scope
from ...settings import Settings
from ...store import Keys, SyncStore
from ...store.admin.metrics import FleetMetrics, read_metrics
from ...store.admin.scan import TaskSummary, list_summaries
from ...store.admin.schema import open_store, require_compatible
from ...store.admin.start_check import Server, announced_workers, secrets_in_use, server_of, watchers
from ...store.admin.version_workers import VersionWorker, version_workers
from ...store.blobs.cleanup import blobs_in_use, require_blobs_in
from ..client.task_commands import DEFAULT_URL
from .broker_server import BrokerServer, broker_server
from .findings import Finding

GATEWAY_TIMEOUT = 5.0

MAX_WAITING = 10_000
"""Maximum number of waiting runs, and of waiting tasks, that are read from a long list."""

ENDS_SOON_US = 3_600_000_000
"""µs before the end of its `input_timeout` from which a waiting task counts as ending soon, if more than half of the
timeout has passed."""

Report = Mapping[str, Any]
"""Report of a process by field."""


@dataclass(frozen=True, slots=True)
class Survey:
    """State of an installation.

    Attributes:
        store: Server of the store, or None if it cannot be reached.
        store_error: Reason why the store cannot be read, or "". All values from the store are then empty.
        broker: Server of the broker, or an error text if it cannot be reached.
        queues: Queue of each agent for runs without a `route`, or None if the agent's options specify no queue.
        limits: Time limit of each agent in seconds. Without one, inf if messages are acknowledged late, otherwise 0.
        lines: Lines that a gateway logs when it starts; see `start_lines`.
        workers: Report of each worker that replied, of any fleet, by Celery node name. A worker whose app has no A2A
            object has a report with an "error", the queues and, as agents, the exposed Celery tasks of the worker.
        announced: Announcements of the workers that Celery's remote control cannot reach.
        watchers: Report of each watcher, by the name of the process in findings.
        waits: Seconds for which each run has waited, among the first `MAX_WAITING` runs, by the queue of its agent.
        ending_questions: Number of tasks, among the first `MAX_WAITING`, whose `input_timeout` ends soon.
        secrets: Fingerprints of the secrets that encrypt data in the store.
        feature_findings: Findings of the checks that belong to features, by the names of the checks.
        start_error: Reason why no gateway with these settings starts, or "".
        import_errors: Import errors by agent.
        gateway_named: True if the URL of the gateway is configured.
        gateway_health: Health report of the gateway, or the reason why there is none.
    """

    settings: Settings
    store: Server | None
    store_error: str
    broker: BrokerServer | str
    queues: Mapping[str, str | None]
    limits: Mapping[str, float]
    lines: Mapping[str, str]
    gateway: str
    gateway_named: bool
    gateway_health: Report | str
    import_errors: Mapping[str, str] = field(default_factory=dict)
    results_problem: str = ""
    workers: Mapping[str, Report] = field(default_factory=dict)
    announced: Sequence[Report] = ()
    watchers: Mapping[str, Report] = field(default_factory=dict)
    version_workers: Sequence[VersionWorker] = ()
    metrics: FleetMetrics = field(default_factory=lambda: FleetMetrics(0, {}, {}, 0, 0, {}))
    waits: Mapping[str, Sequence[float]] = field(default_factory=dict)
    ending_questions: int = 0
    secrets: frozenset[str] = frozenset()
    feature_findings: Mapping[str, Sequence[Finding]] = field(default_factory=dict)
    start_error: str = ""
    archive_error: str = ""

    @property
    def other_fleets(self) -> dict[str, Report]:
        """Workers of other fleets on the same broker, which have another store or key prefix, and consume no queue of
        the agents of this app. Fleets may share a broker, but not a queue."""
        identity = None if self.store is None else self.store.identity
        return {
            node: report
            for node, report in sorted(self.workers.items())
            if "settings" in report and consumed_queues(report).isdisjoint(self.queues.values())
            if report["settings"].get("key_prefix") != self.settings.key_prefix
            or (identity is not None and report["store"].get("identity", identity) != identity)
        }

    @property
    def own_workers(self) -> dict[str, Report]:
        """Workers that belong to no other fleet."""
        others = self.other_fleets
        return {node: report for node, report in sorted(self.workers.items()) if node not in others}

    @property
    def complete_workers(self) -> dict[str, Report]:
        """Workers of this fleet that sent a complete report."""
        return {node: report for node, report in self.own_workers.items() if "settings" in report}

    @property
    def processes(self) -> dict[str, Report]:
        """Workers with a complete report, and watchers."""
        return {**self.complete_workers, **self.watchers}


def consumed_queues(report: Report) -> set[str]:
    """Return the queues that a worker consumes, including those that it does not consume because of a drain."""
    return {*report["queues"], *report.get("drained", ())}


def survey(a2a: A2A, url: str | None, timeout: float) -> Survey:
    """Collect the state of the installation.

    Args:
        url: URL of the gateway, or None for the configured URL.
        timeout: Seconds to wait for the workers' replies.
    """
    app, broker, address = a2a.celery, broker_server(a2a.celery), url or a2a.settings.public_url
    gateway = (address or DEFAULT_URL).rstrip("/")
    state = Survey(
        settings=a2a.settings,
        store=None,
        store_error="",
        broker=broker,
        queues={name: queue_of(app, agent) for name, agent in a2a.agents.items()},
        limits={name: _limit(agent) for name, agent in a2a.agents.items()},
        lines=start_lines(app, a2a.loaded),
        gateway=gateway,
        gateway_named=address is not None,
        gateway_health=gateway_health(gateway),
        import_errors=import_errors(a2a.agents.values()),
        results_problem=results_problem(app, a2a.agents.values()),
        workers={} if isinstance(broker, str) else _workers(a2a, timeout),
    )
    with closing(SyncStore(a2a.settings.store_url)) as store:
        try:
            state = replace(state, store=server_of(store))
            return _with_stored(state, store, Keys(a2a.settings.key_prefix))
        except (StoreUnavailable, ConfigError) as e:
            return replace(state, store_error=str(e))


def _limit(agent: Agent) -> float:
    if agent.kind != "task":
        return agent.time_limit or 0.0
    limits = filter(None, (agent.time_limit, agent.code.time_limit, agent.code.soft_time_limit))
    return min(limits, default=inf if agent.code.acks_late else 0.0)


def _workers(a2a: A2A, timeout: float) -> dict[str, Report]:
    exposed = {name: agent.code.name for name, agent in a2a.agents.items() if agent.kind == "task"}
    reports = worker_reports(a2a.celery, timeout)
    for node, report in reports.items():
        if "tasks" in report:
            agents = [name for name, task in exposed.items() if task in report["tasks"]]
            reports[node] = {**report, "agents": agents}
    return {**reports}


def _with_stored(state: Survey, store: SyncStore, keys: Keys) -> Survey:
    workers_of_versions = store.run(version_workers(keys))
    reports = [json.loads(report) for report in store.run(watchers(keys))]
    secrets, archive_url = store.run(secrets_in_use(keys)), state.settings.archive_url
    return replace(
        state,
        announced=[json.loads(report) for report in store.run(announced_workers(keys))],
        watchers={f"watcher {report['watcher']}": report for report in reports},
        version_workers=workers_of_versions,
        metrics=store.run(read_metrics(keys)),
        waits=_waits(store, keys, state.queues),
        ending_questions=sum(map(_ends_soon, islice(list_summaries(store, keys, keys.pauses), MAX_WAITING))),
        secrets=secrets,
        feature_findings={name: list(check(store, keys)) for name, check in FEATURE_CHECKS.items()},
        start_error=_start_error(store, keys, state.settings, secrets),
        archive_error="" if archive_url is None else asyncio.run(_archive_error(archive_url)),
    )


def _waits(store: SyncStore, keys: Keys, queues: Mapping[str, str | None]) -> dict[str, list[float]]:
    waits = defaultdict[str, list[float]](list)
    for task in islice(list_summaries(store, keys, keys.dispatch), MAX_WAITING):
        seconds = (task.now_us - task.waiting_since_us) / 1_000_000
        queue = queues.get(task.agent)
        if queue is not None and seconds >= 0:  # a run of the future waits for its time, not for a worker
            waits[queue].append(seconds)
    return waits


def _ends_soon(task: TaskSummary) -> bool:
    return task.score - task.now_us < min(ENDS_SOON_US, task.now_us - task.since_us)


def _start_error(store: SyncStore, keys: Keys, settings: Settings, secrets: frozenset[str]) -> str:
    """Run the checks of a starting gateway, without a change of the store."""
    try:
        require_compatible(open_store(store, keys, stamp=False), settings.archive_url is not None)
        require_secrets(sealer_of(settings.secret_keys), secrets)
        require_blobs_in(settings, store.run(blobs_in_use(keys)))
    except ConfigError as e:
        return str(e)
    return ""


async def _archive_error(url: str) -> str:
    try:
        async with aclosing(open_archive(url)) as archive:
            await archive.page(Filter(Scope(), 0), size=0)
    except A2ACeleryError as e:
        return str(e)
    return ""


def gateway_health(url: str) -> Report | str:
    """Return the health report of the gateway at `url`, or the reason why there is none.

    The request uses no proxy of the environment, which would try to reach a gateway on its own loopback address.
    """
    try:
        with httpx.Client(transport=httpx.HTTPTransport(), timeout=GATEWAY_TIMEOUT) as http:
            response = http.get(f"{url}/health/ready")
        return {**response.json()}
    except (httpx.HTTPError, httpx.InvalidURL) as e:
        return f"{type(e).__name__}: {e}"
    except (ValueError, TypeError):
        return f"it responds {response.status_code}, unlike a gateway"
