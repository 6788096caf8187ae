"""Custom Celery request class for runs. In the worker's main process, a request writes the outcomes that the run itself
cannot write.

Celery's signals also report the outcomes of runs, but in several processes, and some outcomes twice. The signals do not
identify the process that executed the run, although this process determines whether the worker may end the run. A
custom request class is Celery's other documented interface. Each method acts before or after Celery's own handling,
which does not change.
"""

from __future__ import annotations

import logging
from functools import cached_property
from os import getpid
from signal import SIGTERM
from typing import Any, ClassVar
from uuid import uuid4
from weakref import WeakValueDictionary

from a2a.types import TaskState
from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import SoftTimeLimitExceeded, Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import task_revoked
from celery.worker import state
from celery.worker.request import Request
from celery.worker.state import revoked as revoked_tasks
from celery.worker.state import task_ready
from kombu.utils.compat import detect_environment

from ...clock import SYSTEM_CLOCK
from ...dispatch import fleet_of
from ...errors import StoreUnavailable
from ...integrations.celery import RequestInternals, without_cycle
from ...lifecycle import (
    Canceled,
    Failure,
    Lost,
    Outcome,
    Paused,
    Refused,
    Rejection,
    Retried,
    Superseded,
    Suspended,
)
from ...lifecycle.outcomes import (
    AGENT_FAILED,
    INVALID_RESPONSE,
    NOT_BEGUN_IN_TIME,
    OUT_OF_TIME,
    WORKER_LOST,
    revoked_by,
)
from ...lifecycle.references import RunRef
from ...lifecycle.states import CANCELED, REJECTED, short_name
from ..process.forced_stop import RunEnder
from ..process.shutdown_requeuer import ShutdownRequeuer
from .celery_events import mark_events_enabled

DROPPED = "DROPPED"
"""Outcome name of a Celery task that did not begin a run, because the message is a duplicate or outdated."""

SUSPENDED = "SUSPENDED"
"""Outcome name of a Celery task whose run continues later, as another Celery task."""

SUPERSEDED = "SUPERSEDED"
"""Outcome name of a run that a further message of the client interrupted."""

EVENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "CANCELED": ("task-revoked", {"terminated": False, "signum": None, "expired": False}),
    # not task-rejected, which Celery orders before STARTED
    "REJECTED": ("task-refused", {}),
    "INPUT_REQUIRED": ("task-input_required", {}),
    "AUTH_REQUIRED": ("task-auth_required", {}),
    SUSPENDED: ("task-suspended", {}),
    DROPPED: ("task-dropped", {}),
    SUPERSEDED: ("task-superseded", {}),
}
"""Celery event and its fields, by the name of an outcome that is neither success nor failure."""


class RunConcluded(Ignore):  # type: ignore[misc]
    """Exception for a run that ended neither in success nor in failure, so that Celery sends no `task_success`.

    The argument is a key of `EVENTS`. The main process sends the event, and also `task_revoked` for CANCELED.
    """

    @classmethod
    def in_state(cls, state: TaskState) -> RunConcluded:
        """Return the exception for a run that left its task in `state`."""
        return cls(short_name(state))

    @property
    def end(self) -> str:
        """Name of the run's outcome, which is a key of `EVENTS`."""
        return str(self.args[0])


class PausedRunFilter(logging.Filter):
    """Filter that drops Celery's line "Task … ignored" for a run whose task continues later. The lines of other tasks
    and of other outcomes stay."""

    PAUSED = frozenset(repr(RunConcluded(end)) for end in (SUSPENDED, "INPUT_REQUIRED", "AUTH_REQUIRED"))

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for the line of a paused run."""
        fields = getattr(record, "data", None)
        return not (isinstance(fields, dict) and fields.get("exc") in self.PAUSED)


RUN_IS_OVER = "a2a_run_is_over"
"""Attribute of Celery's request of a task. If true, the run has written its outcome, so signal receivers ignore it."""


class RunFailed(Exception):
    """Exception for a failed run whose outcome is in the store. Flower and Celery's events then report a failure.

    A plain Celery task also fails with this exception if it asks a question in a call that is not a run.
    """


class RunRetried(Exception):
    """Cause of a retry in Celery's events, which contains the class of the agent's exception but not the text."""


