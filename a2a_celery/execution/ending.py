"""Ending a run from outside of it: from the worker's main process, or a pool thread, where no event loop is.

Only what the run itself can no longer say is written: the store lets the first end win, and keeps runs that belong to
another worker or have a newer one behind them.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from threading import Lock

from a2a.types import TaskState

from ..config import Settings
from ..lifecycle import Outcome, final_event
from ..store import Keys, SyncStore
from ..store.runs import Over, RunRef, end_run
from ..store.tasks import read_task
from ..telemetry.logs import about
from ..telemetry.names import Action

logger = logging.getLogger(__name__)


def runner_prefix(pid: int) -> str:
    """How the runner's id of every run in process `pid` of this machine begins."""
    return f"{socket.gethostname()}.{pid}."


class RunEnder:
    """Writes the last event of runs. Its store is made at the first use in a process, so never before a fork."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._stores: dict[int, SyncStore] = {}
        # One lock per process, as in A2A: one that was held while a child was forked would stay locked there.
        self._locks: dict[int, Lock] = {}

    def end(self, celery_id: str, outcome: Outcome, *, worker_pid: int | None, lost: bool = False) -> TaskState | None:
        """Ends the run that `celery_id` names, if nobody has claimed it or a process `worker_pid` of this machine did.

        If its worker was `lost`, the next attempt comes instead, where the agent has one left. Gives the task's state
        if the run is over, whoever ended it; else None.

        Never raises: it is called from inside Celery, which must go on. What fails is logged, and the run's lease or
        its place in the dispatch list brings it to an end.
        """
        try:
            return self._end(celery_id, outcome, worker_pid, lost)
        except Exception:
            logger.exception("run %s: its end was not written", celery_id)
            return None

    def _end(self, celery_id: str, outcome: Outcome, worker_pid: int | None, lost: bool) -> TaskState | None:
        ref = RunRef.of(celery_id)
        if ref is None:
            return None
        store, keys = self._store(), Keys(self._settings().key_prefix)
        found = store.run(read_task(keys, None, ref.task_id, history_length=0, artifacts=False, whole=False))
        if found is None:
            return None
        event = final_event(outcome, ref.task_id, found[0].context_id)
        if event is None:
            return None
        runner = None if worker_pid is None else runner_prefix(worker_pid)
        answer = store.run(end_run(keys, ref, runner=runner, event=event, lost=lost))
        said = about(Action.RUN_ENDED_FROM_OUTSIDE, ref.name)
        logger.info("run %s ended from outside, %s: %s", ref.name, outcome, answer, extra=said)
        return answer.state if isinstance(answer, Over) else None

    def _store(self) -> SyncStore:
        pid = os.getpid()
        if pid not in self._stores:
            with self._locks.setdefault(pid, Lock()):
                if pid not in self._stores:
                    self._stores[pid] = SyncStore(self._settings().store_url)
        return self._stores[pid]
