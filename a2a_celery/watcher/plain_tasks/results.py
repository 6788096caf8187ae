"""Results of Celery tasks on workers without this package, read from the result backend.

Such Celery tasks are members of a canvas, or runs of plain Celery tasks. `ResultListener` reads a run when its
state changes. The dispatcher reads a run before it publishes the run again. `CanvasFinalizer` reads the canvases.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from hashlib import blake2b
from typing import Any
from uuid import uuid4

from a2a.types import Artifact, Task, TaskArtifactUpdateEvent
from a2a.utils.errors import InvalidAgentResponseError
from billiard.exceptions import WorkerLostError
from celery import Celery, states
from celery.exceptions import NotRegistered
from google.protobuf.struct_pb2 import Struct

from ...concurrency import DaemonThreads, close_old_connections
from ...dispatch import RUN_HEADER, Canvas, Consumer, RunFinder, RunReports, unreadable_backend
from ...dispatch.plain_tasks.canvases import CanvasResult
from ...errors import StoreUnavailable
from ...lifecycle import Event, Failure, final_event
from ...lifecycle.events import jsonable, parts_of
from ...lifecycle.outcomes import INVALID_RESPONSE, WORKER_LOST, status_event
from ...lifecycle.own_metadata import progress_metadata, retry_metadata
from ...lifecycle.references import RunRef
from ...lifecycle.states import WORKING
from ...store import AsyncStore, Keys
from ...store.admin.start_check import announced_workers
from ...store.runs.commands import Illegal, Unchanged
from ...store.runs.release import Unclaimed, end_by_result, read_unclaimed, record_result
from ...store.tasks.commands import read_task

logger = logging.getLogger(__name__)


class Progress(Enum):
    """Progress of an unclaimed run of a plain task, as far as the result backend shows the progress."""

    ENDED = "ended"
    """The task of the run has ended, or a worker without this package has ended the run."""

    RETRIED = "retried"
    """A worker without this package will retry the run."""

    STARTED = "started"
    """A worker without this package has started the run."""

    UNKNOWN = "unknown"
    """The run may wait for a worker, or a worker without this package may execute the run."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Progress of a run. `worker` is the node name of the worker that has started the run, or "" if unknown."""

    progress: Progress
    worker: str = ""


