"""Celery's view of a run, in the worker's main process: what happens to it there ends it in the store first.

Celery tells of these ends by signals too, in several processes and some of them twice, and none of these carries the
process that ran the run, which is what says whether the run is ours to end. A request class of one's own is Celery's
other documented way to hear of them. Each call comes before or around Celery's own handling and changes nothing of it.
"""

from __future__ import annotations

import logging
from functools import cache, cached_property
from os import getpid
from typing import Any, ClassVar
from uuid import uuid4

from a2a.types import TaskState
from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import SoftTimeLimitExceeded, Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.functional import noop
from celery.worker.request import Request
from celery.worker.state import task_ready
from kombu.utils.compat import detect_environment

from ..dispatch import fleet_of
from ..errors import StoreUnavailable
from ..lifecycle import Failed, Outcome, Refused
from ..lifecycle.outcomes import NOT_BEGUN_IN_TIME, OUT_OF_TIME, WITHDRAWN, WORKER_LOST
from ..lifecycle.states import AUTH_REQUIRED, CANCELED, INPUT_REQUIRED, REJECTED
from ..store.runs import RunRef
from .celery_events import mark_if_heard
from .ending import RunEnder
from .handing_back import HandingBack

logger = logging.getLogger(__name__)


@cache
def ended_in(state: TaskState) -> str:
    """What a run's Celery task returns that left its A2A task in `state`."""
    return f"A2A: {TaskState.Name(state).removeprefix('TASK_STATE_')}"


DROPPED = "A2A: dropped"
"""What the Celery task returns that was not to begin a run: its message is a copy, or outdated."""

EVENTS: dict[str, tuple[str, dict[str, Any]]] = {
    ended_in(CANCELED): ("task-revoked", {"terminated": False, "signum": None, "expired": False}),
    # not task-rejected: Celery takes that for an earlier state than the STARTED that it follows
    ended_in(REJECTED): ("task-refused", {}),
    ended_in(INPUT_REQUIRED): ("task-input_required", {}),
    ended_in(AUTH_REQUIRED): ("task-auth_required", {}),
    DROPPED: ("task-dropped", {}),
}
"""By what the Celery task returned, the event that Flower shall see instead of a success, and its fields."""


class RunFailed(Exception):
    """Tells Celery that a run failed, when the store knows it already: Flower and Celery's events then say so too."""


