"""Ticks of schedules. Each tick creates at most one task, even if its message is delivered repeatedly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import NAMESPACE_OID, uuid5

from a2a.types import TaskState
from google.protobuf.struct_pb2 import Struct

from ...lifecycle.own_metadata import NAMESPACE, SCHEDULE, SCHEDULED_AT
from ..codec import pack_metadata
from ..keys import Keys, Scope
from ..operation import Argument, Operation, script

Overlap = Literal["skip", "queue", "cancel"]
"""Effect of a tick while a task of the schedule is SUBMITTED or WORKING.

"skip": The tick creates no task. "queue": The run of the new task waits until the runs of the earlier tasks have ended.
"cancel": Like "queue", and the earlier tasks are cancelled.
"""

_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Tick:
    """Time at which a schedule starts a task. Two ticks at most `window_us` apart count as the same tick."""

    schedule: str
    at_us: int
    window_us: int = 0
    overlap: Overlap = "skip"

    def task_id(self, keys: Keys) -> str:
        """Return the id of the tick's task, which is the same in each process."""
        return str(uuid5(NAMESPACE_OID, f"{keys.schedule_index(self.schedule)}{self.at_us}"))

    def metadata(self) -> Struct:
        """Return the metadata of the task: the name of the schedule and the time of the tick."""
        metadata = Struct()
        metadata[NAMESPACE + SCHEDULE] = self.schedule
        metadata[NAMESPACE + SCHEDULED_AT] = time_of_tick(self.at_us).isoformat()
        return metadata


@dataclass(frozen=True, slots=True)
class EarlierTask:
    """SUBMITTED or WORKING task of an earlier tick."""

    task_id: str
    context_id: str
    scope: Scope


NO_TICK: tuple[Argument, ...] = ("", "", "", "", "", "")
"""Arguments of ``create_task`` for a task without a schedule."""


def time_of_tick(at_us: int) -> datetime:
    """Convert the time of a tick from µs since 1970 to a datetime in UTC."""
    return _EPOCH + timedelta(microseconds=at_us)


def tick_arguments(keys: Keys, tick: Tick) -> list[Argument]:
    """Return the arguments of ``create_task`` that describe the tick."""
    names = (keys.schedule_index(tick.schedule), keys.ticks(tick.schedule))
    skips = int(tick.overlap == "skip")
    return [*names, tick.at_us, tick.window_us, skips, pack_metadata(tick.metadata())]


def schedule_indexes(keys: Keys, schedule: str) -> list[str]:
    """Return the names of the sorted sets of a schedule's tasks, one for each state."""
    return [f"{keys.schedule_index(schedule)}{state}" for state in TaskState.values()[1:]]


def earlier_tasks(keys: Keys, tick: Tick) -> Operation[list[EarlierTask]]:
    """Read the SUBMITTED and WORKING tasks of earlier ticks of the schedule."""

    def parse(reply: Sequence[bytes]) -> list[EarlierTask]:
        fields = zip(*[(value.decode() for value in reply)] * 3, strict=True)
        return [EarlierTask(task_id, context_id, Scope.parse(scope)) for task_id, context_id, scope in fields]

    arguments: list[Argument] = [keys.prefix, keys.schedule_index(tick.schedule), tick.at_us]
    return Operation(script("earlier_tasks"), [], arguments, parse)


def skipped_ticks(keys: Keys, schedule: str) -> Operation[list[datetime]]:
    """Read the times of the skipped ticks among the newest ticks of a schedule, newest first."""

    def parse(reply: Sequence[bytes]) -> list[datetime]:
        return [time_of_tick(int(at)) for at in reply]

    return Operation(script("skipped_ticks"), [keys.ticks(schedule)], [], parse)
