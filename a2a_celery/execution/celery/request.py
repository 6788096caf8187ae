"""Celery's view of a run, in the worker's main process: what happens to it there ends it in the store first.

Celery tells of these ends by signals too, in several processes and some of them twice, and none of these carries the
process that ran the run, which is what says whether the run is ours to end. A request class of one's own is Celery's
other documented way to hear of them. Each call comes before or around Celery's own handling and changes nothing of it.
"""

from __future__ import annotations

import logging
from functools import cached_property
from os import getpid
from typing import Any, ClassVar
from uuid import uuid4
from weakref import WeakValueDictionary

from a2a.types import TaskState
from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import SoftTimeLimitExceeded, Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import task_revoked
from celery.worker.request import Request
from celery.worker.state import revoked as revoked_tasks
from celery.worker.state import task_ready
from kombu.utils.compat import detect_environment

from ...clock import SYSTEM_CLOCK
from ...dispatch import fleet_of
from ...errors import StoreUnavailable
from ...integrations.celery import RequestInternals
from ...lifecycle import Canceled, Failure, Lost, Outcome, Paused, Refused, Rejection, Retried
from ...lifecycle.outcomes import AGENT_FAILED, INVALID_ANSWER, NOT_BEGUN_IN_TIME, OUT_OF_TIME, WORKER_LOST, revoked_by
from ...lifecycle.states import CANCELED, REJECTED
from ...store.runs.commands import RunRef
from ..process.run_ender import RunEnder
from ..process.shutdown_requeuer import ShutdownRequeuer
from ..retries import without_cycle
from .celery_events import mark_events_enabled

logger = logging.getLogger(__name__)


DROPPED = "DROPPED"
"""Name of the end of a Celery task that did not begin a run: its message is a copy, or outdated."""

EVENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "CANCELED": ("task-revoked", {"terminated": False, "signum": None, "expired": False}),
    # not task-rejected: Celery takes that for an earlier state than the STARTED that it follows
    "REJECTED": ("task-refused", {}),
    "INPUT_REQUIRED": ("task-input_required", {}),
    "AUTH_REQUIRED": ("task-auth_required", {}),
    DROPPED: ("task-dropped", {}),
}
"""The event and its fields that Flower gets for each end of a run which is no success and no failure."""


class RunConcluded(Ignore):  # type: ignore[misc]
    """Tells Celery that a run ended, and neither succeeded nor failed: no receiver of `task_success` is called.

    Its argument is a key of `EVENTS`. The main process sends the event, and for CANCELED the signal `task_revoked`.
    """

    @classmethod
    def in_state(cls, state: TaskState) -> RunConcluded:
        """Return the exception for a run that left its task in `state`."""
        return cls(TaskState.Name(state).removeprefix("TASK_STATE_"))

    @property
    def end(self) -> str:
        """The key of `EVENTS`."""
        return str(self.args[0])


RUN_IS_OVER = "a2a_run_is_over"
"""Attribute of Celery's request of a task: the run has written its end, so a signal about it tells nothing new."""


class RunFailed(Exception):
    """Tells Celery that a run failed, when the store knows it already: Flower and Celery's events then say so too."""


class RunRetried(Exception):
    """The cause of a retry, for Celery's listeners: the class of the agent's exception and none of its text."""


