"""Forced stop of an agent that ignores cancellation, by the exit of its prefork child.

A prefork child executes one Celery task at a time, and the main process of the worker replaces a child that exits.
Python cannot stop a thread, so the child exits instead. After the exit, the main process writes the outcome of the run
(see `RunEnder`). Other pools cannot stop an agent by force.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from enum import Enum
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Event, Lock
from typing import Any, TypeVar
from uuid import uuid4

from a2a.types import Task, TaskState
from billiard import current_process
from billiard.pool import EX_RECYCLE
from celery import Celery, bootsteps

from ...clock import SYSTEM_CLOCK, Clock
from ...dispatch import RunOptions
from ...lifecycle import Failure, Outcome, Retried, final_event, is_terminal
from ...lifecycle.execution import runner_id
from ...lifecycle.outcomes import revoked_by
from ...lifecycle.references import RunRef
from ...settings import Settings
from ...store import Keys, SyncStore
from ...store.runs.commands import Over, end_run, revoke_run
from ...store.runs.release import read_retry, retry_run
from ...store.tasks.commands import read_task
from ...telemetry.logs import about
from ...telemetry.names import Action

T = TypeVar("T")

OVERSIGHT_INTERVAL = 0.5
"""Default seconds between two checks of a run, and the time within which its event loop must respond."""

abandoned_runs: set[str] = set()
"""Names of the runs in this process whose agents were stopped but are still executing."""

COUNT_EVERY = 0.25
"""Seconds between two counts of the children of a pool."""


class Stop(Enum):
    """Reason why a worker stops a run before the agent has ended."""

    CANCEL = "a client canceled it"
    LOST = "another worker has its lease"
    OUT_OF_TIME = "it reached a time limit"
    ABORT = "its Celery task was aborted"
    TERMINATED = "an operator terminated its Celery task"
    STUCK = "its events cannot be written"
    INTERRUPT = "a message of its client interrupts it"
    SHUTDOWN = "its worker shuts down and has requeued it"


def connect(app: Celery) -> None:
    """Make the workers of `app` detect the exit of a child quickly."""
    app.steps["worker"].add(CountsChildren)


class CountsChildren(bootsteps.StartStopStep):  # type: ignore[misc]
    """Boot step that counts the children of a prefork pool four times a second.

    Celery counts the children as soon as the pipe of a child closes. The system reports the exit code shortly
    afterwards, so Celery's count usually misses the child. Celery's next count follows up to five seconds later.
    """

    requires = ("celery.worker.components:Pool",)

    def register_with_event_loop(self, worker: Any, hub: Any) -> None:
        """Count the children periodically on the worker's event loop. Celery calls this hook."""
        hub.call_repeatedly(COUNT_EVERY, worker.pool.maintain_pool)


def in_pool_child() -> bool:
    """Return True in a prefork child. Billiard marks only prefork children as daemons."""
    return bool(current_process().daemon)


def end_process() -> None:
    """Exit immediately, from any thread.

    The exit code is that of a child that has reached `worker_max_tasks_per_child`. The pool therefore does not count a
    restart, and reports the run as lost.
    """
    os._exit(EX_RECYCLE)


def oversee(
    under_way: Future[T],
    loop: asyncio.AbstractEventLoop,
    on_block: Callable[[], None],
    interval: float = OVERSIGHT_INTERVAL,
) -> T:
    """Wait for `under_way`, which is executed on `loop`, and return its result.

    While the loop does not respond, call `on_block` in this thread every `interval` seconds.
    """
    while True:
        try:
            return under_way.result(interval)
        except TimeoutError:
            if under_way.done():
                return under_way.result()
        response = Event()
        loop.call_soon_threadsafe(response.set)
        while not response.wait(interval):
            on_block()