class Results:
    """Reader of the result backend of `app`. The backend is read in a thread, so that an unavailable backend does not
    block the event loop."""

    def __init__(self, store: AsyncStore, keys: Keys, app: Celery) -> None:
        self._store = store
        self._keys = keys
        self._app = app
        self._finder = RunFinder(app)
        self._thread = DaemonThreads(1, "a2a-results", before_call=close_old_connections)
        # A separate thread, because a query of the workers takes seconds if a worker does not reply.
        self._finding = DaemonThreads(1, "a2a-find-runs")

    async def end(self, ref: RunRef, canvas: Canvas) -> None:
        """End the run `ref` if its `canvas` has ended."""
        result = await self._look(canvas)
        if result is not None:
            await self._end(ref, result)

    async def _look(self, canvas: Canvas) -> CanvasResult | None:
        result: CanvasResult | None = await self._thread.call(partial(canvas.poll, self._app))
        return result

    async def _end(self, ref: RunRef, result: CanvasResult, *, lost: bool = False) -> bool:
        """End the run `ref` by its result. Return False if the result does not apply, so that the run may begin.

        Args:
            ref: Run to end.
            result: Result of the run.
            lost: True if no worker has the run.
        """
        head = read_task(self._keys, None, ref.task_id, history_length=0, artifacts=False, resolve_blobs=False)
        snapshot = await self._store.run(head)
        if snapshot is None:
            return True
        events, is_lost = self._events(ref, snapshot[0], result), isinstance(result.error, WorkerLostError)
        ending = end_by_result(self._keys, ref, events, lost=is_lost and not lost, is_resubmittable=is_lost)
        reply = await self._store.run(ending)
        match reply:
            case Unchanged():
                logger.info("run %s: its result does not apply", ref.name)
                return False
            case Illegal():  # the run must not be published, because its worker has ended it
                logger.error("run %s: its result cannot end the task: %s", ref.name, reply)
            case _:
                logger.info("run %s ended by its result: %s", ref.name, reply)
        return True

    async def reconcile(self, ref: RunRef, *, is_retry: bool = False) -> Observation:
        """Compare the run `ref` with the result backend, and end the run if its Celery task has ended.

        Args:
            ref: Unclaimed run of a plain task.
            is_retry: True if a worker with this package has retried the run, so that RETRY is an outdated state.
        """
        if unreadable_backend(self._app) is not None:
            return Observation(Progress.UNKNOWN)
        result = await self._look(_result_of(ref))
        if result is not None:
            # a worker with this package stores StoreUnavailable if it could not claim the run, which then waits
            has_ended = not isinstance(result.error, StoreUnavailable) and await self._end(ref, result)
            return Observation(Progress.ENDED if has_ended else Progress.UNKNOWN)
        await self._write_state(ref)
        observation = _observation_of(await self._thread.call(partial(self._meta, ref.name)))
        if is_retry and observation.progress is Progress.RETRIED:
            return Observation(Progress.UNKNOWN)
        return observation

    async def find(self, names: Collection[str]) -> RunReports:
        """Query all workers for the runs `names`. Workers without remote control are known by their announcements.

        Raises:
            StoreUnavailable: The store is unavailable.
            Exception: The broker is unavailable. Each transport raises its own exceptions.
        """
        reports: RunReports = await self._finding.call(partial(self._finder.find, names))
        if reports.reported >= set(names):
            return reports
        announced = [json.loads(text) for text in await self._store.run(announced_workers(self._keys))]
        workers = {worker["worker"]: Consumer(frozenset(worker["queues"]), claims=True) for worker in announced}
        return replace(reports, workers={**workers, **reports.workers})

    async def give_up(self, ref: RunRef) -> None:
        """End the run `ref`, which no worker has, by its result, or as lost if the result is unknown."""
        problem = unreadable_backend(self._app)
        result = None if problem is not None else await self._look(_result_of(ref))
        if result is None or isinstance(result.error, StoreUnavailable):
            reason = problem or "the worker without this package that executed the run may have been lost"
            logger.error("run %s: no worker has the run, and no result was stored: %s", ref.name, reason)
            result = CanvasResult(Failure(WORKER_LOST), error=WorkerLostError())
        await self._end(ref, result, lost=True)

    async def observe(self, ref: RunRef) -> bool:
        """Read the state of the run `ref` from the result backend, and write it to the task or end the task.

        Any number of watchers may call this method concurrently. Each state is written once, and never after a newer
        state.

        Returns:
            True if a worker without this package is executing the run.
        """
        state = await self._write_state(ref)
        if state not in states.READY_STATES:
            return state is not None
        result = await self._look(_result_of(ref))
        # A worker with this package also stores such an error if it does not know the task or could not claim the run.
        # The dispatcher then decides when it polls the run.
        if result is not None and not isinstance(result.error, NotRegistered | StoreUnavailable):
            await self._end(ref, result)
        return False

    async def _write_state(self, ref: RunRef) -> str | None:
        """Read the state of an unclaimed run from the result backend, and write the event for this state.

        The event of a state is written once. No event is written for Celery's ready states.

        Returns:
            The state, or None if the run is no longer unclaimed, or if no worker without this package has stored a
            state of the run.
        """
        while isinstance(unclaimed_run := await self._store.run(read_unclaimed(self._keys, ref)), Unclaimed):
            meta = await self._thread.call(partial(self._meta, ref.name))
            state: str = meta["status"]
            if state in states.READY_STATES:
                return state
            metadata = _metadata_of(meta)
            if metadata is None:
                return None
            record = _record_of_state(ref, meta, metadata, unclaimed_run.recorded)
            if record == unclaimed_run.recorded:
                return state
            if state == states.RETRY:
                metadata = retry_metadata(int(record.split()[1]) + 1, None, "", "")
            event = status_event(ref.task_id, unclaimed_run.context_id, WORKING)
            event.metadata.update(metadata)
            writing = record_result(self._keys, ref, previous_state=unclaimed_run.recorded, state=record, event=event)
            reply = await self._store.run(writing)
            if not isinstance(reply, Unclaimed):
                return state
        return None

    def _meta(self, name: str) -> Mapping[str, Any]:
        meta: Mapping[str, Any] = self._app.backend.get_task_meta(name)
        return meta

    def _events(self, ref: RunRef, task: Task, result: CanvasResult) -> list[Event]:
        events: list[Event] = []
        outcome = result.outcome
        if isinstance(outcome, Failure):
            logger.error(
                "run %s failed on a worker without this package: %r [reference %s]",
                ref.name,
                result.error,
                outcome.reference,
            )
        if result.value is not None:
            try:
                artifact = Artifact(artifact_id=str(uuid4()), name="response", parts=parts_of(jsonable(result.value)))
                event = TaskArtifactUpdateEvent(artifact=artifact, last_chunk=True)
                event.task_id, event.context_id = task.id, task.context_id
                events.append(event)
            except Exception as e:  # no part can represent the value, and the task must end
                outcome = Failure(INVALID_RESPONSE, reference=uuid4().hex[:12])
                logger.error("run %s: %r [reference %s]", ref.name, e, outcome.reference)
        final = final_event(outcome, task.id, task.context_id)
        return [*events, final] if final else events


