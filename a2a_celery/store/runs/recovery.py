"""Recovery of runs whose worker was lost or is shutting down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

from a2a.types import Message, Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent

from ...lifecycle import Event, EventKind, LogEntry, kind_of
from ...lifecycle.outcomes import WORKER_LOST, agent_message, status_event
from ...lifecycle.own_metadata import ATTEMPT, MAX_ATTEMPTS, RETURNED_ATTEMPT, own_metadata
from ...lifecycle.states import FAILED, WORKING
from ..blobs.references import encode
from ..client.connection import AsyncStore
from ..codec import event_arguments, pack_metadata, state_of, task_arguments
from ..keys import Keys
from ..log.pages import read_log
from ..operation import Argument, Operation, script
from ..tasks.commands import FIRST_PUBLISH_GRACE_US, read_task
from .commands import RunRef, Unchanged


@dataclass(frozen=True, slots=True)
class Lapsed:
    """A run whose lease is over. It was the `attempt`-th of its turn, which may have `max_attempts`.

    `returned`: its worker stopped and gave it up; nothing was wrong with it. `worker` is what Celery's listeners
    know that worker as; "" where nobody listens, or it is of an older release. `call` is the plain Celery task that the
    run calls; "" for one of an agent.
    """

    ref: RunRef
    agent: str
    attempt: int
    max_attempts: int
    returned: bool = False
    worker: str = ""
    call: str = ""


@dataclass(frozen=True, slots=True)
class Lapse:
    """What became of a lapsed run: "failed", "canceled", "again" (`next_run` will be dispatched, with `next_options`),
    "changed" (the task was written meanwhile: look again), "over" (it was not lapsed, or somebody else saw to it)."""

    what: Literal["failed", "canceled", "again", "changed", "over"]
    next_run: int | None = None
    next_options: bytes = b""


@dataclass(frozen=True, slots=True)
class Requeued:
    """Nobody had claimed the run: it is run `run` now, and wants to be published with `options`."""

    agent: str
    run: int
    options: bytes


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The run was claimed, and can write no more; its turn may have another: see `give_next_attempt`."""

    agent: str
    attempt: int
    max_attempts: int


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over, and no other follows; its task is in `state`."""

    state: TaskState


RunReturn = Requeued | GivenUp | RunEnded | Unchanged
"""What may become of a run that a stopping worker gives up. Kept: it is another's."""


def lapsed_runs(
    keys: Keys, *, limit: int, latest_us: int | None = None, longest_lease_us: int | None = None
) -> Operation[list[Lapsed]]:
    """Return up to `limit` runs whose lease is over.

    A lease that was over only after `latest_us`, in µs of the store's clock, is not over; None: any time is believed. A
    lease that lasts longer than `longest_lease_us` is shortened to that; None: leases stay as they are.
    """

    def parse(reply: Sequence[bytes]) -> list[Lapsed]:
        rows = zip(*[iter(part.decode() for part in reply)] * 8, strict=True)
        return [
            Lapsed(RunRef(task_id, int(run)), agent, int(attempt), int(most), returned == "1", worker, call)
            for task_id, run, agent, attempt, most, returned, worker, call in rows
        ]

    limits = ("" if us is None else us for us in (latest_us, longest_lease_us))
    return Operation(script("lapsed_runs"), [keys.leases], [keys.prefix, limit, *limits], parse)


