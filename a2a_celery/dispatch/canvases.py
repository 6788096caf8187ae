"""Canvases: what a plain Celery task began (a chain, a group, a chord) and left its A2A task to.

Its tasks are anybody's and run anywhere, so only the result backend knows how it ends.
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
from celery.backends.base import DisabledBackend
from celery.result import AsyncResult, ResultBase, result_from_tuple

from ..clock import SYSTEM_CLOCK
from ..errors import ConfigError
from ..errors import Failed as AgentFailed
from ..errors import Rejected as AgentRejected
from ..lifecycle import Completed, Failed, Outcome, Refused, Rejected
from ..lifecycle.outcomes import NOT_BEGUN_IN_TIME, OUT_OF_TIME, WORKER_LOST, agent_message, revoked_by

DAY = timedelta(days=1)
"""How long Celery keeps a result, if it is not told."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a canvas ended. `value` is its result, JSON-like, if it was a success, else `error` is for the log."""

    outcome: Outcome
    value: Any = None
    error: Any = None


@dataclass(frozen=True, slots=True)
class Canvas:
    """A canvas by its result, as Celery writes it down (``as_tuple``); nobody waits for it longer than `until`."""

    result: Any
    until: datetime

    @classmethod
    def of(cls, app: Celery, result: ResultBase, time_limit: float | None, ignored: Mapping[str, str]) -> Canvas:
        """Return the canvas of `result`. Without a `time_limit` it has as long as `app` keeps results.

        Args:
            app: The app whose result backend the watchers read.
            result: The result of the last task, or of the last group.
            time_limit: Seconds that the canvas may take, or None.
            ignored: Names of the tasks of the canvas that store no result, by Celery id.

        Raises:
            ConfigError: The end of the canvas will be in no result backend that a watcher can read.
        """
        if problem := unreadable_results(app):
            raise ConfigError(f"a watcher cannot read how a canvas ends: {problem}")
        if name := next((ignored[task.id] for task in _tasks(result) if task.id in ignored), None):
            raise ConfigError(
                f"a watcher cannot read how a canvas ends: its last task {name!r} ignores its result, by itself or by "
                "task_ignore_result: set ignore_result=False on it"
            )
        kept = app.conf.result_expires or DAY
        wait = kept if isinstance(kept, timedelta) else timedelta(seconds=kept)
        if time_limit is not None:
            wait = timedelta(seconds=time_limit)
        return cls(result.as_tuple(), SYSTEM_CLOCK.now() + wait)

    def to_json(self) -> str:
        """The form that is stored with the run."""
        return json.dumps({"result": self.result, "until": self.until.timestamp()}, separators=(",", ":"))

    @classmethod
    def from_json(cls, stored: bytes) -> Canvas:
        """Parse the output of `to_json`."""
        fields = json.loads(stored)
        return cls(fields["result"], datetime.fromtimestamp(fields["until"], UTC))

    def ids(self) -> list[str]:
        """The ids of its Celery tasks, as far as they are known before they begin."""
        return list(dict.fromkeys(_ids(self.result)))

    def look(self, app: Celery) -> Ended | None:
        """Return how the canvas ended, or None if it has not ended. Read the result backend, which blocks."""
        result = result_from_tuple(self.result, app)
        for link in _links(result):
            failed = next((one for one in _tasks(link) if one.state in states.PROPAGATE_STATES), None)
            if failed is not None:
                return Ended(_outcome(failed.result, failed.state), error=failed.result)
        if result.ready():
            return Ended(Completed(), _value(result))
        return Ended(Failed(OUT_OF_TIME)) if SYSTEM_CLOCK.now() >= self.until else None


def unreadable_results(app: Celery) -> str | None:
    """Return why no watcher can read a result of `app`, with what to change, or None where watchers can."""
    if app.conf.task_always_eager and not app.conf.task_store_eager_result:
        return (
            "task_always_eager leaves results in the process that has called the task: set it to False in workers, or "
            "task_store_eager_result to True"
        )
    remedy = "set result_backend to one that all processes can read, such as Redis"
    if isinstance(app.backend, DisabledBackend):
        return f"there is no result backend, so nothing is stored: {remedy}"
    if app.backend.as_uri().startswith("rpc:"):
        return f"the result backend rpc:// sends a result only to the process that has called the task: {remedy}"
    return None


def ignored_results(app: Celery, headers: Mapping[str, Any], body: Any) -> dict[str, str]:
    """Return the tasks of a Celery message that store no result: the task itself, and those chained to it.

    Args:
        app: The app that the message is published by. A task that it does not know is taken to store its result.
        headers: The headers of the message.
        body: The arguments and the canvas of the message, before they are encoded (protocol 2).

    Returns:
        The names by Celery id.
    """
    ignored = {headers["id"]: headers["task"]} if headers.get("ignore_result") else {}
    if isinstance(body, tuple):
        embedded = body[2]
        for signature in (*(embedded.get("chain") or ()), embedded.get("chord")):
            ignored |= _ignored_in(app, signature)
    return ignored


def _ignored_in(app: Celery, signature: Any) -> dict[str, str]:
    if isinstance(signature, list | tuple):
        return {task_id: name for each in signature for task_id, name in _ignored_in(app, each).items()}
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
        # Celery's result of a revoked task is an exception that names the reason: "expired", "revoked" or "terminated".
        if str(error) == "expired":
            return Refused(NOT_BEGUN_IN_TIME)
        return revoked_by("terminate" if str(error) == "terminated" else "revoke")
    match error:
        case AgentRejected():
            return Rejected(agent_message(str(error), "", "") if str(error) else None)
        case AgentFailed() if str(error):
            return Failed(str(error))
        case SoftTimeLimitExceeded() | TimeLimitExceeded():
            return Failed(OUT_OF_TIME)
        case WorkerLostError():
            return Failed(WORKER_LOST)
        case _:
            return Failed(reference=uuid4().hex[:12])


def _links(result: ResultBase | None) -> Iterator[ResultBase]:
    """The result and those before it; where one of these has failed, it never comes."""
    while result is not None:
        yield result
        result = result.parent


def _tasks(result: ResultBase) -> Iterator[AsyncResult]:
    """The tasks of one link: one, or those of a group."""
    if isinstance(result, AsyncResult):
        yield result
    else:
        for one in result.results:
            yield from _tasks(one)


def _value(result: ResultBase) -> Any:
    return result.result if isinstance(result, AsyncResult) else [_value(one) for one in result.results]


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
