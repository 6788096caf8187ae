"""What only the result backend knows: how Celery tasks ended that no worker of ours ran, or told of.

Those are the links of a canvas, and runs of plain Celery tasks that went to a worker without this package.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from functools import partial
from uuid import uuid4

from a2a.types import Artifact, Task, TaskArtifactUpdateEvent
from billiard.exceptions import WorkerLostError
from celery import Celery, states

from ..dispatch import Canvas
from ..dispatch.canvases import Ended
from ..errors import StoreUnavailable
from ..lifecycle import Event, Failed, final_event
from ..lifecycle.content import jsonable, parts_of
from ..lifecycle.outcomes import WORKER_LOST
from ..store import AsyncStore, Keys
from ..store.release import end_by_result
from ..store.runs import Over, RunRef
from ..store.tasks import read_task
from ..threads import DaemonThreads

logger = logging.getLogger(__name__)

ANSWER_WITHIN = 2.0
"""Seconds that a worker has to say what became of a run it had begun."""


class Results:
    """Reads the result backend of `app`, in a thread: one that is down holds up nothing else."""

    def __init__(self, store: AsyncStore, keys: Keys, app: Celery) -> None:
        self._store = store
        self._keys = keys
        self._app = app
        self._thread = DaemonThreads(1, "a2a-results")

    async def end(self, ref: RunRef, canvas: Canvas) -> bool:
        """Ends the run that `canvas` works for, if that has ended; whether the run is over."""
        ended = await self._look(canvas)
        return ended is not None and await self._end(ref, ended)

    async def _look(self, canvas: Canvas) -> Ended | None:
        ended: Ended | None = await self._thread.call(partial(canvas.look, self._app))
        return ended

    async def _end(self, ref: RunRef, ended: Ended) -> bool:
        head = read_task(self._keys, None, ref.task_id, history_length=0, artifacts=False, whole=False)
        found = await self._store.run(head)
        if found is None:
            return True
        events, lost = self._events(ref, found[0], ended), isinstance(ended.error, WorkerLostError)
        answer = await self._store.run(end_by_result(self._keys, ref, events, lost=lost))
        logger.info("run %s ended by its result: %s", ref.name, answer)
        return isinstance(answer, Over)

    async def has(self, ref: RunRef) -> bool:
        """Whether a worker that is none of ours has begun run `ref` and still knows it, or has ended it, which ends the
        task. Such a worker has no lease: one that does not answer for what it has begun is lost, and so is the run."""
        own = Canvas(((ref.name, None), None), datetime.max.replace(tzinfo=UTC))
        ended, known = await self._look(own), False
        if ended is None:
            begun, known = await self._thread.call(partial(self._ask, ref.name))
            if not begun or known:
                return bool(known)
            ended = await self._look(own) or Ended(Failed(WORKER_LOST), error=WorkerLostError())  # ended meanwhile?
        # a worker of ours leaves that error which could not claim its run: it waits for another
        return not isinstance(ended.error, StoreUnavailable) and await self._end(ref, ended)

    def _ask(self, name: str) -> tuple[bool, bool]:
        """Whether a worker has said that it begins `name`, and whether it has it still, or wants to try it again."""
        found = self._app.backend.get_task_meta(name)
        if found["status"] != states.STARTED:
            return found["status"] == states.RETRY, found["status"] == states.RETRY
        return True, self._still_has((found["result"] or {}).get("hostname"), name)

    def _still_has(self, worker: str | None, name: str) -> bool:
        """Whether `worker` answers that it has `name`. A broker that can't be reached is no answer: then it may."""
        try:
            with self._app.connection_for_write(connect_timeout=ANSWER_WITHIN) as connection:
                connection.ensure_connection(max_retries=1, interval_start=0.1, timeout=ANSWER_WITHIN)
                asking = self._app.control.inspect(
                    [worker] if worker else None, ANSWER_WITHIN, connection=connection, limit=1 if worker else None
                )
                return any((asking.query_task(name) or {}).values())
        except Exception as e:
            logger.warning("run %s: %s can't be asked for it: %r", name, worker, e)
            return True

    def _events(self, ref: RunRef, task: Task, ended: Ended) -> list[Event]:
        events: list[Event] = []
        outcome = ended.outcome
        if isinstance(outcome, Failed):
            logger.error("run %s failed elsewhere: %r [reference %s]", ref.name, ended.error, outcome.reference)
        if ended.value is not None:
            try:
                artifact = Artifact(artifact_id=str(uuid4()), name="response", parts=parts_of(jsonable(ended.value)))
                event = TaskArtifactUpdateEvent(artifact=artifact, last_chunk=True)
                event.task_id, event.context_id = task.id, task.context_id
                events.append(event)
            except Exception as e:  # whatever it is that no part can hold, the task must end
                outcome = Failed(reference=uuid4().hex[:12])
                logger.error("run %s: %r [reference %s]", ref.name, e, outcome.reference)
        final = final_event(outcome, task.id, task.context_id)
        return [*events, final] if final else events