class RunRequest(RequestInternals, Request):  # type: ignore[misc]
    """Celery request for a run, in the worker that received the message.

    The request's task has three attributes for this class. `ender` is a `RunEnder`, `requeuer` is a `ShutdownRequeuer`,
    and `stop_here` is a function that stops a run in this process.
    """

    pool_to_leave: ClassVar[Any] = None
    """Pool of this worker during a cold shutdown, or None. Calls that the pool begins during the shutdown are
    stopped immediately."""

    active: ClassVar[WeakValueDictionary[str, RunRequest]] = WeakValueDictionary()
    """Requests that have begun, by Celery id. A prefork child inherits some of these requests and does not use them."""

    _is_returned = False

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        if self.is_run:
            mark_events_enabled(self)

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Record that process `pid` begins the request. During a cold shutdown, cancel the request of a run
        immediately."""
        self.active[self.id] = self
        super().on_accepted(pid, time_accepted)
        if self.pool_to_leave is not None and self.is_run:
            self.cancel(self.pool_to_leave)

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """Requeue the run, because the stopping worker cannot wait for the run. Celery alone would report a retry and
        lose the run.

        On prefork, a signal is sent to the run's process. Other pools raise NotImplementedError, and the agent is
        stopped in this process.
        """
        if not self.is_run:
            super().cancel(pool, signal, emit_retry=emit_retry)
            return
        self.give_up()
        try:
            super().cancel(pool, signal, emit_retry=False)
        except NotImplementedError:
            self.task.stop_here(self.id)
            self.announce_cancelled()

    def give_up(self) -> None:
        """Requeue the run in the store, because its worker is stopping."""
        requeuer: ShutdownRequeuer = self.task.requeuer
        if self.is_run:
            requeuer.give_up(self.id, worker_pid=self.process)

    def _conclude(self, end: str) -> None:
        """Acknowledge the message, and send the Celery event for an outcome that is neither success nor failure."""
        task_ready(self)
        self.acknowledge()
        if self.is_announced_revoked:
            return  # Celery has sent the event
        if end == DROPPED and self.id in revoked_tasks:  # the pool did not check again whether the task is revoked
            end = "CANCELED"
        type, fields = EVENTS[end]
        # the times of a duplicate are not the times of the run
        began = None if end == DROPPED else self.time_start
        times = {} if began is None else {"runtime": SYSTEM_CLOCK.time() - began}
        self.send_event(type, **fields, **times)
        if end == "CANCELED":
            self.task_context.update({RUN_IS_OVER: True})
            task_revoked.send(sender=self.task, request=self.task_context, **fields)

    def release_if_acknowledged(self, headers: dict[str, Any]) -> None:
        """Release the message of an acknowledged request to free memory. Only `headers` keeps the message's headers."""
        if self.acknowledged:
            self.release_message(headers)  # `canvas_options` is empty; see `may_be_awaited`

    @cached_property
    def is_run(self) -> bool:
        """True if the request belongs to an A2A task."""
        return RunRef.of(self.id) is not None

    @property
    def may_be_awaited(self) -> bool:
        """True if a pool may await the call on an event loop.

        The call must be a run of an agent, without callbacks, links or other work after the call. Only a manually
        published message requests such work.
        """
        plain = bool(self.ignore_result) and not any(self.canvas_options.values())
        return plain and self.is_run and hasattr(self.task, "begin_run")

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """Handle an exception of the Celery task or the loss of its process."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
            if self.is_run:
                exc_info.exception = error  # otherwise Celery's event and Flower would show the wrapper
        if self.is_run and isinstance(error, RunConcluded):
            return self._conclude(error.end)
        if self.is_run and not self.is_announced_cancelled:  # a requeued run has not ended
            outcome = outcome_of_failure(error)
            is_lost = outcome == Failure(WORKER_LOST)
            if self._end(outcome, lost=is_lost, error=error) == CANCELED and is_lost and not self.is_announced_revoked:
                # the process exited because of a client's cancel request, so Celery reports a termination
                return self.announce_terminated("canceled by its client")
        return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)

    def send_event(self, type: str, **fields: Any) -> None:
        """Send an event of the Celery task, except for the success that green pools report for a killed greenlet."""
        is_killed = type == "task-succeeded" and fields["runtime"] is None and _is_green()
        if not (is_killed and self.is_run):
            super().send_event(type, **fields)

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """Handle a time limit of Celery. After a soft limit, the run continues until the agent ends the run."""
        if not soft:
            self._end(Failure(OUT_OF_TIME))
        return super().on_timeout(soft, timeout)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Cancel the run without another attempt, because an operator revoked the request with terminate=True.

        Unless the operator chose a signal other than SIGTERM, an agent in a prefork child is stopped as if a client had
        cancelled the task, so that the work of the run is also cancelled. An agent is also stopped in this way if the
        pool cannot terminate calls and raises NotImplementedError. Celery reports the outcome afterwards.
        """
        if not self.is_run:
            super().terminate(pool, signal)
            return
        has_begun = self.time_start is not None  # otherwise Celery terminates the request when it begins
        stops_agent = has_begun and self._is_agent_in_child and signal in (None, SIGTERM)
        if stops_agent and self._ender.terminate(self.id, "terminate"):
            return
        process = self.process if has_begun else None
        if _is_green():  # a killed greenlet writes an outcome before the pool returns
            self._ender.end(self.id, revoked_by("terminate"), worker_pid=process)
            if not has_begun:  # a greenlet that is killed when it begins cannot announce that it was revoked
                return
        try:
            super().terminate(pool, signal)
        except NotImplementedError:
            self._ender.terminate(self.id, "terminate")
            return
        self._ender.end(self.id, revoked_by("terminate"), worker_pid=process)

    def revoked(self) -> bool:
        """Return True if the run must not begin, because it has expired, was revoked, or belongs to another fleet.

        This method also ends an expired or revoked run, and returns the message of another fleet's run to its queue.
        """
        if self.is_run and fleet_of(self.request_dict) != self.task.requeuer.fleet:
            self._return_to_fleet()
            return True
        was_revoked = self.id in revoked_tasks
        is_revoked = bool(super().revoked())
        if is_revoked and self.is_run and self.time_start is None:
            if self.maybe_expire():
                self._end_expired(was_revoked)
            else:
                self._ender.end(self.id, revoked_by("revoke"), worker_pid=None)
        return is_revoked

    def _end_expired(self, was_revoked: bool) -> None:
        """End the run if this message is the newest message of the run.

        Celery revokes the id of an expired message. A retry of the run has the same id but must still begin.
        """
        retries = self.request_dict.get("retries") or 0
        state = self._ender.end(self.id, Refused(NOT_BEGUN_IN_TIME), worker_pid=None, retries=retries)
        if state is None and not was_revoked:
            revoked_tasks.discard(self.id)

    def _return_to_fleet(self) -> None:
        if not self._is_returned:
            self._is_returned = True
            task_ready(self)
            self.task.requeuer.return_message(self.raw_message, self.acknowledge)

    @property
    def process(self) -> int | None:
        """Id of the process in which the run has begun, or None. On green pools, `worker_pid` identifies a greenlet."""
        return getpid() if _is_green() and self.worker_pid is not None else self.worker_pid

    @property
    def _is_agent_in_child(self) -> bool:
        """True if the request is an agent's run that has begun in a child process of this worker."""
        return hasattr(self.task, "begin_run") and not _is_green() and self.worker_pid not in (None, getpid())

    @property
    def _ender(self) -> RunEnder:
        ender: RunEnder = self.task.ender
        return ender

    def _end(
        self, outcome: Outcome | None, *, lost: bool = False, error: BaseException | None = None
    ) -> TaskState | None:
        if outcome is None or not self.is_run:
            return None
        return self._ender.end(self.id, outcome, worker_pid=self.process, lost=lost, error=error)


