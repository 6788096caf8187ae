"""JSON responses of the operator's API: ids, owners, states, times and counts, but no texts of clients or agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from a2a.types import TaskArtifactUpdateEvent, TaskState

from ...lifecycle import LogEntry
from ...lifecycle.events import kind_of
from ...lifecycle.states import TERMINAL
from ...settings import TRACE_ID
from ...store.admin.metrics import FleetMetrics
from ...store.admin.scan import TaskSummary
from ...store.admin.usage import Memory
from ...store.operation import BOUNDS
from ...store.runs.release import Steps
from ...store.runs.step_durations import StepDuration
from ...store.webhooks.deliveries import Attempt, Delivery, DeliveryMetrics

MAX_DETAIL = 200
"""Maximum number of characters of a value in the detail of a step."""


def overview_json(
    fleet_metrics: FleetMetrics, posts: DeliveryMetrics, memory: Memory | None, agents: Iterable[str]
) -> dict[str, Any]:
    """Return the metrics of the fleet. The counts of ended tasks and webhook posts and the duration histograms are
    totals since the store was created."""
    names = dict.fromkeys([*agents, *(agent for _, agent, _ in fleet_metrics.counts)])
    return {
        "at": iso(fleet_metrics.now_us),
        "agents": {name: _agent_json(fleet_metrics, name) for name in names},
        "bounds": list(BOUNDS),
        "times": {kind: _times_json(fleet_metrics, kind) for kind in ("queue", "run")},
        "runs": dict(fleet_metrics.runs),
        "paused": fleet_metrics.paused,
        "deadLetters": fleet_metrics.dead_letters,
        "webhooks": {
            "waiting": posts.waiting,
            "dead": posts.dead,
            "delivered": posts.delivered,
            "failed": posts.failed,
        },
        "store": {"bytes": memory.used if memory else None, "maxBytes": memory.limit if memory else None},
    }


def _agent_json(fleet_metrics: FleetMetrics, agent: str) -> dict[str, Any]:
    end_counts, oldest = fleet_metrics.counted("ended"), fleet_metrics.oldest.get(agent)
    return {
        "oldestWaitingSeconds": None if oldest is None else round(oldest, 3),
        "ended": {TaskState.Name(state): end_counts.get((agent, str(int(state))), 0) for state in sorted(TERMINAL)},
        "lost": sum(number for (name, _), number in fleet_metrics.counted("lost").items() if name == agent),
    }


def _times_json(fleet_metrics: FleetMetrics, kind: str) -> list[int]:
    """Return the histogram of all agents, with a count for each bound and a count for longer durations."""
    buckets = [times.buckets for times in fleet_metrics.times(kind).values()]
    return [sum(counts) for counts in zip(*buckets, strict=True)] if buckets else [0] * (len(BOUNDS) + 1)


def task_json(task: TaskSummary) -> dict[str, Any]:
    """Return an entry of a list of tasks."""
    return {
        "id": task.ref.task_id,
        "agent": task.agent,
        "tenant": task.scope.tenant,
        "owner": task.scope.owner,
        "contextId": task.context_id,
        "state": TaskState.Name(task.state),
        "since": iso(task.since_us),
        "run": task.ref.run,
        "attempt": task.attempt,
        "maxAttempts": task.max_attempts,
        "worker": task.runner,
    }


def delivery_json(delivery: Delivery) -> dict[str, Any]:
    """Return the state of the deliveries to a webhook, without the webhook's address and the receiver's response."""
    failure = {name: delivery.failure[name] for name in ("reason", "status") if name in delivery.failure}
    times = {
        "failingSince": delivery.first_failed_us,
        "nextTry": 0 if delivery.died_us or delivery.is_leased else delivery.due_us,
        "givenUpAt": delivery.died_us,
    }
    return {
        "task": delivery.task_id,
        "id": delivery.config_id,
        "agent": delivery.agent,
        "state": delivery.state,
        "delivered": delivery.delivered,
        "lastEvent": delivery.version,
        "failures": delivery.failures,
        **{name: iso(at_us) for name, at_us in times.items() if at_us},
        **failure,
    }


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    """Return an attempt to post to a webhook."""
    return {
        "at": iso(attempt.at_us),
        "event": attempt.post,
        "outcome": attempt.outcome,
        "status": attempt.status,
        "latencyMs": attempt.latency_ms,
        "reason": attempt.reason,
    }


def step_json(duration: StepDuration) -> dict[str, Any]:
    """Return an execution step. The key "seconds" is None for a final step or an unknown duration."""
    step, transition = duration.step, duration.step.transition
    return {
        "run": step.run,
        "attempt": step.attempt,
        "worker": step.runner,
        "state": transition.after.value,
        "at": iso(transition.at_us),
        "seconds": duration.seconds,
        "open": duration.open,
        "detail": {name: str(value)[:MAX_DETAIL] for name, value in transition.detail.items()},
    }


def steps_json(task_id: str, steps: Steps, trace_url: str | None) -> dict[str, Any]:
    """Return the steps and other fields of a task as a JSON object, without the contents of the task.

    Args:
        task_id: Id of the task.
        steps: The task's steps and its other fields.
        trace_url: Value of the setting `trace_url`, or None if it is not set.
    """
    trace_id = next(iter(steps.trace.split("-")[1:2]), "")
    return {
        "id": task_id,
        "agent": steps.agent,
        "tenant": steps.scope.tenant,
        "owner": steps.scope.owner,
        "contextId": steps.context_id,
        "state": TaskState.Name(steps.state),
        "run": steps.run,
        "running": steps.running,
        "version": steps.version,
        "now": iso(steps.now_us),
        "traceId": trace_id,
        "traceUrl": trace_url.replace(TRACE_ID, trace_id) if trace_url and trace_id else "",
    }


def events_json(entries: Iterable[LogEntry]) -> list[dict[str, Any]]:
    """Return the kinds and states of events. Consecutive artifact events are one item, with the versions of the first
    and the last event."""
    items: list[dict[str, Any]] = []
    for entry in entries:
        state = getattr(getattr(entry.event, "status", None), "state", None)
        kind = kind_of(entry.event).name.lower()
        is_artifact = isinstance(entry.event, TaskArtifactUpdateEvent)
        if is_artifact and items and items[-1]["kind"] == kind:
            items[-1] |= {"last": entry.version, "until": iso(entry.recorded_us)}
            continue
        at = iso(entry.recorded_us)
        item = {"kind": kind, "first": entry.version, "last": entry.version, "at": at, "until": at}
        items.append(item | ({"state": TaskState.Name(state)} if state else {}))
    return items


def announced_json(announcement: Mapping[str, Any]) -> dict[str, Any]:
    """Return an announced worker, which Celery's remote control does not reach."""
    return {"name": announcement["worker"], "queues": announcement["queues"], "remoteControl": False}


def worker_json(name: str, report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report of a worker, without its settings."""
    fields = {field: report.get(field) for field in ("pool", "queues", "agents", "drained", "abandoned", "versions")}
    store_error = (report.get("store") or {}).get("error") or ""
    return {"name": name, **fields, "error": report.get("error") or store_error, "remoteControl": True}


def iso(at_us: int) -> str:
    """Return a time in µs since 1970 as text with milliseconds."""
    return iso_time(datetime.fromtimestamp(at_us / 1_000_000, UTC))


def iso_time(at: datetime) -> str:
    """Return a time in UTC as text with milliseconds."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
