"""Writing of a run's end from outside of the run: from the worker's main process or a pool thread, without an event
loop.

The store accepts the first end only, and refuses the end of a run that belongs to another worker or has a newer run.
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
    """Return the prefix of the runner's id of every run in process `pid` of this machine."""
    return f"{socket.gethostname()}.{_machine()}.{pid}."


@cache
def _machine() -> str:
    """Return an id that distinguishes machines, and containers of one machine, with the same name.

    Source: proc_sys_kernel(5), namespaces(7). Other systems than Linux only have names.
    """
    found = ""
    with suppress(OSError):
        found = f"{Path('/proc/sys/kernel/random/boot_id').read_text()} {os.readlink('/proc/self/ns/pid')}"
    return sha256(found.encode()).hexdigest()[:8]


class RunEnder:
    """Writes the final event of runs. Its store is created at the first use in a process, and so never before a
    fork."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._stores: dict[int, SyncStore] = {}
        # One lock per process, because a lock that is held during a fork stays locked in the child.
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
        """End the run `celery_id` if it is unclaimed, or if process `worker_pid` of this machine has claimed it.

        Never raises, because Celery calls it and must continue. Failures are logged, and the run's lease or its entry
        in the dispatch list ends it later.

        Args:
            lost: True if the worker was lost. The next attempt then begins, if the agent has one left.
            retries: Number of retries in the message. A message from before the last retry does not end the run. None:
                any message does.

        Returns:
            The state of the task if the run is over, or None.
        """
        try:
            return self._end(celery_id, outcome, worker_pid, lost, retries)
        except Exception:
            logger.exception("run %s: its end was not written", celery_id)
            return None

    def retry(self, celery_id: str, retried: Retried, retries: int, options: Callable[[bytes], RunOptions]) -> None:
        """Record that Celery retries the run `celery_id`, if this process has it and has not recorded the retry.

        Never raises, as `end`. After a failure, the claim of the next attempt records the retry.

        Args:
            retries: Number of retries of the run, including this one.
            options: Builds the options of the next attempt from those of this one.
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
        """Cancel the run `celery_id` in any process, because an operator sent `command`.

        Never raises, as `end`. After a failure, a watcher stops the run.
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
