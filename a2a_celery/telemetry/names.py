"""Every name that operators build on: log actions, metrics, spans and their attributes. docs/telemetry.md has the same.

They are part of the public contract: one that goes, or means something else, is in the change log. Labels take few
values: agents, states, operations. No id is ever one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Action(StrEnum):
    """What a log line is about: the field ``action`` of a line in JSON."""

    RUN_BEGUN = "run.begun"
    RUN_ENDED = "run.ended"
    RUN_DROPPED = "run.dropped"
    RUN_STOPPED = "run.stopped"
    RUN_FAILED = "run.failed"
    RUN_LEFT_BEHIND = "run.left_behind"
    RUN_ENDED_FROM_OUTSIDE = "run.ended_from_outside"
    RUN_LOST = "run.lost"
    RUN_DISPATCHED_AGAIN = "run.dispatched_again"
    RUN_EXPIRED = "run.expired"
    RUN_NOT_PUBLISHED = "run.not_published"
    CANCEL_ASKED = "cancel.asked"
    PAUSES_ENDED = "pauses.ended"
    REQUEST_FAILED = "request.failed"
    REQUEST_REFUSED = "request.refused"
    KEYS_NOT_FETCHED = "keys.not_fetched"
    DELIVERY_FAILED = "delivery.failed"
    DELIVERY_GIVEN_UP = "delivery.given_up"
    ARCHIVE_BEGUN = "archive.begun"
    ARCHIVE_REFUSED = "archive.refused"
    WATCHER_STARTED = "watcher.started"
    TICK_FAILED = "watcher.tick_failed"


class SpanName(StrEnum):
    """What spans are called; "{…}" is filled in."""

    REQUEST = "a2a {operation}"
    PUBLISH = "publish a2a.{agent}"
    RUN = "run a2a.{agent}"
    STORE = "store {verb}"
    POST = "POST webhook"


class SpanEvent(StrEnum):
    """What is noted in a span, at its time."""

    APPENDED = "a2a.appended"
    EXECUTION = "a2a.execution"


class Attribute(StrEnum):
    """What spans are labelled with, beside OpenTelemetry's own ``exception.*``."""

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
class Figure:
    """A metric. `where` it is kept: in the store (then every gateway says the same), or in a process of that kind."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    where: Where
    help: str
    labels: tuple[str, ...] = ()

    @property
    def exposed(self) -> str:
        """Its name in queries: Prometheus has ``_total`` behind a counter's."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


TASKS_ENDED = Figure("a2a_tasks_ended", "counter", "store", "Tasks that reached a terminal state.", ("agent", "state"))
RUN_QUEUE = Figure(
    "a2a_run_queue_seconds", "histogram", "store", "How long runs waited until a worker claimed them.", ("agent",)
)
RUN_FIRST_EVENT = Figure(
    "a2a_run_first_event_seconds", "histogram", "store", "From a run's claim to its agent's first event.", ("agent",)
)
RUN_TIME = Figure("a2a_run_seconds", "histogram", "store", "From a run's claim to its end.", ("agent",))
CANCEL_TIME = Figure(
    "a2a_cancel_seconds", "histogram", "store", "From a cancel of a task that runs to its CANCELED.", ("agent",)
)
RUNS_LOST = Figure(
    "a2a_runs_lost", "counter", "store", "Runs taken from lost or stopping workers.", ("agent", "outcome")
)
RUNS = Figure("a2a_runs", "gauge", "store", "Open runs.", ("phase",))
QUEUE_AGE = Figure("a2a_queue_age_seconds", "gauge", "store", "Age of the oldest run that waits.", ("agent",))
PAUSES = Figure("a2a_tasks_paused", "gauge", "store", "Tasks that wait for their clients.")
DEAD_LETTERS = Figure("a2a_dead_letters", "gauge", "store", "Tasks lost with their workers and not requeued.")
TASKS_ARCHIVED = Figure("a2a_tasks_archived", "counter", "store", "Ended tasks that went to the archive.", ("agent",))
ARCHIVE_WAITING = Figure(
    "a2a_archive_waiting",
    "gauge",
    "store",
    "Ended tasks that are due for the archive, and those it refused.",
    ("state",),
)
ARCHIVE_BEHIND = Figure("a2a_archive_behind_seconds", "gauge", "store", "How long the oldest of those has been due.")
WEBHOOK_POSTS = Figure(
    "a2a_webhook_posts", "counter", "store", "Posts to webhooks, by what became of them.", ("outcome",)
)
WEBHOOKS = Figure("a2a_webhooks", "gauge", "store", "Webhooks that wait for a post, or were given up.", ("state",))

REQUESTS = Figure("a2a_gateway_requests", "counter", "gateway", "Operations of A2A.", ("agent", "operation", "outcome"))
REFUSALS = Figure(
    "a2a_gateway_refusals", "counter", "gateway", "Requests that a limit was against.", ("agent", "limit")
)
OPEN_STREAMS = Figure("a2a_gateway_open_streams", "gauge", "gateway", "Streams that are open.", ("agent",))
TAIL_LAG = Figure(
    "a2a_gateway_tail_lag_seconds", "histogram", "gateway", "From an event's record to its being handed on."
)

POST_TIME = Figure("a2a_watcher_post_seconds", "histogram", "watcher", "What a post to a webhook took.", ("outcome",))
DISPATCHED_AGAIN = Figure("a2a_watcher_runs_dispatched_again", "counter", "watcher", "Runs published again.")
BLOBS_REMOVED = Figure(
    "a2a_watcher_tasks_blobs_removed", "counter", "watcher", "Tasks that are gone and whose large parts were removed."
)
TICKS = Figure("a2a_watcher_ticks", "counter", "watcher", "Looks of a watcher's roles.", ("role", "outcome"))
TICK_AGE = Figure("a2a_watcher_tick_age_seconds", "gauge", "watcher", "Since a role's last look ended.", ("role",))

FIGURES = tuple(found for found in tuple(globals().values()) if isinstance(found, Figure))
"""All of them."""