class RunRequest(RequestInternals, Request):  # type: ignore[misc]
    """A run, as the worker that received it keeps it. The task's `ender` is a `RunEnder`, its `requeuer` a
    `ShutdownRequeuer`, and its `stop_here` stops a run in this very process."""

    pool_to_leave: ClassVar[Any] = None
    """The pool of a worker in cold shutdown: what begins in it is stopped at once. Else None."""

    begun: ClassVar[WeakValueDictionary[str, RunRequest]] = WeakValueDictionary()
    """The requests that have begun, by their Celery ids. A prefork child inherits some, and uses none."""

    _is_returned = False

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        if self.is_run:
            mark_events_enabled(self)

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """It begins in process `pid`."""
        self.begun[self.id] = self
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
            self.announce_cancelled()

    def give_up(self) -> None:
        """Its worker stops: what is to become of it is decided in the store, while Celery goes on here."""
        requeuer: ShutdownRequeuer = self.task.requeuer
        if self.is_run:
            requeuer.give_up(self.id, worker_pid=self.process)

    def _conclude(self, end: str) -> None:
        """Send what fits the end of a run which is no success and no failure."""
        task_ready(self)
        self.acknowledge()
        if self.is_announced_revoked:
            return  # and said so
        if end == DROPPED and self.id in revoked_tasks:  # by a pool that queues requests, and does not look again
            end = "CANCELED"
        type, fields = EVENTS[end]
        # a copy's few milliseconds are not the times of the run itself
        began = None if end == DROPPED else self.time_start
        times = {} if began is None else {"runtime": SYSTEM_CLOCK.time() - began}
        self.send_event(type, **fields, **times)
        if end == "CANCELED":
            self.task_context.update({RUN_IS_OVER: True})
            task_revoked.send(sender=self.task, request=self.task_context, **fields)

    def release_if_acknowledged(self, headers: dict[str, Any]) -> None:
        """Release the message of an acknowledged request, and keep `headers` as the only copy of its headers."""
        if self.acknowledged:
            self.release_message(headers)  # `canvas_options` are empty then, see `may_be_awaited`

    @cached_property
    def is_run(self) -> bool:
        """Return True if the request belongs to an A2A task."""
        return RunRef.of(self.id) is not None

    @property
    def may_be_awaited(self) -> bool:
        """Return True if a pool may await the call on an event loop.

        This holds for the run of an agent without callbacks, links or other work of Celery at its end. A message
        that was sent by hand may request these.
        """
        plain = bool(self.ignore_result) and not any(self.canvas_options.values())
        return plain and self.is_run and hasattr(self.task, "begin_run")

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """The Celery task raised, or its process is gone."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
            if self.is_run:
                exc_info.exception = error  # else Celery's event, and so Flower, names the wrapping
        if self.is_run and isinstance(error, RunConcluded):
            return self._conclude(error.end)
        if self.is_run and not self.is_announced_cancelled:  # handed back: not an end
            outcome = outcome_of_failure(self.id, error)
            lost = outcome == Failure(WORKER_LOST)
            if self._end(outcome, lost=lost) == CANCELED and lost and not self.is_announced_revoked:
                # its client's cancel took the process along: Celery's word for that
                return self.announce_terminated("canceled by its client")
        return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """Handle a time limit of Celery. After a soft limit the run continues, and its agent ends it."""
        if not soft:
            self._end(Failure(OUT_OF_TIME))
        return super().on_timeout(soft, timeout)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """An operator revoked the request with terminate=True: cancel the run, which is not tried again.

        A pool that cannot end one of its tasks raises NotImplementedError: there the agent is stopped as by a client's
        cancel, and Celery announces the end when the agent has stopped.
        """
        if not self.is_run:
            super().terminate(pool, signal)
            return
        has_begun = self.time_start is not None  # else Celery terminates it when it begins
        if has_begun and _is_green():  # a killed greenlet writes an end before the pool returns
            self._ender.end(self.id, revoked_by("terminate"), worker_pid=self.process)
        try:
            super().terminate(pool, signal)
        except NotImplementedError:
            self._ender.terminate(self.id, "terminate")
            return
        self._ender.end(self.id, revoked_by("terminate"), worker_pid=self.process if has_begun else None)

    def revoked(self) -> bool:
        """Return True if the run must not begin: it has expired, was revoked, or belongs to another fleet."""
        if self.is_run and fleet_of(self.request_dict) != self.task.requeuer.fleet:
            self._return_to_fleet()
            return True
        was_revoked = self.id in revoked_tasks
        gone = bool(super().revoked())
        if gone and self.is_run and self.time_start is None:
            if self.maybe_expire():
                self._end_expired(was_revoked)
            else:
                self._ender.end(self.id, revoked_by("revoke"), worker_pid=None)
        return gone

    def _end_expired(self, was_revoked: bool) -> None:
        """End the run if this message was its newest.

        Celery revokes the id of an expired message. A retry of the run has the same id and must begin.
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
        """The process in which the run has begun, or None. Green pools report the number of a greenlet instead."""
        return getpid() if _is_green() and self.worker_pid is not None else self.worker_pid

    @property
    def _ender(self) -> RunEnder:
        ender: RunEnder = self.task.ender
        return ender

    def _end(self, outcome: Outcome | None, *, lost: bool = False) -> TaskState | None:
        if outcome is None or not self.is_run:
            return None
        return self._ender.end(self.id, outcome, worker_pid=self.process, lost=lost)


def _is_green() -> bool:
    """Return whether the tasks of this process run in greenlets."""
    return bool(detect_environment() != "default")  # type: ignore[no-untyped-call]


def outcome_of_failure(celery_id: str, error: BaseException) -> Outcome | None:
    """Return the outcome of a run whose Celery task failed with `error`, or None if the error does not end the run."""
    match error:
        case RunFailed():
            return None  # it has ended
        case StoreUnavailable():
            return None  # it was not begun: the store still has it to dispatch
        case Retry() | Ignore() | Reject():
            return None  # what they mean to the run, it has said itself
        case TimeLimitExceeded() | SoftTimeLimitExceeded():
            return Failure(OUT_OF_TIME)
        case Terminated():
            return revoked_by("terminate")
        case WorkerLostError() | SystemExit() | KeyboardInterrupt():
            return Failure(WORKER_LOST)
        case _:
            reference = uuid4().hex[:12]
            logger.error("run %s: its Celery task failed: %r [reference %s]", celery_id, error, reference)
            return Failure(reference=reference)


def celery_result(outcome: Outcome | None) -> str:
    """Return the result of the Celery task of a run that completed.

    Raises:
        RunFailed: The run failed. The text is one of our sentences: an agent's may quote the client.
        RunConcluded: The run ended otherwise, or its message did not begin it.
        Retry: The run is retried.
        Ignore: Another process decides how the run goes on.
    """
    match outcome:
        case Failure(text, reference):
            sentence = text if text in (INVALID_ANSWER, OUT_OF_TIME, WORKER_LOST) else AGENT_FAILED
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
        case None:
            raise RunConcluded(DROPPED)
        case _:
            return "A2A: COMPLETED"
