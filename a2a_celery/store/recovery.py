"""The verbs about runs that were lost with their workers, or given up by workers that stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from a2a.types import Message, Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent

from ..lifecycle import Event, EventKind, LogEntry, kind_of
from ..lifecycle.outcomes import WORKER_LOST, agent_message, status_event
from ..lifecycle.states import CANCELED, FAILED, WORKING
from .codec import event_arguments, pack_metadata, state_of, whole_arguments
from .connection import AsyncStore
from .keys import Keys
from .log import read_log
from .operation import Argument, Operation, script
from .references import encode
from .runs import Kept, RunRef
from .tasks import FIRST_PUBLISH_GRACE_US, read_task


@dataclass(frozen=True, slots=True)
class Lapsed:
    """A run whose lease is over. It was the `attempt`-th of its turn, which may have `max_attempts`.

    `handed_back`: its worker stopped and gave it up; nothing was wrong with it. `worker` is what Celery's listeners
    know that worker as; "" where nobody listens, or it is of an older release. `call` is the plain Celery task that the
    run calls; "" for one of an agent.
    """

    ref: RunRef
    agent: str
    attempt: int
    max_attempts: int
    handed_back: bool = False
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
class EndedSo:
    """The run is over, and no other follows; its task is in `state`."""

    state: TaskState


HandedBack = Requeued | GivenUp | EndedSo | Kept
"""What may become of a run that a stopping worker gives up. Kept: it is another's."""


def lapsed_runs(keys: Keys, *, limit: int) -> Operation[list[Lapsed]]:
    """Up to `limit` runs whose lease is over."""

    def parse(answer: Sequence[bytes]) -> list[Lapsed]:
        rows = zip(*[iter(part.decode() for part in answer)] * 8, strict=True)
        return [
            Lapsed(RunRef(task_id, int(run)), agent, int(attempt), int(most), handed_back == "1", worker, call)
            for task_id, run, agent, attempt, most, handed_back, worker, call in rows
        ]

    return Operation(script("lapsed_runs"), [keys.leases], [keys.prefix, limit], parse)


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
    again.metadata.update({"attempt": lapsed.attempt + 1, "maxAttempts": lapsed.max_attempts})
    if lapsed.handed_back:
        again.metadata.update({"handedBack": lapsed.attempt})
    arguments: list[Argument] = [
        lapsed.ref.run,
        version,
        encode(event(FAILED, WORKER_LOST)),
        encode(event(CANCELED)),
        encode(again),
        pack_metadata(again.metadata),
        again_us,
        keys.dead_letters,
    ]
    if without:
        kept = Task()
        kept.CopyFrom(task)
        del kept.artifacts[:]
        kept.artifacts.extend(artifact for artifact in task.artifacts if artifact.artifact_id not in without)
        arguments += whole_arguments(kept)

    def parse(answer: Sequence[bytes]) -> Lapse:
        what = cast(Literal["failed", "canceled", "again", "changed", "over"], answer[0].decode())
        return Lapse(what, int(answer[1]), answer[2]) if what == "again" else Lapse(what)

    return Operation(script("lapse_run"), keys.task(lapsed.ref.task_id), arguments, parse)


def hand_back(keys: Keys, ref: RunRef, *, runner: str | None, lost: TaskStatusUpdateEvent) -> Operation[HandedBack]:
    """Gives up a run because its worker stops.

    A claimed run is given up only if its runner's id begins with `runner`; None: only a run that nobody has claimed. If
    its turn may have one run only, its task ends with the event `lost`; if a client asked for it, CANCELED.
    """

    def parse(answer: Sequence[bytes]) -> HandedBack:
        match answer[0]:
            case b"queued":
                return Requeued(answer[1].decode(), int(answer[2]), answer[3])
            case b"lapsed":
                return GivenUp(answer[1].decode(), int(answer[2]), int(answer[3]))
            case b"over":
                return EndedSo(state_of(answer[1]))
            case _:
                return Kept()

    arguments = [ref.run, runner or "", FIRST_PUBLISH_GRACE_US, keys.dead_letters, *event_arguments([lost])]
    return Operation(script("hand_back"), keys.task(ref.task_id), arguments, parse)


async def give_next_attempt(store: AsyncStore, keys: Keys, lapsed: Lapsed, *, again_us: int) -> Lapse:
    """Sees to a lapsed run, see `lapse_run`; what it began and did not finish leaves the task.

    Raises:
        StoreUnavailable: the store is away.
    """
    found = await store.run(read_task(keys, None, lapsed.ref.task_id, whole=False))
    if found is None:
        return Lapse("over")
    task, version = found
    without: frozenset[str] = frozenset()
    if task.artifacts and lapsed.attempt < lapsed.max_attempts:
        without = left_open(await _whole_log(store, keys, lapsed.ref.task_id, version))
    return await store.run(lapse_run(keys, lapsed, task, version, again_us=again_us, without=without))


async def _whole_log(store: AsyncStore, keys: Keys, task_id: str, version: int) -> list[LogEntry]:
    """The log up to `version`, and maybe somewhat further."""
    entries: list[LogEntry] = []
    while not entries or entries[-1].version < version:
        page = await store.run(read_log(keys, task_id, entries[-1].version if entries else 0, whole=False))
        if not page.entries:
            break
        entries += page.entries
    return entries


def left_open(log: list[LogEntry]) -> frozenset[str]:
    """Artifacts begun since the newest attempt, or the newest message of the client, whose last chunk has not come."""
    opened: set[str] = set()
    for entry in log:
        event = entry.event
        if isinstance(event, TaskArtifactUpdateEvent):
            if event.last_chunk:
                opened.discard(event.artifact.artifact_id)
            elif not event.append:
                opened.add(event.artifact.artifact_id)
        elif _begins_anew(event):
            opened.clear()
    return frozenset(opened)


def _begins_anew(event: Event) -> bool:
    """Whether `event` begins a turn or an attempt."""
    if isinstance(event, TaskStatusUpdateEvent):
        return "attempt" in event.metadata.fields
    return isinstance(event, Message) and kind_of(event) is EventKind.CLIENT_MESSAGE