class RunRequest(Request):  # type: ignore[misc]
    """A run, as the worker that received it keeps it. The task's `ender` is a `RunEnder`, its `handing_back` a
    `HandingBack`, and its `stop_here` stops a run in this very process."""

    pool_to_leave: ClassVar[Any] = None
    """The pool of a worker in cold shutdown: what begins in it is stopped at once. Else None."""

    _is_returned = False

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        if self.is_run:
            mark_if_heard(self)

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """It begins in process `pid`."""
        super().on_accepted(pid, time_accepted)
        if self.pool_to_leave is not None and self.is_run:
            self.cancel(self.pool_to_leave)

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """The worker stops and can't wait for it. Celery would call it retried, and lose it: early acknowledged.

        Prefork sends its process a signal. Other pools raise NotImplementedError: there, its agent is stopped here.
        """
        if not self.is_run:
            super().cancel(pool, signal, emit_retry=emit_retry)
            return
        self.give_up()
        try:
            super().cancel(pool, signal, emit_retry=False)
        except NotImplementedError:
            self.task.stop_here(self.id)
            self._announce_cancelled(emit_retry=False)

    def give_up(self) -> None:
        """Its worker stops: what is to become of it is decided in the store, while Celery goes on here."""
        handing_back: HandingBack = self.task.handing_back
        if self.is_run:
            handing_back.give_up(self.id, worker_pid=self._process)

    def send_event(self, type: str, **fields: Any) -> None:
        """As Celery does, but a run whose agent returned says what its A2A task was left in."""
        if type == "task-succeeded" and self.is_run:
            returned = str(fields.get("result")).strip("'")
            type, more = EVENTS.get(returned, (type, {}))
            # a copy's few milliseconds are not the times of the run itself
            fields = {} if returned == DROPPED else fields | more
        super().send_event(type, **fields)

    def forget_message(self, told: dict[str, Any]) -> None:
        """Lets go of what came from the broker, if it is acknowledged: it was read, and takes 5 KiB for as long as an
        agent waits. `told` is the one copy of its headers that stays."""
        if self.acknowledged:
            self._message = self._body = None
            self._on_ack = self._on_reject = noop
            self._request_dict = told
            self._delivery_info = told["delivery_info"]
            self._type, self._root_id = told["task"], told.get("root_id")
            self._argsrepr, self._kwargsrepr = told.get("argsrepr", ""), told.get("kwargsrepr", "")
            self.name = told.get("shadow") or self._type
            (self._payload[2] or {}).clear()  # names without values, see `may_be_awaited`

    @cached_property
    def is_run(self) -> bool:
        """Whether it belongs to an A2A task."""
        return RunRef.of(self.id) is not None

    @property
    def may_be_awaited(self) -> bool:
        """Whether a pool may await it on a loop: an agent's run, with nothing else that Celery does when it ends.
        Whoever sends an agent's task by hand may ask for that."""
        _, _, more = self._payload
        plain = bool(self.ignore_result) and not any((more or {}).values())
        return plain and self.is_run and hasattr(self.task, "begin_run")

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """The Celery task raised, or its process is gone."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
            if self.is_run:
                exc_info.exception = error  # else Celery's event, and so Flower, names the wrapping
        if self.is_run and not self._already_cancelled:  # handed back: not an end
            outcome = outcome_of_failure(self.id, error)
            lost = outcome == Failed(WORKER_LOST)
            if self._end(outcome, lost=lost) == CANCELED and lost and not self._already_revoked:
                # its client's cancel took the process along: Celery's word for that
                return self._announce_revoked("terminated", True, "canceled by its client", False)
        return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """A limit of Celery's was reached; after a soft one the run goes on, to end by itself."""
        if not soft:
            self._end(Failed(OUT_OF_TIME))
        return super().on_timeout(soft, timeout)

    def terminate(self, pool: Any, signal: Any = None) -> Any:
        """Someone revoked it with terminate=True: its end, also where a lost worker is not.

        Pools that can't do that raise NotImplementedError.
        """
        begun = self.time_start is not None  # else it is terminated as soon as it begins
        try:
            return super().terminate(pool, signal)
        except NotImplementedError:
            begun = False
            raise
        finally:
            if begun:
                self._end(Failed(WORKER_LOST))

    def revoked(self) -> bool:
        """Whether it shall not begin: it is another fleet's, was revoked while it waited, or has expired."""
        if self.is_run and fleet_of(self.request_dict) != self.task.handing_back.fleet:
            self._return_to_fleet()
            return True
        gone = bool(super().revoked())
        if gone and self.is_run and self.time_start is None:
            self._ender.end(self.id, Refused(NOT_BEGUN_IN_TIME if self.maybe_expire() else WITHDRAWN), worker_pid=None)
        return gone

    def _return_to_fleet(self) -> None:
        if not self._is_returned:
            self._is_returned = True
            task_ready(self)
            self.task.handing_back.return_message(self._message, self.acknowledge)

    @property
    def _process(self) -> int | None:
        """The process it has begun in; None: it has not. Green pools give the number of a greenlet for that."""
        green = detect_environment() != "default"  # type: ignore[no-untyped-call]
        return getpid() if green and self.worker_pid is not None else self.worker_pid

    @property
    def _ender(self) -> RunEnder:
        ender: RunEnder = self.task.ender
        return ender

    def _end(self, outcome: Outcome | None, *, lost: bool = False) -> TaskState | None:
        if outcome is None or not self.is_run:
            return None
        return self._ender.end(self.id, outcome, worker_pid=self._process, lost=lost)


def outcome_of_failure(celery_id: str, error: BaseException) -> Outcome | None:
    """How a run ends whose Celery task failed with `error`; None if that is no end."""
    match error:
        case RunFailed():
            return None  # it has ended
        case StoreUnavailable():
            return None  # it was not begun: the store still has it to dispatch
        case Retry() | Ignore() | Reject():
            return None  # what they mean to the run, it has said itself
        case TimeLimitExceeded() | SoftTimeLimitExceeded():
            return Failed(OUT_OF_TIME)
        case WorkerLostError() | Terminated() | SystemExit() | KeyboardInterrupt():
            return Failed(WORKER_LOST)
        case _:
            reference = uuid4().hex[:12]
            logger.error("run %s: its Celery task failed: %r [reference %s]", celery_id, error, reference)
            return Failed(reference=reference)
