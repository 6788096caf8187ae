"""Public names of log actions, metrics, spans and attributes, and the registry that exposes the metrics.

docs/telemetry.md also lists the names. These names are a public contract: the change log lists each removal and each
change of meaning. Labels have few values, such as agents, states and operations. An id is never a label.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric as PrometheusMetric
from prometheus_client.registry import Collector


class Action(StrEnum):
    """Values of the field ``action`` in JSON log lines."""

    RUN_BEGUN = "run.begun"
    RUN_ENDED = "run.ended"
    RUN_DROPPED = "run.dropped"
    RUN_STOPPED = "run.stopped"
    RUN_FAILED = "run.failed"
    RUN_ABANDONED = "run.abandoned"
    RUN_ENDED_FROM_OUTSIDE = "run.ended_from_outside"
    RUN_LOST = "run.lost"
    RUN_RETRIED = "run.retried"
    RUN_DISPATCHED_AGAIN = "run.dispatched_again"
    RUN_EXPIRED = "run.expired"
    RUN_NOT_PUBLISHED = "run.not_published"
    CANCEL_REQUESTED = "cancel.requested"
    PAUSES_ENDED = "pauses.ended"
    REQUEST_FAILED = "request.failed"
    REQUEST_REFUSED = "request.refused"
    KEYS_NOT_FETCHED = "keys.not_fetched"
    KEYS_READ = "keys.read"
    KEYS_NOT_READ = "keys.not_read"
    DELIVERY_FAILED = "delivery.failed"
    DELIVERY_GIVEN_UP = "delivery.given_up"
    DELIVERY_REPLAYED = "delivery.replayed"
    TICK_SKIPPED = "schedule.tick_skipped"
    TICK_REPEATED = "schedule.tick_repeated"
    TASK_REQUEUED = "task.requeued"
    SIGNAL_SENT = "signal.sent"
    WORKER_DRAINED = "worker.drained"
    WORKER_UNDRAINED = "worker.undrained"
    ARCHIVE_BEGUN = "archive.begun"
    ARCHIVE_REFUSED = "archive.refused"
    WATCHER_STARTED = "watcher.started"
    WATCHER_STOPPED = "watcher.stopped"
    TICK_FAILED = "watcher.tick_failed"
    STORE_CLOCK_JUMPED = "store.clock_jumped"
    REPLICAS_LATE = "store.replicas_late"


class SpanName(StrEnum):
    """Names of spans, with placeholders."""

    REQUEST = "a2a {operation}"
    PUBLISH = "publish a2a.{agent}"
    RUN = "run a2a.{agent}"
    STORE = "store {verb}"
    POST = "POST webhook"


class SpanEvent(StrEnum):
    """Names of span events."""

    APPENDED = "a2a.appended"
    EXECUTION = "a2a.execution"


class Attribute(StrEnum):
    """Attributes of spans, in addition to OpenTelemetry's ``exception.*``."""

    AGENT = "a2a.agent"
    OPERATION = "a2a.operation"
    TASK = "a2a.task.id"
    CONTEXT = "a2a.context.id"
    RUN = "a2a.run"
    ATTEMPT = "a2a.attempt"
    OUTCOME = "a2a.outcome"
    VERSION = "a2a.version"
    CONFIG = "a2a.webhook.config"
    CELERY_ID = "celery.task_id"
    STATUS = "http.response.status_code"


Where = Literal["store", "gateway", "watcher"]


@dataclass(frozen=True, slots=True)
class Metric:
    """Prometheus metric.

    Attributes:
        name: Name without the suffix ``_total``.
        kind: Type of the metric.
        where: Kind of process that measures the value, or "store" if the value comes from the store and is equal on all
            gateways.
        help: Description in the exposition.
        labels: Names of the labels.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    where: Where
    help: str
    labels: tuple[str, ...] = ()

    @property
    def exposed(self) -> str:
        """Name of the metric in queries. Prometheus appends ``_total`` to the name of a counter."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


