"""Canvases (chains, groups, chords) that plain Celery tasks start. An A2A task ends with the result of its canvas.

The tasks of a canvas may run on any worker, so only the result backend shows when the canvas has ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError
from celery import Celery, states
from celery.result import AsyncResult, ResultBase, result_from_tuple

from ...clock import SYSTEM_CLOCK
from ...errors import ConfigError, Failed, Rejected
from ...lifecycle import Completed, Failure, Outcome, Refused, Rejection
from ...lifecycle.outcomes import NOT_BEGUN_IN_TIME, OUT_OF_TIME, WORKER_LOST, agent_message, revoked_by
from .result_checks import unreadable_results

DAY = timedelta(days=1)
"""Default of Celery's ``result_expires``."""


@dataclass(frozen=True, slots=True)
class CanvasResult:
    """Result of a canvas that has ended.

    Attributes:
        outcome: Outcome of the run.
        value: JSON-like result of the canvas if it succeeded, or None.
        error: Error for the log if the canvas failed, or None.
    """

    outcome: Outcome
    value: Any = None
    error: Any = None


@dataclass(frozen=True, slots=True)
class Canvas:
    """Canvas that an A2A task waits for.

    Attributes:
        result: Result of the canvas, in the form of ``as_tuple``.
        until: Time at which the canvas fails if it has not ended.
    """

    result: Any
    until: datetime

    @classmethod
    def of(cls, app: Celery, result: ResultBase, time_limit: float | None, ignored_tasks: Mapping[str, str]) -> Canvas:
        """Return the canvas that ends with `result`.

        Args:
            app: App whose result backend the watchers read.
            result: Result of the last task or group.
            time_limit: Maximum duration of the canvas in seconds, or None for the time for which `app` stores results.
            ignored_tasks: Names of the tasks that store no result, by Celery id.

        Raises:
            ConfigError: Watchers cannot read the result of the canvas.
        """
        if problem := unreadable_results(app):
            raise ConfigError(f"a watcher cannot read how a canvas ends: {problem}")
        if name := next((ignored_tasks[task.id] for task in _tasks(result) if task.id in ignored_tasks), None):
            raise ConfigError(
                f"a watcher cannot read how a canvas ends: its last task {name!r} ignores its result, by option or by "
                "task_ignore_result: set ignore_result=False on it"
            )
        result_expires = app.conf.result_expires or DAY
        wait = result_expires if isinstance(result_expires, timedelta) else timedelta(seconds=result_expires)
        if time_limit is not None:
            wait = timedelta(seconds=time_limit)
        return cls(result.as_tuple(), SYSTEM_CLOCK.now() + wait)

    def to_json(self) -> str:
        """Return the stored form of the canvas."""
        return json.dumps({"result": self.result, "until": self.until.timestamp()}, separators=(",", ":"))

    @classmethod
    def from_json(cls, content: bytes) -> Canvas:
        """Parse the output of `to_json`."""
        fields = json.loads(content)
        return cls(fields["result"], datetime.fromtimestamp(fields["until"], UTC))

    def ids(self) -> list[str]:
        """Return the ids of the canvas's tasks and groups that are known before the tasks begin, without duplicates."""
        return list(dict.fromkeys(_ids(self.result)))

    def poll(self, app: Celery) -> CanvasResult | None:
        """Return the result of the canvas, or None if the canvas has not ended. This method blocks while it queries the
        result backend."""
        result = result_from_tuple(self.result, app)
        for link in _links(result):
            failed_task = next((task for task in _tasks(link) if task.state in states.PROPAGATE_STATES), None)
            if failed_task is not None:
                return CanvasResult(_outcome(failed_task.result, failed_task.state), error=failed_task.result)
        if result.ready():
            return CanvasResult(Completed(), _value(result))
        return CanvasResult(Failure(OUT_OF_TIME)) if SYSTEM_CLOCK.now() >= self.until else None


def ignored_results(app: Celery, headers: Mapping[str, Any], body: Any) -> dict[str, str]:
    """Return the names of the tasks that store no result, from a Celery message with its chained tasks.

    Args:
        app: App that publishes the message. A task that is not registered is assumed to store its result.
        headers: Headers of the message.
        body: Arguments and canvas of the message before encoding (protocol 2).

    Returns:
        Names of the tasks by Celery id.
    """
    ignored_tasks = {headers["id"]: headers["task"]} if headers.get("ignore_result") else {}
    if isinstance(body, tuple):
        embedded_signatures = body[2]
        for signature in (*(embedded_signatures.get("chain") or ()), embedded_signatures.get("chord")):
            ignored_tasks |= _ignored_in(app, signature)
    return ignored_tasks


def _ignored_in(app: Celery, signature: Any) -> dict[str, str]:
    if isinstance(signature, list | tuple):
        return {task_id: name for inner in signature for task_id, name in _ignored_in(app, inner).items()}
    if not signature:
        return {}
    if signature.get("subtask_type"):  # a chain, group or chord
        return _ignored_in(app, [signature["kwargs"].get(member) for member in ("tasks", "header", "body")])
    name, options = signature["task"], signature["options"]
    ignores = options.get("ignore_result")
    if ignores is None:
        ignores = getattr(app.tasks.get(name), "ignore_result", False)
    return {options["task_id"]: name} if ignores and options.get("task_id") else {}


def _outcome(error: Any, state: str) -> Outcome:
    if state == states.REVOKED:
        # The result of a revoked task is an exception with the reason: "expired", "revoked" or "terminated".
        if str(error) == "expired":
            return Refused(NOT_BEGUN_IN_TIME)
        return revoked_by("terminate" if str(error) == "terminated" else "revoke")
    match error:
        case Rejected():
            return Rejection(agent_message(str(error), "", "") if str(error) else None)
        case Failed() if str(error):
            return Failure(str(error))
        case SoftTimeLimitExceeded() | TimeLimitExceeded():
            return Failure(OUT_OF_TIME)
        case WorkerLostError():
            return Failure(WORKER_LOST)
        case _:
            return Failure(reference=uuid4().hex[:12])


def _links(result: ResultBase | None) -> Iterator[ResultBase]:
    """Yield `result` and its predecessors. If a predecessor fails, `result` never becomes available."""
    while result is not None:
        yield result
        result = result.parent


def _tasks(result: ResultBase) -> Iterator[AsyncResult]:
    if isinstance(result, AsyncResult):
        yield result
    else:
        for inner in result.results:
            yield from _tasks(inner)


def _value(result: ResultBase) -> Any:
    return result.result if isinstance(result, AsyncResult) else [_value(inner) for inner in result.results]


def _ids(result: Any) -> Iterator[str]:
    if isinstance(result, str):
        yield result
        return
    head, nodes = result
    own, parent = head if isinstance(head, list | tuple) else (head, None)
    yield own
    if parent:
        yield from _ids(parent)
    for node in nodes or ():
        yield from _ids(node)
