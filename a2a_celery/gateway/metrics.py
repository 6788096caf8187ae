"""``/metrics`` for Prometheus: metrics of the whole deployment from the store, and metrics of this gateway.

Several processes of one gateway share their metrics in the folder PROMETHEUS_MULTIPROC_DIR, because a scrape reaches
only one of the processes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from a2a.types import TaskState
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as PrometheusMetric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import StoreUnavailable
from ..features.metrics import FeatureMetrics, read_feature_metrics
from ..lifecycle.states import TERMINAL, short_name
from ..store import AsyncStore, Keys
from ..store.admin.metrics import FleetMetrics, read_metrics
from ..store.log.pages import LogPage
from ..telemetry import names
from ..telemetry.names import Metric, package_metrics

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable of prometheus_client with the path of the folder for the metrics of processes that share a
port."""

MAX_AGE = 1.0
"""Seconds for which the store's metrics are reused, so that frequent scrapes do not load the store."""

LAG_BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class Metrics:
    """Metrics of a gateway and their endpoint. The store's counters start at 0 for each of `agents`."""

    def __init__(self, store: AsyncStore, keys: Keys, agents: Iterable[str], clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._clock = clock
        self._keys = keys
        self._agents = tuple(agents)
        self._registry = registry = CollectorRegistry(auto_describe=False)
        requests, limited, streams, lag = names.REQUESTS, names.REFUSALS, names.OPEN_STREAMS, names.TAIL_LAG
        callers = names.REFUSED_CALLERS
        self._requests = Counter(requests.name, requests.help, requests.labels, registry=registry)
        self._limited = Counter(limited.name, limited.help, limited.labels, registry=registry)
        self._refused_callers = Counter(callers.name, callers.help, callers.labels, registry=registry)
        self._streams = Gauge(
            streams.name, streams.help, streams.labels, registry=registry, multiprocess_mode="livesum"
        )
        self._lag = Histogram(lag.name, lag.help, buckets=LAG_BOUNDS, registry=registry)
        self._clock_lead = 0.0
        self._store_metrics: tuple[FleetMetrics, FeatureMetrics] | None = None
        self._read_at = float("-inf")
        self._read_task: asyncio.Task[tuple[FleetMetrics, FeatureMetrics]] | None = None

    def routes(self) -> list[Route]:
        return [Route("/metrics", self._metrics)]

    async def start(self) -> None:
        """Remove the gauges of dead processes, and measure the offset between this process's clock and the store's
        clock."""
        drop_dead_processes()
        with suppress(StoreUnavailable):
            await self._read_store()

    def count_request(self, agent: str, operation: str, outcome: str) -> None:
        """Count a request with its outcome: "ok", "disconnected" or the class of the A2A error."""
        self._requests.labels(agent, operation, outcome).inc()

    def declare_limits(self, agent: str, limits: Iterable[str]) -> None:
        """Start the series of each limit at 0, so that alerts work before a limit is reached."""
        for limit in limits:
            self._limited.labels(agent, limit)

    def count_limit_error(self, agent: str, limit: str) -> None:
        """Count a request that exceeded `limit`."""
        self._limited.labels(agent, limit).inc()

    def declare_refused_callers(self, reasons: Iterable[str]) -> None:
        """Start the series of each reason at 0, so that alerts work before a caller is refused."""
        for reason in reasons:
            self._refused_callers.labels(reason)

    def count_refused_caller(self, reason: str) -> None:
        """Count a request that was refused because of its caller."""
        self._refused_callers.labels(reason).inc()

    @contextmanager
    def open_stream(self, agent: str) -> Iterator[None]:
        """Count an open stream inside the ``with`` block."""
        gauge = self._streams.labels(agent)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def lag_observer(self) -> Callable[[LogPage], None]:
        """Return a function that records the lag of the oldest event on a log page.

        A page whose oldest event was recorded before this call is ignored, because the reader had not connected yet.
        """
        return partial(self._observe_page, self._store_time())

    def _observe_page(self, began: float, page: LogPage) -> None:
        if page.entries and page.entries[0].recorded_us / 1e6 >= began:
            self.observe_lag(page.entries[0].recorded_us)

    def observe_lag(self, recorded_us: int) -> None:
        """Record the lag of an event that was recorded at `recorded_us`, a time in µs by the store's clock."""
        self._lag.observe(max(0.0, self._store_time() - recorded_us / 1e6))

    def _store_time(self) -> float:
        return self._clock.time() - self._clock_lead

    async def _metrics(self, _: Request) -> Response:
        try:
            store_metrics = await self.store_metrics()
        except StoreUnavailable:
            return PlainTextResponse("the store is unavailable\n", status_code=503)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(FleetCollector(*store_metrics, self._agents))
        exposition = generate_latest(registry) + generate_latest(self._process_registry())
        return Response(exposition, media_type=CONTENT_TYPE_LATEST)

    async def store_metrics(self) -> tuple[FleetMetrics, FeatureMetrics]:
        """Return the store's metrics. Concurrent scrapes share one read, including its failure."""
        if self._store_metrics is None or self._clock.monotonic() - self._read_at > MAX_AGE:
            if self._read_task is None or self._read_task.done():
                self._read_task = asyncio.create_task(self._read_store(), name="a2a-metrics")
            self._store_metrics = await asyncio.shield(self._read_task)
            self._read_at = self._clock.monotonic()
        return self._store_metrics

    async def _read_store(self) -> tuple[FleetMetrics, FeatureMetrics]:
        asked_at, began = self._clock.time(), self._clock.monotonic()
        store_metrics, posts = await asyncio.gather(
            self._store.run(read_metrics(self._keys)), self._store.run(read_feature_metrics(self._keys))
        )
        self._clock_lead = asked_at + (self._clock.monotonic() - began) / 2 - store_metrics.now_us / 1e6
        return store_metrics, posts

    def _process_registry(self) -> CollectorRegistry:
        if FOLDER not in os.environ:
            return package_metrics(self._registry)
        return package_metrics(MultiProcessCollector(None))  # type: ignore[no-untyped-call]


def drop_dead_processes() -> None:
    """Remove the gauges of dead processes. The counters of these processes remain."""
    if FOLDER not in os.environ:
        return
    for path in Path(os.environ[FOLDER]).glob("gauge_live*_*.db"):
        pid = path.stem.rpartition("_")[2]
        if pid.isdecimal() and not _is_alive(int(pid)):
            mark_process_dead(int(pid))  # type: ignore[no-untyped-call]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


LOST = ("again", "failed", "canceled", "returned")
"""Values of the label ``outcome`` of the metric `RUNS_LOST`."""

TIMES = {"queue": names.RUN_QUEUE, "first": names.RUN_FIRST_EVENT, "run": names.RUN_TIME, "cancel": names.CANCEL_TIME}


class FleetCollector(Collector):
    """Metrics of the whole deployment, from the store. The counters start at 0 for each of `agents`.

    Each gateway exports the same values: scrape one gateway, or aggregate the values with ``max``.
    """

    def __init__(self, store_metrics: FleetMetrics, posts: FeatureMetrics, agents: Iterable[str]) -> None:
        self._store_metrics = store_metrics
        self._posts = posts
        self._agents = tuple(agents)

    def collect(self) -> Iterable[PrometheusMetric]:
        """Yield the metrics in the format of prometheus_client."""
        store_metrics = self._store_metrics
        yield self._by_agent(names.TASKS_ENDED, "ended", {str(int(state)): _short(state) for state in sorted(TERMINAL)})
        yield self._by_agent(names.RUNS_LOST, "lost", {outcome: outcome for outcome in LOST})
        retry_counts = {agent: times for (agent, _), times in store_metrics.counted("retried").items()}
        yield self._counter_family(names.RUNS_RETRIED, retry_counts)
        for kind, metric in TIMES.items():
            yield self._times(kind, metric)
        yield _gauge(names.RUNS, {(phase,): many for phase, many in store_metrics.runs.items()})
        ages = dict.fromkeys(self._agents, 0.0) | dict(store_metrics.oldest)
        yield _gauge(names.QUEUE_AGE, {(agent,): age for agent, age in ages.items()})
        yield _gauge(names.PAUSES, {(): store_metrics.paused})
        yield _gauge(names.DEAD_LETTERS, {(): store_metrics.resubmittable})
        yield _gauge(names.VERSION_TASKS, {(*key,): tasks for key, tasks in store_metrics.counted("version").items()})
        archive_counts = {agent: times for (agent, _), times in store_metrics.counted("archived").items()}
        yield self._counter_family(names.TASKS_ARCHIVED, archive_counts)
        yield _gauge(
            names.ARCHIVE_WAITING, {("due",): store_metrics.to_archive, ("refused",): store_metrics.archive_refused}
        )
        yield _gauge(names.ARCHIVE_LAG, {(): store_metrics.archive_lag})
        posts = CounterMetricFamily(names.WEBHOOK_POSTS.name, names.WEBHOOK_POSTS.help, labels=["outcome"])
        for outcome in ("delivered", "failed", "given_up"):
            posts.add_metric([outcome], getattr(self._posts, outcome))
        yield posts
        yield _gauge(names.WEBHOOKS, {(state,): getattr(self._posts, state) for state in ("waiting", "dead")})

    def _by_agent(self, metric: Metric, kind: str, labels: dict[str, str]) -> PrometheusMetric:
        counts = self._store_metrics.counted(kind)
        family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        for agent in dict.fromkeys([*self._agents, *(agent for agent, _ in counts)]):
            for label, name in labels.items():
                family.add_metric([agent, name], counts.get((agent, label), 0))
        return family

    def _counter_family(self, metric: Metric, counts: dict[str, int]) -> PrometheusMetric:
        family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        for agent in dict.fromkeys([*self._agents, *counts]):
            family.add_metric([agent], counts.get(agent, 0))
        return family

    def _times(self, kind: str, metric: Metric) -> PrometheusMetric:
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for agent, times in self._store_metrics.times(kind).items():
            family.add_metric([agent], times.cumulated, times.sum)
        return family


def _gauge(metric: Metric, values: dict[tuple[str, ...], float]) -> PrometheusMetric:
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _short(state: TaskState) -> str:
    return short_name(state).lower()