class GracePeriod:
    """Time for which a run may ignore a stop request: `grace` seconds from the first check with a reason to stop."""

    def __init__(self, grace: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._grace = grace
        self._clock = clock
        self._until: float | None = None

    def is_over(self, reason: object | None) -> bool:
        """Return True if every check in the period had a `reason`. A check without a reason restarts the period."""
        if reason is None:
            self._until = None
        elif self._until is None:
            self._until = self._clock.monotonic() + self._grace
        return self._until is not None and self._clock.monotonic() >= self._until


logger = logging.getLogger(__name__)


def runner_prefix(pid: int) -> str:
    """Return the prefix of the runner ids of all runs in process `pid` of this machine."""
    return f"{socket.gethostname()}.{machine_id()}.{pid}."


def new_runner_id(node: str) -> str:
    """Return a new runner id for this process, with the node name `node` of its worker, or "" for no node name."""
    return runner_id(f"{runner_prefix(os.getpid())}{uuid4().hex[:8]}", node)


@cache
def machine_id() -> str:
    """Return an id that distinguishes this machine or container from others with the same host name.

    Source: proc_sys_kernel(5), namespaces(7). On systems other than Linux, the id is constant.
    """
    identity = ""
    with suppress(OSError):
        identity = f"{Path('/proc/sys/kernel/random/boot_id').read_text()} {os.readlink('/proc/self/ns/pid')}"
    return sha256(identity.encode()).hexdigest()[:8]


class RunEnder:
    """Writer of the final events of runs. Each process creates its store client on first use, and therefore never
    before a fork."""

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
        error: BaseException | None = None,
    ) -> TaskState | None:
        """End the run `celery_id` if the run is unclaimed, or if process `worker_pid` of this machine has claimed it.

        Errors are logged and never raised, because Celery calls this method and must continue. After an error, a
        watcher recovers the run later, through the run's lease or its entry in the dispatch list.

        Args:
            lost: True if the worker was lost. In this case, the next attempt begins if an attempt is left.
            retries: Number of retries of the run when its message was published, or None to end the run in any case. If
                the run has been retried since, it is not ended.
            error: Exception of the Celery task, which is logged if the run has not ended before, or None. The line is a
                warning, because Celery reports the exception as an error.

        Returns:
            The state of the task if the run is over, or None.
        """
        try:
            return self._end(celery_id, outcome, worker_pid, lost, retries, error)
        except Exception:
            cause = "" if error is None else f" after its Celery task failed: {error!r}"
            logger.exception("run %s: could not write its final status%s", celery_id, cause)
            return None

    def retry(self, celery_id: str, retry: Retried, retries: int, options: Callable[[bytes], RunOptions]) -> None:
        """Record that Celery retries the run `celery_id`, if this process has the run and has not recorded the retry.

        As in `end`, errors are never raised. After an error, the claim of the next attempt records the retry.

        Args:
            retries: Number of retries of the run, including this one.
            options: Function that builds the options of the next attempt from the options of this attempt.
        """
        try:
            self._retry(celery_id, retry, retries, options)
        except Exception:
            logger.exception("run %s: could not write its retry", celery_id)

    def _retry(self, celery_id: str, retry: Retried, retries: int, options: Callable[[bytes], RunOptions]) -> None:
        ref, runner, keys = RunRef.of(celery_id), runner_prefix(os.getpid()), Keys(self._settings().key_prefix)
        if ref is None:
            return
        run = self._store().run(read_retry(keys, ref, runner=runner, retries=retries))
        event = run and final_event(retry, ref.task_id, run.context_id)
        if run is None or not event:
            return
        retry_options = options(run.options)
        delay_us = retry_options.republish_in(SYSTEM_CLOCK.now(), self._settings())
        options_json = retry_options.to_json()
        writing = retry_run(
            keys, ref, runner=runner, event=event, options=options_json, retries=retries, delay_us=delay_us
        )
        reply = self._store().run(writing)
        extra = about(Action.RUN_RETRIED, ref.name, attempt=retry.attempt)
        logger.info("run %s is retried by Celery: %s", ref.name, reply, extra=extra)

    def terminate(self, celery_id: str, command: str) -> bool:
        """Cancel the run `celery_id` in any process, because an operator sent `command`.

        As in `end`, errors are never raised. After an error, a watcher stops the run.

        Returns:
            True, or False after an error.
        """
        try:
            self._terminate(celery_id, command)
        except Exception:
            logger.exception("run %s: could not ask its worker to cancel it", celery_id)
            return False
        return True

    def _terminate(self, celery_id: str, command: str) -> None:
        ref = RunRef.of(celery_id)
        task = None if ref is None else self._read_task(ref)
        event = task and ref and final_event(revoked_by(command), ref.task_id, task.context_id)
        if ref is None or not event:
            return
        keys = Keys(self._settings().key_prefix)
        reply = self._store().run(revoke_run(keys, ref, event=event, terminate=True))
        logger.info("run %s was terminated by an operator: %s", ref.name, reply)

    def _read_task(self, ref: RunRef) -> Task | None:
        keys = Keys(self._settings().key_prefix)
        snapshot = self._store().run(
            read_task(keys, None, ref.task_id, history_length=0, artifacts=False, resolve_blobs=False)
        )
        return None if snapshot is None else snapshot[0]

    def _end(
        self,
        celery_id: str,
        outcome: Outcome,
        worker_pid: int | None,
        lost: bool,
        retries: int | None,
        error: BaseException | None,
    ) -> TaskState | None:
        ref = RunRef.of(celery_id)
        task = None if ref is None else self._read_task(ref)
        if ref is None or task is None:
            return None
        has_reference = isinstance(outcome, Failure) and outcome.reference is not None
        if has_reference and is_terminal(task.status.state):
            return None  # the run has logged its own reference
        event = final_event(outcome, ref.task_id, task.context_id)
        if event is None:
            return None
        runner = None if worker_pid is None else runner_prefix(worker_pid)
        keys = Keys(self._settings().key_prefix)
        reply = self._store().run(end_run(keys, ref, runner=runner, event=event, lost=lost, retries=retries))
        if isinstance(outcome, Failure) and has_reference and isinstance(reply, Over):
            extra = about(Action.RUN_FAILED, ref.name, reference=outcome.reference)
            text = "run %s: its Celery task failed: %r [reference %s]"
            logger.warning(text, ref.name, error, outcome.reference, extra=extra)
        extra = about(Action.RUN_ENDED_FROM_OUTSIDE, ref.name)
        logger.info("run %s was ended outside its agent, %s: %s", ref.name, outcome, reply, extra=extra)
        return reply.state if isinstance(reply, Over) else None

    def _store(self) -> SyncStore:
        pid = os.getpid()
        if pid not in self._stores:
            with self._locks.setdefault(pid, Lock()):
                if pid not in self._stores:
                    settings = self._settings()
                    self._stores[pid] = SyncStore(settings.store_url, wait_replicas=settings.store_wait_replicas)
        return self._stores[pid]
