"""Ending a run from outside of it: from the worker's main process, or a pool thread, where no event loop is.

Only what the run itself can no longer say is written: the store lets the first end win, and keeps runs that belong to
another worker or have a newer one behind them.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Lock

from a2a.types import TaskState, TaskStatusUpdateEvent

from ...clock import SYSTEM_CLOCK
from ...dispatch import MICROSECOND, RunOptions
from ...lifecycle import Outcome, Retried, final_event
from ...lifecycle.outcomes import revoked_by
from ...settings import Settings
from ...store import Keys, SyncStore
from ...store.runs.commands import Over, RunRef, end_run, revoke_run
from ...store.runs.release import read_retry, retry_run
from ...store.tasks.commands import read_task
from ...telemetry.logs import about
from ...telemetry.names import Action

logger = logging.getLogger(__name__)


def runner_prefix(pid: int) -> str:
    """Return how the runner's id of every run in process `pid` of this machine begins."""
    return f"{socket.gethostname()}.{_machine()}.{pid}."


@cache
def _machine() -> str:
    """Return what tells apart machines, and containers of one machine, that have the same name.

    Source: proc_sys_kernel(5), namespaces(7). Other systems than Linux have no such files, and names only.
    """
    found = ""
    with suppress(OSError):
        found = f"{Path('/proc/sys/kernel/random/boot_id').read_text()} {os.readlink('/proc/self/ns/pid')}"
    return sha256(found.encode()).hexdigest()[:8]


class RunEnder:
    """Writes the last event of runs. Its store is made at the first use in a process, so never before a fork."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._stores: dict[int, SyncStore] = {}
        # One lock per process, as in A2A: one that was held while a child was forked would stay locked there.
        self._locks: dict[int, Lock] = {}

    def end(
        self,
        celery_id: str,
        outcome: Outcome,
        *,
        worker_pid: int | None,
        lost: bool = False,
        retries: int | None = None,
    ) -> TaskState | None:
        """Ends the run that `celery_id` names, if nobody has claimed it or a process `worker_pid` of this machine did.

        If its worker was `lost`, the next attempt comes instead, where the agent has one left. Gives the task's state
        if the run is over, whoever ended it; else None. `retries` is the retry count of the message that was not begun:
        a message from before the run's last retry ends nothing. None: any message ends the run.

        Never raises: it is called from inside Celery, which must go on. What fails is logged, and the run's lease or
        its place in the dispatch list brings it to an end.
        """
        try:
            return self._end(celery_id, outcome, worker_pid, lost, retries)
        except Exception:
            logger.exception("run %s: its end was not written", celery_id)
            return None

    def retry(self, celery_id: str, retried: Retried, retries: int, options: Callable[[bytes], RunOptions]) -> None:
        """Write that Celery retries the run `celery_id` names, if this process has it and has not written so.

        Never raises, as `end`. Then the claim of the next attempt writes it.

        Args:
            celery_id: Id of the run's Celery task.
            retried: What clients see of the retry.
            retries: Number of retries of the run, with this one.
            options: Makes the options of the next attempt from those of this one.
        """
        try:
            self._retry(celery_id, retried, retries, options)
        except Exception:
            logger.exception("run %s: its retry was not written", celery_id)

    def _retry(self, celery_id: str, retried: Retried, retries: int, options: Callable[[bytes], RunOptions]) -> None:
        ref, runner, keys = RunRef.of(celery_id), runner_prefix(os.getpid()), Keys(self._settings().key_prefix)
        if ref is None:
            return
        run = self._store().run(read_retry(keys, ref, runner=runner, retries=retries))
        event = run and final_event(retried, ref.task_id, run.context_id)
        if run is None or not event:
            return
        again = options(run.options)
        look_after = timedelta(seconds=self._settings().redispatch_after)
        again_us = again.next_check_in(SYSTEM_CLOCK.now(), look_after) // MICROSECOND
        stored = again.to_json()
        writing = retry_run(keys, ref, runner=runner, event=event, options=stored, retries=retries, again_us=again_us)
        reply = self._store().run(writing)
        extra = about(Action.RUN_RETRIED, ref.name, attempt=retried.attempt)
        logger.info("run %s is retried by Celery: %s", ref.name, reply, extra=extra)

    def terminate(self, celery_id: str, command: str) -> None:
        """Cancel the run that `celery_id` names, whichever process has claimed it; an operator sent `command`.

        Never raises, as `end`. A run that goes on because of that is stopped by a watcher.
        """
        try:
            self._terminate(celery_id, command)
        except Exception:
            logger.exception("run %s: its worker was not asked to stop it", celery_id)

    def _terminate(self, celery_id: str, command: str) -> None:
        ref = RunRef.of(celery_id)
        event = self._final_event(ref, revoked_by(command)) if ref is not None else None
        if ref is None or event is None:
            return
        keys = Keys(self._settings().key_prefix)
        reply = self._store().run(revoke_run(keys, ref, event=event, terminate=True))
        logger.info("run %s was terminated by an operator: %s", ref.name, reply)

    def _final_event(self, ref: RunRef, outcome: Outcome) -> TaskStatusUpdateEvent | None:
        keys = Keys(self._settings().key_prefix)
        found = self._store().run(
            read_task(keys, None, ref.task_id, history_length=0, artifacts=False, resolve_blobs=False)
        )
        return final_event(outcome, ref.task_id, found[0].context_id) if found is not None else None

    def _end(
        self, celery_id: str, outcome: Outcome, worker_pid: int | None, lost: bool, retries: int | None
    ) -> TaskState | None:
        ref = RunRef.of(celery_id)
        if ref is None:
            return None
        event = self._final_event(ref, outcome)
        if event is None:
            return None
        runner = None if worker_pid is None else runner_prefix(worker_pid)
        keys = Keys(self._settings().key_prefix)
        answer = self._store().run(end_run(keys, ref, runner=runner, event=event, lost=lost, retries=retries))
        extra = about(Action.RUN_ENDED_FROM_OUTSIDE, ref.name)
        logger.info("run %s ended from outside, %s: %s", ref.name, outcome, answer, extra=extra)
        return answer.state if isinstance(answer, Over) else None

    def _store(self) -> SyncStore:
        pid = os.getpid()
        if pid not in self._stores:
            with self._locks.setdefault(pid, Lock()):
                if pid not in self._stores:
                    settings = self._settings()
                    self._stores[pid] = SyncStore(settings.store_url, wait_replicas=settings.store_wait_replicas)
        return self._stores[pid]