TASKS_ENDED = Metric("a2a_tasks_ended", "counter", "store", "Tasks that reached a terminal state.", ("agent", "state"))
RUN_QUEUE = Metric("a2a_run_queue_seconds", "histogram", "store", "Time until a worker claimed the run.", ("agent",))
RUN_FIRST_EVENT = Metric(
    "a2a_run_first_event_seconds", "histogram", "store", "Time from a run's claim to its first event.", ("agent",)
)
RUN_TIME = Metric("a2a_run_seconds", "histogram", "store", "Time from a run's claim to its end.", ("agent",))
CANCEL_TIME = Metric(
    "a2a_cancel_seconds",
    "histogram",
    "store",
    "Time from the request to cancel a running task to CANCELED.",
    ("agent",),
)
RUNS_LOST = Metric("a2a_runs_lost", "counter", "store", "Runs of lost or stopping workers.", ("agent", "outcome"))
RUNS_RETRIED = Metric("a2a_runs_retried", "counter", "store", "Retries of runs.", ("agent",))
RUNS = Metric("a2a_runs", "gauge", "store", "Open runs.", ("phase",))
QUEUE_AGE = Metric("a2a_queue_age_seconds", "gauge", "store", "Age of the oldest waiting run.", ("agent",))
PAUSES = Metric("a2a_tasks_paused", "gauge", "store", "Tasks that wait for their clients.")
DEAD_LETTERS = Metric("a2a_dead_letters", "gauge", "store", "Tasks lost with their workers and not requeued.")
VERSION_TASKS = Metric(
    "a2a_version_tasks", "gauge", "store", "Open tasks by the version that began their turn.", ("agent", "version")
)
TASKS_ARCHIVED = Metric("a2a_tasks_archived", "counter", "store", "Ended tasks that were archived.", ("agent",))
ARCHIVE_WAITING = Metric(
    "a2a_archive_waiting",
    "gauge",
    "store",
    "Ended tasks that are due for the archive or were refused by it.",
    ("state",),
)
ARCHIVE_LAG = Metric(
    "a2a_archive_lag_seconds",
    "gauge",
    "store",
    "Time for which the oldest task that waits for the archive has been due.",
)
WEBHOOK_POSTS = Metric("a2a_webhook_posts", "counter", "store", "Posts to webhooks by outcome.", ("outcome",))
WEBHOOKS = Metric(
    "a2a_webhooks", "gauge", "store", "Webhook deliveries that wait for a post or were given up.", ("state",)
)

REQUESTS = Metric("a2a_gateway_requests", "counter", "gateway", "A2A operations.", ("agent", "operation", "outcome"))
REFUSALS = Metric("a2a_gateway_refusals", "counter", "gateway", "Requests refused by a limit.", ("agent", "limit"))
REFUSED_CALLERS = Metric(
    "a2a_gateway_refused_callers", "counter", "gateway", "Requests refused because of their caller.", ("reason",)
)
OPEN_STREAMS = Metric("a2a_gateway_open_streams", "gauge", "gateway", "Open streams.", ("agent",))
TAIL_LAG = Metric(
    "a2a_gateway_tail_lag_seconds", "histogram", "gateway", "Time from an event's record to its delivery to a stream."
)

POST_TIME = Metric("a2a_watcher_post_seconds", "histogram", "watcher", "Duration of a post to a webhook.", ("outcome",))
DISPATCHED_AGAIN = Metric("a2a_watcher_runs_dispatched_again", "counter", "watcher", "Runs published again.")
BLOBS_REMOVED = Metric(
    "a2a_watcher_tasks_blobs_removed", "counter", "watcher", "Deleted tasks whose large parts were removed."
)
TICKS = Metric("a2a_watcher_ticks", "counter", "watcher", "Ticks of a watcher's roles.", ("role", "outcome"))
TICK_AGE = Metric("a2a_watcher_tick_age_seconds", "gauge", "watcher", "Time since a role's last tick ended.", ("role",))

METRICS = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
"""All metrics of this package."""


class Source(Protocol):
    """Source of metrics: a registry or a collector."""

    def collect(self) -> Iterable[PrometheusMetric]: ...


class PackageMetrics(Collector):
    """Collector of this package's metrics in a source that may also contain metrics of an application.

    The ``_created`` series of Python's client are omitted, because Prometheus detects resets without these series.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterable[PrometheusMetric]:
        metric_names = {metric.name for metric in METRICS}
        for metric in self._source.collect():
            if metric.name in metric_names:
                metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
                yield metric


def package_metrics(source: Source) -> CollectorRegistry:
    """Return a registry that contains only the metrics of this package from `source`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PackageMetrics(source))
    return registry
