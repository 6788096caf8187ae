"""Results of Celery tasks on workers without this package, read from the result backend.

Such Celery tasks are members of a canvas, or runs of plain Celery tasks. `ResultListener` reads a run when its
state changes. The dispatcher reads a run before it publishes the run again. `CanvasFinalizer` ends the tasks whose
canvas has ended.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
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

from ...concurrency import DaemonThreads
from ...dispatch import RUN_HEADER, Canvas
from ...dispatch.canvases import CanvasResult
from ...errors import StoreUnavailable
from ...lifecycle import Event, Failure, final_event
from ...lifecycle.events import jsonable, parts_of
from ...lifecycle.outcomes import INVALID_RESPONSE, WORKER_LOST, status_event
from ...lifecycle.own_metadata import progress_metadata, retry_metadata
from ...lifecycle.states import WORKING
from ...store import AsyncStore, Keys
from ...store.runs.commands import Illegal, RunRef, Unchanged
from ...store.runs.release import Unclaimed, due_canvases, end_by_result, read_unclaimed, record_result
from ...store.tasks.commands import read_task

logger = logging.getLogger(__name__)

INSPECT_TIMEOUT = 2.0
"""Seconds within which a worker must reply to the query for a run."""


CANVAS_BATCH = 100
CANVAS_POLL_INTERVAL_US = 1_000_000


class Results:
    """Reader of the result backend of `app`. The backend is read in a thread, so that an unavailable backend does not
    block the event loop."""

    def __init__(self, store: AsyncStore, keys: Keys, app: Celery) -> None:
        self._store = store
        self._keys = keys
        self._app = app
        self._thread = DaemonThreads(1, "a2a-results")

    async def end(self, ref: RunRef, canvas: Canvas) -> None:
        """End the run `ref` if its `canvas` has ended."""
        result = await self._look(canvas)
        if result is not None:
            await self._end(ref, result)

    async def _look(self, canvas: Canvas) -> CanvasResult | None:
        result: CanvasResult | None = await self._thread.call(partial(canvas.poll, self._app))
        return result

    async def _end(self, ref: RunRef, result: CanvasResult) -> bool:
        """End the run `ref` by its result. Return False if the result does not apply, so that the run may begin."""
        head = read_task(self._keys, None, ref.task_id, history_length=0, artifacts=False, resolve_blobs=False)
        snapshot = await self._store.run(head)
        if snapshot is None:
            return True
        events, is_lost = self._events(ref, snapshot[0], result), isinstance(result.error, WorkerLostError)
        reply = await self._store.run(end_by_result(self._keys, ref, events, lost=is_lost))
        match reply:
            case Unchanged():
                logger.info("run %s: its result does not apply", ref.name)
                return False
            case Illegal():  # the run must not be published, because its worker has ended it
                logger.error("run %s: its result cannot end the task: %s", ref.name, reply)
            case _:
                logger.info("run %s ended by its result: %s", ref.name, reply)
        return True

    async def reconcile(self, ref: RunRef) -> bool:
        """Compare the run `ref` with the result backend, and end the run if its Celery task has ended.

        A worker without this package holds no lease. If the worker of a started run does not reply to a query, this
        method therefore treats the run as lost and ends it.

        Returns:
            True if a worker without this package has started or ended the run.
        """
        own, is_known = _result_of(ref), False
        result = await self._look(own)
        if result is None:
            await self._write_state(ref)
            has_begun, is_known = await self._thread.call(partial(self._ask, ref.name))
            if not has_begun or is_known:
                return bool(is_known)
            result = await self._look(own) or CanvasResult(
                Failure(WORKER_LOST), error=WorkerLostError()
            )  # the run may have ended since the first read
        # a worker with this package stores StoreUnavailable if it could not claim the run, which then waits
        return not isinstance(result.error, StoreUnavailable) and await self._end(ref, result)

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

    def _ask(self, name: str) -> tuple[bool, bool]:
        """Query the result backend for the run `name`, and then the worker that has started the run.

        Returns:
            Two values: True if a worker has started the run, and True if the worker still has the run or will retry it.
        """
        meta = self._meta(name)
        if meta["status"] != states.STARTED:
            return meta["status"] == states.RETRY, meta["status"] == states.RETRY
        return True, self._still_has((meta["result"] or {}).get("hostname"), name)

    def _still_has(self, worker: str | None, name: str) -> bool:
        """Return True if `worker`, or any worker if `worker` is None, replies that it has the run `name`. Also return
        True if the query fails, for example because the broker is unavailable."""
        try:
            with self._app.connection_for_write(connect_timeout=INSPECT_TIMEOUT) as connection:
                connection.ensure_connection(max_retries=1, interval_start=0.1, timeout=INSPECT_TIMEOUT)
                inspect = self._app.control.inspect(
                    [worker] if worker else None, INSPECT_TIMEOUT, connection=connection, limit=1 if worker else None
                )
                return any((inspect.query_task(name) or {}).values())
        except Exception as e:
            logger.warning("run %s: could not query worker %s: %r", name, worker, e)
            return True

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


class CanvasFinalizer:
    """Watcher role that ends the tasks whose canvases have ended. Each task is ended by only one watcher."""

    name = "canvas finalizer"
    every = 0.5

    def __init__(self, store: AsyncStore, keys: Keys, results: Results) -> None:
        self._store = store
        self._keys = keys
        self._results = results

    async def tick(self) -> None:
        """Poll the due canvases, and end the tasks whose canvas has ended."""
        for due in await self._store.run(
            due_canvases(self._keys, limit=CANVAS_BATCH, delay_us=CANVAS_POLL_INTERVAL_US)
        ):
            try:
                await self._results.end(due.ref, Canvas.from_json(due.canvas))
            except StoreUnavailable:
                raise
            except Exception:  # the canvas must not block the following ones
                logger.exception("could not read the canvas of run %s, retrying", due.ref.name)


def _result_of(ref: RunRef) -> Canvas:
    return Canvas(((ref.name, None), None), datetime.max.replace(tzinfo=UTC))


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