def _result_of(ref: RunRef) -> Canvas:
    return Canvas(((ref.name, None), None), datetime.max.replace(tzinfo=UTC))


def _observation_of(meta: Mapping[str, Any]) -> Observation:
    state, result = meta["status"], meta["result"]
    if isinstance(result, Mapping) and RUN_HEADER in result:
        return Observation(Progress.UNKNOWN)  # a worker with this package stored the state
    match state:
        case states.RETRY:
            return Observation(Progress.RETRIED)
        case states.STARTED:
            return Observation(Progress.STARTED, str((result or {}).get("hostname") or ""))
        case _ if state in states.ALL_STATES:
            return Observation(Progress.UNKNOWN)
    return Observation(Progress.STARTED)


def _metadata_of(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the metadata for a state in the result backend.

    Return None if the state is PENDING, RECEIVED or a ready state, or if a worker with this package stored it.
    """
    state, result = meta["status"], meta["result"]
    if state in (states.STARTED, states.RETRY):
        has_run_header = isinstance(result, Mapping) and RUN_HEADER in result
        return None if has_run_header else {}
    if state in states.ALL_STATES:
        return None
    try:
        metadata = progress_metadata(state, result)
        Struct().update(metadata)
        return metadata
    except (InvalidAgentResponseError, ValueError) as e:  # for example bytes, or an A2A type
        logger.warning("the state %s of a Celery task is shown without its metadata: %s", state, e)
        return progress_metadata(state, None)


def _record_of_state(ref: RunRef, meta: Mapping[str, Any], metadata: Mapping[str, Any], previous_record: str) -> str:
    """Return the record for a state of the run `ref`.

    The result backend contains the number of retries only with ``result_extended``. Otherwise, each recorded RETRY
    increments the number.

    Args:
        ref: Run.
        meta: State in the result backend.
        metadata: Metadata that is shown for the state.
        previous_record: Previous record, or "" if there is none.
    """
    state_fields = (meta["status"], metadata, meta.get("traceback"), meta.get("retries"))
    digest = blake2b(json.dumps(state_fields, sort_keys=True).encode(), digest_size=8).hexdigest()
    run, retries, last = previous_record.split() if previous_record else ("", "0", "")
    if run != str(ref.run):
        retries, last = "0", ""
    if digest == last:
        return previous_record
    if meta["status"] == states.RETRY:
        retry_count = meta.get("retries")
        retries = str((int(retries) if retry_count is None else retry_count) + 1)
    return f"{ref.run} {retries} {digest}"
