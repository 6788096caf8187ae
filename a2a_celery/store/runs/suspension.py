"""Commands on suspended runs, which continue at a time or by a signal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from a2a.types import Task, TaskState

from ...lifecycle.journal import JournalEntry, RunRecord, decode_entry, encode_entry
from ..codec import event_arguments, state_of, task_arguments
from ..keys import Keys
from ..operation import Argument, Operation, script
from ..tasks.commands import FIRST_PUBLISH_GRACE_US
from .commands import Illegal, RunLost, RunRef


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait of a run for a signal, a time or both.

    Attributes:
        received: Entry of the journal that a signal completes with its payload as the content.
        timeout: Entry of the journal if the time comes first.
        signal: Name of the signal, or "" to wait for a time only.
        wait_us: µs until the run continues without a signal, or None for no limit.
        until_us: µs since 1970 at which the run continues without a signal, instead of `wait_us`, or None.
    """

    received: JournalEntry
    timeout: JournalEntry
    signal: str = ""
    wait_us: int | None = None
    until_us: int | None = None


@dataclass(frozen=True, slots=True)
class SuspendedRun:
    """The run was suspended, or its task was canceled.

    The caller publishes `next_run`, or None if the next run waits.
    """

    version: int
    state: TaskState
    next_run: int | None


def suspend_run(
    keys: Keys,
    ref: RunRef,
    *,
    token: str,
    before: int,
    events: Sequence[RunRecord],
    wait: Wait,
    options: bytes,
    replacement: Task | None = None,
) -> Operation[SuspendedRun | RunLost | Illegal]:
    """Suspend a claimed run with its last `events`.

    The next run of the turn waits. It is queued at once if the signal has arrived, or if the time has passed.

    Args:
        options: options of the next run.
        replacement: replaces the task before `events`. None leaves the task unchanged.
    """

    def parse(reply: Sequence[bytes]) -> SuspendedRun | RunLost | Illegal:
        match reply[0]:
            case b"suspended":
                return SuspendedRun(int(reply[1]), state_of(reply[2]), int(reply[3]) if reply[3] else None)
            case b"illegal":
                return Illegal(int(reply[1]), state_of(reply[2]))
            case _:
                return RunLost.of(reply)

    written = event_arguments(events)
    arguments: list[Argument] = [
        *(ref.run, token, before, keys.suspended, wait.signal),
        *("" if us is None else us for us in (wait.wait_us, wait.until_us)),
        *(wait.received.key, encode_entry(wait.received), encode_entry(wait.timeout)),
        *(options, FIRST_PUBLISH_GRACE_US, len(written), *written),
        *([] if replacement is None else task_arguments(replacement)),
    ]
    return Operation(script("suspend_run"), keys.task(ref.task_id), arguments, parse)


def resume_due_runs(keys: Keys, *, limit: int, latest_us: int | None = None) -> Operation[int]:
    """Queue up to `limit` suspended runs whose time has come. Return the number of due runs.

    `latest_us` is the latest time that the store's clock can show, in µs, unless it jumped; None for any time.
    """
    latest = "" if latest_us is None else latest_us
    return Operation(script("resume_due_runs"), [keys.suspended], [keys.prefix, limit, latest], int)


def take_signal(
    keys: Keys,
    ref: RunRef,
    *,
    token: str,
    confirmed: int,
    signal: str,
    received: JournalEntry,
    timeout: JournalEntry | None = None,
) -> Operation[JournalEntry | RunLost | None]:
    """Move the oldest stored signal with a name to the journal of a claimed run, and return its entry.

    Args:
        confirmed: number of events of the run that the store has confirmed.
        received: entry of the journal that the payload of the signal completes.
        timeout: entry of the journal if there is no signal. With None, nothing is written, and the result is None.
    """

    def parse(reply: Sequence[Any]) -> JournalEntry | RunLost | None:
        match reply[0]:
            case b"recorded":
                return decode_entry(received.key, reply[1])
            case b"none":
                return None
            case _:
                return RunLost.of(reply)

    last = b"" if timeout is None else encode_entry(timeout)
    arguments: list[Argument] = [ref.run, token, confirmed, signal, received.key, encode_entry(received), last]
    return Operation(script("take_signal"), keys.task(ref.task_id), arguments, parse)