def lapse_run(
    keys: Keys, lapsed: Lapsed, task: Task, version: int, *, again_us: int, without: frozenset[str] = frozenset()
) -> Operation[Lapse]:
    """Ends a lapsed run, or gives its turn the next one, due in `again_us`. An end in FAILED leaves a dead letter.

    `task` is the snapshot at `version`. Artifacts `without` leave it when the next run is given: the lost one left them
    open, and the next begins them anew.
    """

    def event(state: TaskState, text: str = "") -> TaskStatusUpdateEvent:
        message = agent_message(text, task.id, task.context_id) if text else None
        return status_event(task.id, task.context_id, state, message)

    again = event(WORKING)
    fields = {ATTEMPT: lapsed.attempt + 1, MAX_ATTEMPTS: lapsed.max_attempts}
    again.metadata.update(own_metadata(fields | ({RETURNED_ATTEMPT: lapsed.attempt} if lapsed.returned else {})))
    arguments: list[Argument] = [
        lapsed.ref.run,
        version,
        encode(event(FAILED, WORKER_LOST)),
        encode(again),
        pack_metadata(again.metadata),
        again_us,
        keys.dead_letters,
    ]
    if without:
        arguments += task_arguments(without_artifacts(task, without))

    def parse(reply: Sequence[bytes]) -> Lapse:
        what = cast(Literal["failed", "canceled", "again", "changed", "over"], reply[0].decode())
        return Lapse(what, int(reply[1]), reply[2]) if what == "again" else Lapse(what)

    return Operation(script("lapse_run"), keys.task(lapsed.ref.task_id), arguments, parse)


def return_run(keys: Keys, ref: RunRef, *, runner: str | None, lost: TaskStatusUpdateEvent) -> Operation[RunReturn]:
    """Gives up a run because its worker stops.

    A claimed run is given up only if its runner's id begins with `runner`; None: only a run that nobody has claimed. If
    its turn may have one run only, its task ends with the event `lost`; if a client asked for it, CANCELED.
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

    arguments = [ref.run, runner or "", FIRST_PUBLISH_GRACE_US, keys.dead_letters, *event_arguments([lost])]
    return Operation(script("return_run"), keys.task(ref.task_id), arguments, parse)


async def give_next_attempt(store: AsyncStore, keys: Keys, lapsed: Lapsed, *, again_us: int) -> Lapse:
    """Sees to a lapsed run, see `lapse_run`; what it began and did not finish leaves the task.

    Raises:
        StoreUnavailable: the store is away.
    """
    read_contents = partial(read_task, keys, None, lapsed.ref.task_id, resolve_blobs=False)
    found = await store.run(read_contents(history_length=0, artifacts=False))
    without: frozenset[str] = frozenset()
    if found is not None and lapsed.attempt < lapsed.max_attempts:
        without = await _left_open_until(store, keys, lapsed.ref.task_id, found[1].version)
        if without:
            found = await store.run(read_contents())
    if found is None:
        return Lapse("over")
    task, (version, _) = found
    return await store.run(lapse_run(keys, lapsed, task, version, again_us=again_us, without=without))


async def _left_open_until(store: AsyncStore, keys: Keys, task_id: str, version: int) -> frozenset[str]:
    """Return what is `left_open` in the log up to `version`, or somewhat further. One page is in memory at a time."""
    opened: set[str] = set()
    after = 0
    while after < version:
        page = await store.run(read_log(keys, task_id, after, resolve_blobs=False))
        if not page.entries:
            break
        _update_left_open(opened, page.entries)
        after = page.entries[-1].version
    return frozenset(opened)


def without_artifacts(task: Task, artifact_ids: frozenset[str]) -> Task:
    """Return a copy of `task` without the artifacts that have one of these ids."""
    kept = Task()
    kept.CopyFrom(task)
    del kept.artifacts[:]
    kept.artifacts.extend(artifact for artifact in task.artifacts if artifact.artifact_id not in artifact_ids)
    return kept


def left_open(log: Sequence[LogEntry]) -> frozenset[str]:
    """Artifacts begun since the newest attempt, or the newest message of the client, whose last chunk has not come."""
    opened: set[str] = set()
    _update_left_open(opened, log)
    return frozenset(opened)


def _update_left_open(opened: set[str], entries: Sequence[LogEntry]) -> None:
    for entry in entries:
        event = entry.event
        if isinstance(event, TaskArtifactUpdateEvent):
            if event.last_chunk:
                opened.discard(event.artifact.artifact_id)
            elif not event.append:
                opened.add(event.artifact.artifact_id)
        elif _begins_anew(event):
            opened.clear()


def _begins_anew(event: Event) -> bool:
    """Whether `event` begins a turn or an attempt."""
    if isinstance(event, TaskStatusUpdateEvent):
        return ATTEMPT in event.metadata.fields
    return isinstance(event, Message) and kind_of(event) is EventKind.CLIENT_MESSAGE
