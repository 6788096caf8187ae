"""Commands on suspended runs, which continue at a given time, when a signal arrives or when another task is final."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from a2a.types import TaskState

from ...lifecycle.journal import JournalEntry, decode_entry, encode_entry
from ...lifecycle.references import RunRef
from ..codec import EntryToWrite, EventsToWrite, TaskToWrite, state_of
from ..keys import Keys
from ..verbs import Reply, Sections, verb
from .commands import Illegal, RunLost, refused_write


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait of a run for a signal, a time or both.

    Attributes:
        received: Journal entry for a received signal. The payload of the signal becomes the content of the entry.
        timeout: Journal entry for a wait that times out.
        signal: Name of the signal, or "" to wait for a time only.
        wait_us: µs until the run continues without a signal, or None for no limit.
        until_us: Time at which the run continues without a signal, in µs since 1970, or None. This time takes
            precedence over `wait_us`.
        task_id: Id of a task that sends the signal when it ends or waits for its client, or None.
    """

    received: JournalEntry
    timeout: JournalEntry
    signal: str = ""
    wait_us: int | None = None
    until_us: int | None = None
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class SuspendedRun:
    """Result of the suspension of a run. The next run is suspended or, if its wait was already over, queued.

    If a client requested cancellation of the task, the task has ended in CANCELED instead. If a message interrupted the
    run, the turn of the message has begun instead.

    Attributes:
        version: Version of the log.
        state: State of the task.
        next_run: Run that the caller publishes, or None.
    """

    version: int
    state: TaskState
    next_run: int | None


class WaitArguments(NamedTuple):
    """Wait of a run, as the argument of a script. The journal entries are as in ``record_wait`` in ``scripts/lib``.

    Attributes:
        key: Key of both journal entries.
        header: Journal entry for a received signal, without the payload.
        timeout: Journal entry for a wait that times out.
    """

    signal: str
    task: str | None
    wait_us: int | None
    until_us: int | None
    key: str
    header: bytes
    timeout: bytes


def _wait_arguments(wait: Wait) -> WaitArguments:
    return WaitArguments(
        wait.signal,
        wait.task_id,
        wait.wait_us,
        wait.until_us,
        wait.received.key,
        encode_entry(wait.received),
        encode_entry(wait.timeout),
    )


@verb
def suspend_run(
    keys: Keys,
    ref: RunRef,
    *,
    token: str,
    written_count: int,
    events: EventsToWrite,
    wait: Annotated[Wait, _wait_arguments],
    options: bytes,
    replacement: TaskToWrite | None = None,
    sections: Sections = (),
) -> Reply[SuspendedRun | RunLost | Illegal]:
    """Suspend a claimed run with its last `events`.

    The next run of the turn waits in the store. If the signal has arrived or the time has passed, the next run is
    queued immediately.

    Args:
        keys: Keys of the deployment.
        ref: Claimed run.
        token: Token of the claim.
        written_count: Number of records that the run wrote earlier.
        events: Records that the run writes last.
        wait: Signal and time for which the run waits.
        options: Options of the next run.
        replacement: Task that replaces the stored task before `events` are written, or None.
        sections: Sections of features.
    """

    def parse(reply: Sequence[bytes]) -> SuspendedRun | RunLost | Illegal:
        if reply[0] != b"suspended":
            return refused_write(reply)
        return SuspendedRun(int(reply[1]), state_of(reply[2]), int(reply[3]) if reply[3] else None)

    return Reply(parse)


@verb
def resume_due_runs(keys: Keys, *, limit: int) -> Reply[list[str]]:
    """Queue up to `limit` suspended runs that are due.

    Args:
        keys: Keys of the deployment.
        limit: Maximum number of runs.

    Returns:
        The names of the due runs.
    """

    def parse(reply: Sequence[bytes]) -> list[str]:
        return [name.decode() for name in reply]

    return Reply(parse)


@verb
def take_signal(
    keys: Keys,
    ref: RunRef,
    *,
    token: str,
    confirmed: int,
    signal: str,
    received: EntryToWrite,
    timeout: EntryToWrite | None = None,
) -> Reply[JournalEntry | RunLost | None]:
    """Move the oldest stored signal with the name `signal` to the journal of a claimed run.

    Args:
        keys: Keys of the deployment.
        ref: Claimed run.
        token: Token of the claim.
        confirmed: Number of the run's records that the store has confirmed.
        signal: Name of the signal.
        received: Journal entry for the signal. The payload of the signal becomes the content of the entry.
        timeout: Journal entry to write if there is no such signal, or None to write nothing.

    Returns:
        The journal entry, or None if there is no such signal and `timeout` is None.
    """

    def parse(reply: Sequence[Any]) -> JournalEntry | RunLost | None:
        match reply[0]:
            case b"recorded":
                return decode_entry(received.key, reply[1])
            case b"none":
                return None
            case _:
                return RunLost.of(reply)

    return Reply(parse)
