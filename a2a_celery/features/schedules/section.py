"""Ticks of schedules in the store. Each tick creates at most one task, even if its message is delivered repeatedly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import unquote
from uuid import NAMESPACE_OID, uuid5

from google.protobuf.struct_pb2 import Struct

from ...lifecycle.own_metadata import NAMESPACE
from ...lifecycle.references import quote_key_part
from ...store import Keys
from ...store.operation import Operation
from ...store.verbs import Digits, Key, Reply, section, verb
from . import SCHEDULE, SCHEDULED_AT

Overlap = Literal["skip", "allow"]
"""Effect of a tick while a task of the schedule is SUBMITTED or WORKING: with "skip", the tick creates no task."""

MIN_TICKS_TTL = 86400
"""Seconds for which the broker may redeliver the message of a tick."""

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
        return str(uuid5(NAMESPACE_OID, f"{schedule_index(keys, self.schedule)}{self.at_us}"))

    def metadata(self) -> Struct:
        """Return the metadata of the task: the name of the schedule and the time of the tick."""
        metadata = Struct()
        metadata[NAMESPACE + SCHEDULE] = self.schedule
        metadata[NAMESPACE + SCHEDULED_AT] = time_of_tick(self.at_us).isoformat()
        return metadata

    def section(self, keys: Keys, retention: int) -> TickSection:
        """Return the section of the tick. Ended tasks are stored for `retention` seconds."""
        return TickSection(
            schedule_index(keys, self.schedule),
            self.at_us,
            self.window_us,
            self.overlap == "skip",
            max(retention, MIN_TICKS_TTL),
        )


class HandledTick(NamedTuple):
    """Tick that creates no task.

    Attributes:
        outcome: "skipped" if an earlier task of the schedule is SUBMITTED or WORKING, or "repeated" if the tick was
            handled before.
        task_id: Id of the task that a repeated tick has created, or "" if the tick was skipped.
    """

    outcome: Literal["skipped", "repeated"]
    task_id: str = ""


@section(Path(__file__).with_suffix(".lua"))
class TickSection(NamedTuple):
    """Section of ``create_task`` for a tick.

    Attributes:
        index_prefix: Prefix of the indexes of the schedule.
        at: Time of the tick in µs since 1970.
        window: µs within which two ticks are the same tick.
        skips: True to skip the tick while a task of the schedule is SUBMITTED or WORKING.
        ticks_ttl: Seconds for which the ticks are stored after the newest tick.
    """

    index_prefix: str
    at: Digits
    window: int
    skips: bool
    ticks_ttl: int

    def parse(self, task_id: str, reply: Sequence[bytes]) -> HandledTick | None:
        """Parse the reply of the section's ``check``, or return None for any other reply."""
        match reply:
            case [b"skipped"]:
                return HandledTick("skipped")
            case [b"repeated", tag]:
                return HandledTick("repeated", unquote(tag.decode()))
        return None


def time_of_tick(at_us: int) -> datetime:
    """Convert the time of a tick from µs since 1970 to a datetime in UTC."""
    return _EPOCH + timedelta(microseconds=at_us)


def schedule_index(keys: Keys, schedule: str) -> str:
    """Return the common prefix of the sorted sets of a schedule's tasks. The sets have the format of the
    `Keys.scope_index` sets."""
    return f"{keys.prefix}:schedule:{quote_key_part(schedule)}:"


def skipped_ticks(keys: Keys, schedule: str) -> Operation[list[datetime]]:
    """Read the times of the skipped ticks among the newest ticks of a schedule, newest first."""
    return _skipped_ticks(f"{schedule_index(keys, schedule)}ticks")


@verb
def _skipped_ticks(ticks: Key) -> Reply[list[datetime]]:
    def parse(reply: Sequence[bytes]) -> list[datetime]:
        return [time_of_tick(int(at)) for at in reply]

    return Reply(parse)
