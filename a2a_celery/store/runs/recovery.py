"""Recovery of runs whose worker was lost or is shutting down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, cast

from a2a.types import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent

from ...lifecycle import LogEntry
from ...lifecycle.outcomes import WORKER_LOST, agent_message, status_event
from ...lifecycle.own_metadata import ATTEMPT, MAX_ATTEMPTS, RETURNED_ATTEMPT, own_metadata
from ...lifecycle.references import RunRef
from ...lifecycle.states import FAILED, SUBMITTED, WORKING
from ..blobs.references import encode
from ..client.connection import AsyncStore
from ..codec import StatusToWrite, TaskToWrite, pack_metadata, state_of
from ..keys import Keys
from ..log.pages import read_log
from ..operation import Operation
from ..tasks.commands import read_task
from ..verbs import Reply, verb
from .commands import Unchanged


@dataclass(frozen=True, slots=True)
class Lapsed:
    """Run whose lease has expired.

    Attributes:
        attempt: Number of the run in its turn.
        max_attempts: Maximum number of attempts of the turn.
        returned: True if the worker returned the run when it shut down.
        worker: Celery node name of the worker, or "" if unknown.
        call: Name of the plain Celery task that the run calls, or "".
    """

    ref: RunRef
    agent: str
    attempt: int
    max_attempts: int
    returned: bool = False
    worker: str = ""
    call: str = ""


@dataclass(frozen=True, slots=True)
class LapsedRuns:
    """Runs whose lease has expired.

    Attributes:
        time_us: Time of the store in µs.
    """

    runs: list[Lapsed]
    time_us: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Lapse:
    """Result of `lapse_run`.

    Attributes:
        outcome: "failed" or "canceled" if the task has ended. "again" if the next run is queued. "changed" if the task
            was written after it was read, so that the call must be repeated. "over" if the lease has not expired or the
            run has ended.
        next_run: Number of the next run, or None.
        next_options: Options of the next run.
    """

    outcome: Literal["failed", "canceled", "again", "changed", "over"]
    next_run: int | None = None
    next_options: bytes = b""


@dataclass(frozen=True, slots=True)
class Requeued:
    """Unclaimed run that was queued again as run `run`. The caller publishes the new run with `options`."""

    agent: str
    run: int
    options: bytes


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Claimed run that its worker has returned at shutdown. The store refuses further writes of the run.

    The caller starts the next attempt with `begin_next_attempt`.
    """

    agent: str
    attempt: int
    max_attempts: int


@dataclass(frozen=True, slots=True)
class RunEnded:
    """Run that has ended and that no other run follows. The task is in `state`."""

    state: TaskState


RunReturn = Requeued | GivenUp | RunEnded | Unchanged
"""Result of `return_run`. `Unchanged` means that the run belongs to another worker."""


@verb
def lapsed_runs(keys: Keys, *, limit: int, longest_lease_us: int | None = None) -> Reply[LapsedRuns]:
    """Read the store's time, and runs whose lease has expired.

    Args:
        keys: Keys of the deployment.
        limit: Maximum number of runs.
        longest_lease_us: Duration, in µs, to which longer leases are shortened. None leaves all leases unchanged.
    """

    def parse(reply: Sequence[bytes]) -> LapsedRuns:
        records = zip(*[iter(part.decode() for part in reply[1:])] * 8, strict=True)
        runs = [
            Lapsed(RunRef(task_id, int(run)), agent, int(attempt), int(most), returned == "1", worker, call)
            for task_id, run, agent, attempt, most, returned, worker, call in records
        ]
        return LapsedRuns(runs, int(reply[0]))

    return Reply(parse)


def lapse_run(
    keys: Keys, lapsed_run: Lapsed, task: Task, version: int, *, delay_us: int, without: frozenset[str] = frozenset()
) -> Operation[Lapse]:
    """End a lapsed run and its task, or queue the next run. A task that fails can be resubmitted.

    The next run belongs to the same turn. If a client message interrupts the lapsed run, the next run belongs to the
    turn of the message.

    Args:
        keys: Keys of the deployment.
        lapsed_run: Run whose lease has expired.
        task: Snapshot of the task at `version`.
        version: Version of the log at which `task` was read. If the log has changed, the outcome is "changed".
        delay_us: µs until a watcher publishes the next run.
        without: Ids of incomplete artifacts to remove, because the next run writes them again.
    """

    def event(state: TaskState, text: str = "") -> TaskStatusUpdateEvent:
        message = agent_message(text, task.id, task.context_id) if text else None
        return status_event(task.id, task.context_id, state, message)

    retry_event = event(WORKING)
    fields = {ATTEMPT: lapsed_run.attempt + 1, MAX_ATTEMPTS: lapsed_run.max_attempts}
    retry_event.metadata.update(
        own_metadata(fields | ({RETURNED_ATTEMPT: lapsed_run.attempt} if lapsed_run.returned else {}))
    )
    return _lapse_run(
        keys,
        lapsed_run.ref,
        version=version,
        failed_event=encode(event(FAILED, WORKER_LOST)),
        working_event=encode(retry_event),
        metadata=pack_metadata(retry_event.metadata),
        delay_us=delay_us,
        replacement=without_artifacts(task, without) if without else None,
    )


