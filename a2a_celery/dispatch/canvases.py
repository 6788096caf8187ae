"""Canvases: what a plain Celery task began (a chain, a group, a chord) and left its A2A task to.

Its tasks are anybody's and run anywhere, so only the result backend knows how it ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
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
from ..lifecycle.outcomes import OUT_OF_TIME, WITHDRAWN, WORKER_LOST, agent_message

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
    def of(cls, app: Celery, result: ResultBase, time_limit: float | None) -> Canvas:
        """The canvas of `result`. Without a `time_limit` it has as long as `app` keeps results.

        Raises:
            ConfigError: `app` keeps none.
        """
        if isinstance(app.backend, DisabledBackend):
            raise ConfigError("a task that begins a canvas needs a result backend, which tells how it ends")
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
        """What `to_json` wrote."""
        fields = json.loads(stored)
        return cls(fields["result"], datetime.fromtimestamp(fields["until"], UTC))

    def ids(self) -> list[str]:
        """The ids of its Celery tasks, as far as they are known before they begin."""
        return list(dict.fromkeys(_ids(self.result)))

    def look(self, app: Celery) -> Ended | None:
        """How it ended; None while it has not. Asks the result backend, and blocks."""
        result = result_from_tuple(self.result, app)
        for link in _links(result):
            failed = next((one for one in _tasks(link) if one.state in states.PROPAGATE_STATES), None)
            if failed is not None:
                return Ended(_outcome(failed.result, failed.state), error=failed.result)
        if result.ready():
            return Ended(Completed(), _value(result))
        return Ended(Failed(OUT_OF_TIME)) if SYSTEM_CLOCK.now() >= self.until else None


def _outcome(error: Any, state: str) -> Outcome:
    if state == states.REVOKED:
        return Refused(WITHDRAWN)
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
