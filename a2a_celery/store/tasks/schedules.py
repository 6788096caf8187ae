"""Ticks of schedules. Each tick creates at most one task, even if its message is delivered repeatedly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple
from uuid import NAMESPACE_OID, uuid5

from a2a.types import TaskState
from google.protobuf.struct_pb2 import Struct

from ...lifecycle.own_metadata import NAMESPACE, SCHEDULE, SCHEDULED_AT
from ..codec import pack_metadata
from ..keys import Keys
from ..operation import Operation
from ..verbs import Digits, Key, verb

Overlap = Literal["skip", "allow"]
"""Effect of a tick while a task of the schedule is SUBMITTED or WORKING: with "skip", the tick creates no task."""

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


class TickArguments(NamedTuple):
    """Tick, as the argument of a script.

    Attributes:
        schedule_index: Prefix of the indexes of the schedule.
        ticks: Key of the ticks of the schedule.
        at: Time of the tick in µs since 1970.
        window: µs within which two ticks are the same tick.
        skips: True to skip the tick while a task of the schedule is SUBMITTED or WORKING.
        metadata: Packed metadata of the task.
    """

    schedule_index: str
    ticks: str
    at: Digits
    window: int
    skips: bool
    metadata: bytes


def time_of_tick(at_us: int) -> datetime:
    """Convert the time of a tick from µs since 1970 to a datetime in UTC."""
    return _EPOCH + timedelta(microseconds=at_us)


def tick_arguments(keys: Keys, tick: Tick) -> TickArguments:
    """Return a tick in the form that ``create_task`` receives."""
    names = (keys.schedule_index(tick.schedule), keys.ticks(tick.schedule))
    return TickArguments(*names, tick.at_us, tick.window_us, tick.overlap == "skip", pack_metadata(tick.metadata()))


def schedule_indexes(keys: Keys, schedule: str) -> list[str]:
    """Return the names of the sorted sets of a schedule's tasks, one for each state."""
    return [f"{keys.schedule_index(schedule)}{state}" for state in TaskState.values()[1:]]


@verb
def _skipped_ticks(ticks: Key) -> None: ...


def skipped_ticks(keys: Keys, schedule: str) -> Operation[list[datetime]]:
    """Read the times of the skipped ticks among the newest ticks of a schedule, newest first."""

    def parse(reply: Sequence[bytes]) -> list[datetime]:
        return [time_of_tick(int(at)) for at in reply]

    return Operation(*_skipped_ticks(keys.ticks(schedule)), parse)