@verb
def _lapse_run(
    keys: Keys,
    ref: RunRef,
    *,
    version: int,
    failed_event: bytes,
    working_event: bytes,
    metadata: bytes,
    delay_us: int,
    replacement: TaskToWrite | None,
) -> Reply[Lapse]:
    """Lapse the run unless the log has changed since `version`, from which the other arguments were derived.
    `working_event` and its packed `metadata` begin the next attempt."""

    def parse(reply: Sequence[bytes]) -> Lapse:
        outcome = cast(Literal["failed", "canceled", "again", "changed", "over"], reply[0].decode())
        return Lapse(outcome, int(reply[1]), reply[2]) if outcome == "again" else Lapse(outcome)

    return Reply(parse)


@verb
def return_run(keys: Keys, ref: RunRef, *, runner: str | None, loss: StatusToWrite) -> Reply[RunReturn]:
    """Requeue an unclaimed run of a worker that shuts down, or revoke the worker's claim on the run.

    Args:
        keys: Keys of the deployment.
        ref: Run to return.
        runner: Prefix of the id of the runner that has claimed the run, or None to requeue only an unclaimed run.
        loss: Event that ends the task of a claimed run if the turn may not have another run. If a client requested
            cancellation of the task, the task ends in CANCELED instead.
    """

    def parse(reply: Sequence[bytes]) -> RunReturn:
        match reply[0]:
            case b"queued":
                return Requeued(reply[1].decode(), int(reply[2]), reply[3])
            case b"lapsed":
                return GivenUp(reply[1].decode(), int(reply[2]), int(reply[3]))
            case b"over":
                return RunEnded(state_of(reply[1]))
            case _:
                return Unchanged()

    return Reply(parse)


async def begin_next_attempt(store: AsyncStore, keys: Keys, lapsed_run: Lapsed, *, delay_us: int) -> Lapse:
    """Read the task of a lapsed run, and call `lapse_run` with the artifacts that the run left incomplete.

    Raises:
        StoreUnavailable: The store is unavailable.
    """
    read_contents = partial(read_task, keys, None, lapsed_run.ref.task_id, resolve_blobs=False)
    snapshot = await store.run(read_contents(history_length=0, artifacts=False))
    without: frozenset[str] = frozenset()
    if snapshot is not None and lapsed_run.attempt < lapsed_run.max_attempts:
        without = await _incomplete_artifacts(store, keys, lapsed_run.ref.task_id, snapshot[1].version)
        if without:
            snapshot = await store.run(read_contents())
    if snapshot is None:
        return Lapse("over")
    task, (version, _) = snapshot
    return await store.run(lapse_run(keys, lapsed_run, task, version, delay_us=delay_us, without=without))


async def _incomplete_artifacts(store: AsyncStore, keys: Keys, task_id: str, version: int) -> frozenset[str]:
    """Read the log up to `version` or further, and return the ids of its incomplete artifacts; see `left_open`."""
    open_ids: set[str] = set()
    last_version = 0
    while last_version < version:
        page = await store.run(read_log(keys, task_id, last_version, resolve_blobs=False))
        if not page.entries:
            break
        _update_left_open(open_ids, page.entries)
        last_version = page.entries[-1].version
    return frozenset(open_ids)


def without_artifacts(task: Task, artifact_ids: frozenset[str]) -> Task:
    """Return a copy of `task` without the artifacts with the ids `artifact_ids`."""
    copy = Task()
    copy.CopyFrom(task)
    del copy.artifacts[:]
    copy.artifacts.extend(artifact for artifact in task.artifacts if artifact.artifact_id not in artifact_ids)
    return copy


def left_open(log: Sequence[LogEntry]) -> frozenset[str]:
    """Return the ids of artifacts that were begun in the newest attempt or turn and have no last chunk."""
    open_ids: set[str] = set()
    _update_left_open(open_ids, log)
    return frozenset(open_ids)


def _update_left_open(open_ids: set[str], entries: Sequence[LogEntry]) -> None:
    for entry in entries:
        event = entry.event
        if isinstance(event, TaskArtifactUpdateEvent):
            if event.last_chunk:
                open_ids.discard(event.artifact.artifact_id)
            elif not event.append:
                open_ids.add(event.artifact.artifact_id)
        elif isinstance(event, TaskStatusUpdateEvent) and _begins_attempt_or_turn(event):
            open_ids.clear()


def _begins_attempt_or_turn(event: TaskStatusUpdateEvent) -> bool:
    """Return True if the store wrote `event` at the beginning of an attempt or a turn.

    A client's message does not show the beginning of its turn, because the message may have arrived during an earlier
    run. If such a message begins a turn, the task stays WORKING, and the store writes WORKING without content. An agent
    sends such a status only after a pause.
    """
    if event.status.state == SUBMITTED or ATTEMPT in event.metadata.fields:
        return True
    return event.status.state == WORKING and not event.status.HasField("message") and not event.metadata.fields
