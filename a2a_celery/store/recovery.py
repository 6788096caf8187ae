"""The verbs about runs that were lost with their workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from a2a.types import Task, TaskState, TaskStatusUpdateEvent

from ..lifecycle import encode
from ..lifecycle.outcomes import WORKER_LOST, agent_message, status_event
from ..lifecycle.states import CANCELED, FAILED, WORKING
from .codec import pack_metadata, whole_arguments
from .keys import Keys
from .operation import Argument, Operation, script
from .runs import RunRef


@dataclass(frozen=True, slots=True)
class Lapsed:
    """A run whose lease is over. It was the `attempt`-th of its turn, which may have `max_attempts`."""

    ref: RunRef
    agent: str
    attempt: int
    max_attempts: int


@dataclass(frozen=True, slots=True)
class Lapse:
    """What became of a lapsed run: "failed", "canceled", "again" (`next_run` will be dispatched), "changed" (the task
    was written meanwhile: look again), "over" (it was not lapsed, or somebody else saw to it)."""

    what: Literal["failed", "canceled", "again", "changed", "over"]
    next_run: int | None = None


def lapsed_runs(keys: Keys, *, limit: int) -> Operation[list[Lapsed]]:
    """Up to `limit` runs whose lease is over."""

    def parse(answer: Sequence[bytes]) -> list[Lapsed]:
        rows = zip(*[iter(part.decode() for part in answer)] * 5, strict=True)
        return [
            Lapsed(RunRef(task_id, int(run)), agent, int(attempt), int(most))
            for task_id, run, agent, attempt, most in rows
        ]

    return Operation(script("lapsed_runs"), [keys.leases], [keys.prefix, limit], parse)


def lapse_run(
    keys: Keys, lapsed: Lapsed, task: Task, version: int, *, again_us: int, without: frozenset[str] = frozenset()
) -> Operation[Lapse]:
    """Ends a lapsed run, or gives its turn the next one, due in `again_us`.

    `task` is the snapshot at `version`. Artifacts `without` leave it when the next run is given: the lost one left them
    open, and the next begins them anew.
    """

    def event(state: TaskState, text: str = "") -> TaskStatusUpdateEvent:
        message = agent_message(text, task.id, task.context_id) if text else None
        return status_event(task.id, task.context_id, state, message)

    again = event(WORKING)
    again.metadata.update({"attempt": lapsed.attempt + 1, "maxAttempts": lapsed.max_attempts})
    arguments: list[Argument] = [
        lapsed.ref.run,
        version,
        encode(event(FAILED, WORKER_LOST)),
        encode(event(CANCELED)),
        encode(again),
        pack_metadata(again.metadata),
        again_us,
    ]
    if without:
        kept = Task()
        kept.CopyFrom(task)
        del kept.artifacts[:]
        kept.artifacts.extend(artifact for artifact in task.artifacts if artifact.artifact_id not in without)
        arguments += whole_arguments(kept)

    def parse(answer: Sequence[bytes]) -> Lapse:
        what = cast(Literal["failed", "canceled", "again", "changed", "over"], answer[0].decode())
        return Lapse(what, int(answer[1]) if what == "again" else None)

    return Operation(script("lapse_run"), keys.task(lapsed.ref.task_id).as_list(), arguments, parse)
