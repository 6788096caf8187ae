"""JSON responses of the operator's API: ids, owners, states, times and counts, but no texts of clients or agents."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import accumulate, islice
from typing import Any

from a2a.types import TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from google.protobuf.struct_pb2 import Value

from ...features.metrics import FeatureMetrics
from ...lifecycle import Event, LogEntry
from ...lifecycle.end_reasons import EndReason, end_reason
from ...lifecycle.events import kind_of
from ...lifecycle.execution import process_of, worker_of
from ...lifecycle.own_metadata import (
    ATTEMPT,
    CAUSE,
    MAX_ATTEMPTS,
    NAMESPACE,
    NEXT_ATTEMPT_AT,
    RETURNED_ATTEMPT,
    USAGE,
)
from ...lifecycle.states import TERMINAL, WORKING
from ...store.admin.metrics import FleetMetrics
from ...store.admin.samples import PHASES, RecordedSample, Sample, Series
from ...store.admin.scan import TaskSummary
from ...store.admin.usage import Memory
from ...store.operation import BOUNDS
from ...store.runs.activity_durations import ActivityDuration
from ...store.runs.journal import RecordedEntries, RecordedEntry
from ...store.runs.release import Activities
from .waits import Wait

MAX_DETAIL = 200
"""Maximum number of characters of a name or of a value in the detail of a step."""

MAX_CONTENTS = 100_000
"""Maximum bytes of all recorded results in a timeline."""

MAX_MODELS = 20
"""Maximum number of models whose tokens are returned for an event."""

MAX_TOKENS = 2**53
"""Upper limit of a count of tokens, from which JSON numbers are inexact."""

TOKENS = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "reasoningTokens")
"""Counts of tokens, as ``frameworks.usage`` writes them."""


def overview_json(
    fleet_metrics: FleetMetrics, posts: FeatureMetrics, memory: Memory | None, agents: Iterable[str]
) -> dict[str, Any]:
    """Return the metrics of the fleet. The counts of ended tasks and webhook posts and the duration histograms are
    totals since the store was created."""
    return {
        "at": iso(fleet_metrics.now_us),
        "agents": {name: _agent_json(fleet_metrics, name) for name in fleet_metrics.agents(agents)},
        "bounds": list(BOUNDS),
        "times": {kind: list(fleet_metrics.histogram(kind)) for kind in ("queue", "run")},
        "runs": dict(fleet_metrics.runs),
        "paused": fleet_metrics.paused,
        "deadLetters": fleet_metrics.resubmittable,
        "webhooks": {
            "waiting": posts.waiting,
            "dead": posts.dead,
            **_posts_json(posts.delivered, posts.failed, posts.given_up),
        },
        "store": {"bytes": memory.used if memory else None, "maxBytes": memory.limit if memory else None},
    }


def _agent_json(fleet_metrics: FleetMetrics, agent: str) -> dict[str, Any]:
    oldest = fleet_metrics.oldest.get(agent)
    return {
        "oldestWaitingSeconds": None if oldest is None else round(oldest, 3),
        "ended": {TaskState.Name(state): count for state, count in fleet_metrics.ended(agent).items()},
        "lost": sum(fleet_metrics.lost(agent).values()),
    }


def history_json(series: Series, samples: Iterable[RecordedSample]) -> dict[str, Any]:
    """Return the samples of a series in the form of the overview. `ended` contains the tasks of all agents."""
    return {
        "range": series.name,
        "intervalSeconds": series.interval,
        "bounds": list(BOUNDS),
        "samples": [_sample_json(recorded.at_us, recorded.sample) for recorded in samples],
    }


def _sample_json(at_us: int, sample: Sample) -> dict[str, Any]:
    used, limit = (None if size < 0 else size for size in sample.memory)
    return {
        "at": iso(at_us),
        "ended": {TaskState.Name(state): n for state, n in zip(sorted(TERMINAL), sample.ended, strict=True)},
        "times": {"queue": sample.queue, "run": sample.run},
        "runs": dict(zip(PHASES, sample.runs, strict=True)),
        "webhooks": _posts_json(*sample.posts),
        "store": {"bytes": used, "maxBytes": limit},
    }


def _posts_json(delivered: int, failed: int, given_up: int) -> dict[str, int]:
    return {"delivered": delivered, "failed": failed, "givenUp": given_up}


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
        "worker": worker_of(task.runner),
        "process": process_of(task.runner),
        "reason": task.reason,
        "reference": task.reference,
        "deadLetter": task.is_resubmittable,
    }


def step_json(duration: ActivityDuration) -> dict[str, Any]:
    """Return an execution activity. The key "seconds" is None for a final step or an unknown duration."""
    step, transition = duration.activity, duration.activity.transition
    return {
        "run": step.run,
        "attempt": step.attempt,
        "worker": worker_of(step.runner),
        "process": process_of(step.runner),
        "state": transition.after.value,
        "at": iso(transition.at_us),
        "seconds": duration.seconds,
        "open": duration.open,
        "detail": {name: str(value)[:MAX_DETAIL] for name, value in transition.detail.items()},
    }


def steps_json(task_id: str, steps: Activities) -> dict[str, Any]:
    """Return the fields of a task, which are read with its steps, as a JSON object without the contents of the task."""
    return {
        "id": task_id,
        "agent": steps.agent,
        "tenant": steps.scope.tenant,
        "owner": steps.scope.owner,
        "contextId": steps.context_id,
        "state": TaskState.Name(steps.state),
        "run": steps.run,
        "running": steps.running,
        "deadLetter": steps.is_resubmittable,
        "version": steps.code_version,
        "now": iso(steps.now_us),
        "traceId": next(iter(steps.trace.split("-")[1:2]), ""),
    }


def wait_json(wait: Wait) -> dict[str, Any]:
    """Return a wait of a task."""
    return {
        "kind": wait.kind,
        "name": wait.name,
        "at": iso(wait.began_us),
        "seconds": (wait.ended_us - wait.began_us) / 1_000_000,
        "open": wait.open,
        "due": iso(wait.due_us) if wait.due_us else None,
    }


def events_json(entries: Iterable[LogEntry], *, is_owner: bool) -> list[dict[str, Any]]:
    """Return the kinds and states of events. Consecutive events of one artifact are one item, with their number and the
    versions of the first and the last event. Omitted entries between two events are also one item.

    Args:
        entries: Events in order.
        is_owner: True to include the names of artifacts.
    """
    items: list[dict[str, Any]] = []
    artifacts: dict[str, dict[str, Any]] = {}
    version = 0
    for entry in entries:
        at = iso(entry.recorded_us)
        if version and entry.version > version + 1:
            items.append({"kind": "omitted", "first": version + 1, "last": entry.version - 1, "at": at, "until": at})
            artifacts = {}
        version = entry.version
        if not isinstance(entry.event, TaskArtifactUpdateEvent):
            artifacts = {}
            items.append(_event_json(entry, at))
            continue
        artifact = entry.event.artifact
        if item := artifacts.get(artifact.artifact_id):
            item |= {"last": entry.version, "until": at, "chunks": item["chunks"] + 1}
            continue
        item = artifacts[artifact.artifact_id] = _event_json(entry, at) | {"chunks": 1}
        if is_owner:
            item["name"] = (artifact.name or artifact.artifact_id)[:MAX_DETAIL]
        items.append(item)
    return items


def _event_json(entry: LogEntry, at: str) -> dict[str, Any]:
    event = entry.event
    item = {"kind": kind_of(event).name.lower(), "first": entry.version, "last": entry.version, "at": at, "until": at}
    if state := getattr(getattr(event, "status", None), "state", None):
        item["state"] = TaskState.Name(state)
    if usage := _usage_json(event):
        item["usage"] = usage
    return item | (_attempt_json(event) if isinstance(event, TaskStatusUpdateEvent) else {})


def _attempt_json(event: TaskStatusUpdateEvent) -> dict[str, Any]:
    """Return the reason of a status, and the attempt that it announces.

    The reason of a status WORKING is "lost" if the worker of the previous run was lost, or "returned" if it shut down.
    """
    reason, _ = end_reason(event.status.state, event.status)
    if reason is not None:
        return {"reason": reason}
    fields = event.metadata.fields
    numbers = {
        name: int(fields[NAMESPACE + name].number_value)
        for name in (ATTEMPT, MAX_ATTEMPTS)
        if NAMESPACE + name in fields
    }
    if event.status.state != WORKING or ATTEMPT not in numbers:
        return {}
    if NAMESPACE + RETURNED_ATTEMPT in fields:
        return numbers | {"reason": "returned"}
    is_retry = MAX_ATTEMPTS not in numbers or any(NAMESPACE + name in fields for name in (NEXT_ATTEMPT_AT, CAUSE))
    return numbers if is_retry else numbers | {"reason": EndReason.LOST}


def _usage_json(event: Event) -> dict[str, dict[str, int]]:
    """Return the tokens by model in the metadata of an event. An agent may have written other values."""
    key = NAMESPACE + USAGE
    if not isinstance(event, TaskStatusUpdateEvent) or key not in event.metadata.fields:
        return {}
    models = islice(event.metadata.fields[key].struct_value.fields.items(), MAX_MODELS)
    return {model[:MAX_DETAIL]: _tokens(value.struct_value.fields) for model, value in models}


def _tokens(counts: Mapping[str, Value]) -> dict[str, int]:
    numbers = {name: counts[name].number_value for name in TOKENS if name in counts}
    return {name: int(number) for name, number in numbers.items() if 0 < number < MAX_TOKENS}


def recorded_json(recorded: RecordedEntries, accepted_us: int, *, is_owner: bool) -> list[dict[str, Any]]:
    """Return the recorded results of a task in the order of their calls.

    Args:
        recorded: Entries of the journal.
        accepted_us: Time at which the task was accepted. A result that was recorded earlier belongs to a task that was
            requeued.
        is_owner: True to include the beginnings of the arguments and of the results.
    """
    began_at = {item.entry.position: item.entry.execution.began_us for item in recorded.entries if item.entry.execution}

    def order(item: RecordedEntry) -> tuple[int, int, str]:
        entry = item.entry
        earlier = (at for position, at in began_at.items() if 0 < position <= entry.position)
        at = entry.execution.began_us if entry.execution else max(earlier, default=0)
        return at, entry.position, entry.key

    items = sorted((item for item in recorded.entries if "#" in item.entry.key), key=order)
    sizes = accumulate(len(item.entry.content) for item in items)
    return [
        _recorded_json(item, accepted_us, is_owner=is_owner, is_shown=is_owner and size <= MAX_CONTENTS)
        for item, size in zip(items, sizes, strict=True)
    ]


def _recorded_json(item: RecordedEntry, accepted_us: int, *, is_owner: bool, is_shown: bool) -> dict[str, Any]:
    entry, execution = item.entry, item.entry.execution
    return {
        "key": entry.key,
        "kind": entry.kind,
        "form": entry.form,
        "size": item.size,
        "run": execution.run if execution and execution.began_us >= accepted_us else None,
        "attempts": execution.attempts if execution else None,
        "at": iso(execution.began_us) if execution else None,
        "seconds": execution.duration_us / 1_000_000 if execution else None,
        **(_contents_json(item, is_shown=is_shown) if is_owner else {}),
    }


def _contents_json(item: RecordedEntry, *, is_shown: bool) -> dict[str, Any]:
    content = item.entry.content
    return {
        "arguments": item.entry.arguments,
        "content": _text(content) if is_shown else None,
        "cut": not is_shown or len(content) < item.size,
    }


def _text(content: bytes) -> str | None:
    """Return the beginning of a result as text, or None for binary data and for a result that was not read."""
    try:
        return getincrementaldecoder("utf-8")().decode(content) or None  # the last character may be cut
    except UnicodeDecodeError:
        return None


def announced_json(announcement: Mapping[str, Any]) -> dict[str, Any]:
    """Return an announced worker, which Celery's remote control does not reach."""
    return {"name": announcement["worker"], "queues": announcement["queues"], "remoteControl": False}


WORKER_FIELDS = ("pool", "slots", "active", "prefetched", "queues", "agents", "drained", "abandoned", "versions")
"""Fields of a worker's report that the API returns. A worker of an older release reports no load."""


def worker_json(name: str, report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report of a worker, without its settings."""
    fields = {field: report.get(field) for field in WORKER_FIELDS}
    store_error = (report.get("store") or {}).get("error") or ""
    return {"name": name, **fields, "error": report.get("error") or store_error, "remoteControl": True}


def iso(at_us: int) -> str:
    """Return a time in µs since 1970 as text with milliseconds."""
    return iso_time(datetime.fromtimestamp(at_us / 1_000_000, UTC))


def iso_time(at: datetime) -> str:
    """Return a time in UTC as text with milliseconds."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