def unfinished_requests() -> list[Request]:
    """Return the requests that this worker has received but not finished.

    ``celery.worker.state.requests`` is not used, because it contains only one request for each id. On prefork, the
    retry of a task may arrive before the preceding attempt has ended. When that attempt ends, Celery then also removes
    the request of the retry.
    """
    while True:
        try:
            return list({*state.reserved_requests, *state.scheduled_requests, *state.active_requests})
        except RuntimeError:  # another thread has changed a set
            continue


def _is_green() -> bool:
    """Return True if the tasks of this process run in greenlets."""
    return bool(detect_environment() != "default")  # type: ignore[no-untyped-call]


def outcome_of_failure(error: BaseException) -> Outcome | None:
    """Return the outcome of a run whose Celery task failed with `error`, or None if the error does not end the run. The
    reference of a `Failure` is logged by `RunEnder.end`, if the run has not ended before."""
    match error:
        case RunFailed():
            return None  # the run has ended
        case StoreUnavailable():
            return None  # the run has not begun, and will be published again
        case Retry() | Ignore() | Reject():
            return None  # the run has already written its outcome
        case TimeLimitExceeded() | SoftTimeLimitExceeded():
            return Failure(OUT_OF_TIME)
        case Terminated():
            return revoked_by("terminate")
        case WorkerLostError() | SystemExit() | KeyboardInterrupt():
            return Failure(WORKER_LOST)
        case _:
            return Failure(reference=uuid4().hex[:12])


def celery_result(outcome: Outcome | None) -> str:
    """Return the result of the Celery task for a completed run.

    Raises:
        RunFailed: The run failed. The text is a fixed sentence, because an agent's text may quote the client.
        RunConcluded: The run ended in another way, or the message did not begin a run.
        Retry: The run is retried.
        Ignore: Another process continues the run.
    """
    match outcome:
        case Failure(text, reference):
            sentence = text if text in (INVALID_RESPONSE, OUT_OF_TIME, WORKER_LOST) else AGENT_FAILED
            raise RunFailed(f"{sentence} [reference {reference}]" if reference else sentence)
        case Retried(when=when, cause=cause):
            raise without_cycle(Retry(exc=RunRetried(cause), when=when or 0))
        case Lost():
            raise Ignore
        case Canceled():
            raise RunConcluded.in_state(CANCELED)
        case Rejection() | Refused():
            raise RunConcluded.in_state(REJECTED)
        case Paused(state):
            raise RunConcluded.in_state(state)
        case Suspended():
            raise RunConcluded(SUSPENDED)
        case Superseded():
            raise RunConcluded(SUPERSEDED)
        case None:
            raise RunConcluded(DROPPED)
        case _:
            return "A2A: COMPLETED"
