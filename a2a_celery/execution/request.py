"""Celery's view of a run, in the worker's main process: what happens to it there ends it in the store first.

Celery tells of these ends by signals too, in several processes and some of them twice, and none of these carries the
process that ran the run, which is what says whether the run is ours to end. A request class of one's own is Celery's
other documented way to hear of them. Each call comes before or around Celery's own handling and changes nothing of it.
"""

from __future__ import annotations

import logging
from typing import Any
from uuid import uuid4

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import SoftTimeLimitExceeded, Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker.request import Request

from ..errors import StoreUnavailable
from ..lifecycle import Failed, Outcome, Refused
from ..lifecycle.outcomes import NOT_BEGUN_IN_TIME, OUT_OF_TIME, WITHDRAWN, WORKER_LOST
from .ending import RunEnder

logger = logging.getLogger(__name__)


class RunFailed(Exception):
    """Tells Celery that a run failed, when the store knows it already: Flower and Celery's events then say so too."""


class RunRequest(Request):  # type: ignore[misc]
    """A run, as the worker that received it keeps it. The task's `ender` is a `RunEnder`."""

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """The Celery task raised, or its process is gone."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if not self._already_cancelled:  # handed back: not an end
            outcome = outcome_of_failure(self.id, error)
            self._end(outcome, lost=outcome == Failed(WORKER_LOST))
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
        """Whether it shall not begin: it was revoked while it waited, or has expired."""
        gone = bool(super().revoked())
        if gone and self.time_start is None:
            self._ender.end(self.id, Refused(NOT_BEGUN_IN_TIME if self.maybe_expire() else WITHDRAWN), worker_pid=None)
        return gone

    @property
    def _ender(self) -> RunEnder:
        ender: RunEnder = self.task.ender
        return ender

    def _end(self, outcome: Outcome | None, *, lost: bool = False) -> None:
        if outcome is not None:
            self._ender.end(self.id, outcome, worker_pid=self.worker_pid, lost=lost)


def outcome_of_failure(celery_id: str, error: BaseException) -> Outcome | None:
    """How a run ends whose Celery task failed with `error`; None if that is no end."""
    match error:
        case RunFailed():
            return None  # it has ended
        case StoreUnavailable():
            return None  # it was not begun: the store still has it to dispatch
        case TimeLimitExceeded() | SoftTimeLimitExceeded():
            return Failed(OUT_OF_TIME)
        case WorkerLostError() | Terminated() | SystemExit() | KeyboardInterrupt():
            return Failed(WORKER_LOST)
        case _:
            reference = uuid4().hex[:12]
            logger.error("run %s: its Celery task failed: %r [reference %s]", celery_id, error, reference)
            return Failed(reference=reference)
