"""The verbs about runs: claim, append, settle, renew; and dispatching those nobody claimed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from a2a.types import SendMessageRequest, Task, TaskState

from ..lifecycle import Event, encode
from .codec import event_arguments, state_of, task_from_snapshot
from .keys import Keys
from .operation import Argument, Operation, script
from .tasks import FIRST_PUBLISH_GRACE_US

MAX_REDISPATCH_WAIT_US = 3600 * 1_000_000
"""The longest time between two publishes of a run that no worker claims."""


@dataclass(frozen=True, slots=True)
class RunRef:
    """A run of a task, as named in the broker: its Celery task's id is `name`."""

    task_id: str
    run: int

    @property
    def name(self) -> str:
        return f"{self.task_id}.{self.run}"


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that is ours. `token` proves it; `task` is the snapshot at `version`, with what came with the claim.

    `asked` counts the newest messages of the client that answer the agent's `ask`.
    """

    ref: RunRef
    token: str
    turn: int
    attempt: int
    request: SendMessageRequest
    caller: bytes
    asked: int
    task: Task
    version: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Not ours to run; `reason` is for the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class Written:
    """The log stands at `version` and the task in `state`."""

    version: int
    state: TaskState


@dataclass(frozen=True, slots=True)
class RunLost:
    """The run was given away, or its task has ended: nothing was written."""


@dataclass(frozen=True, slots=True)
class Illegal:
    """The `number`-th event (from 1) can't follow; the task is in `state`. Nothing was written."""

    number: int
    state: TaskState


@dataclass(frozen=True, slots=True)
class Settled:
    """The run is over. `next_run` waits for a worker and wants to be published; None: none."""

    version: int
    state: TaskState
    next_run: int | None


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """The run is over but its task is in a state that nobody moves on: write a final one."""

    state: TaskState


@dataclass(frozen=True, slots=True)
class Renewal:
    """Names of the runs that are no longer ours, and of those a client wants cancelled."""

    lost: frozenset[str]
    cancel: frozenset[str]


def claim_run(
    keys: Keys, ref: RunRef, *, token: str, runner: str, lease_us: int, working: bool
) -> Operation[Claim | Dropped]:
    """Takes a queued run, which only one caller ever gets; `working` says so in the task's status at once."""

    def parse(answer: Sequence[Any]) -> Claim | Dropped:
        if answer[0] == b"dropped":
            return Dropped(answer[1].decode())
        _, turn, attempt, request, caller, asked, snapshot = answer
        task, version = task_from_snapshot(snapshot)
        return Claim(
            ref,
            token,
            int(turn),
            int(attempt),
            SendMessageRequest.FromString(request),
            caller,
            int(asked),
            task,
            version,
        )

    return Operation(
        script("claim_run"),
        keys.task(ref.task_id).as_list(),
        [ref.run, token, runner, lease_us, int(working)],
        parse,
    )


def append(
    keys: Keys, ref: RunRef, *, token: str, before: int, events: Sequence[Event]
) -> Operation[Written | RunLost | Illegal]:
    """Adds `events` of a claimed run, all or none; `before` counts the run's events so far."""
    return Operation(
        script("append"),
        keys.task(ref.task_id).as_list(),
        [ref.run, token, before, *event_arguments(events)],
        _written,
    )


def settle_run(
    keys: Keys,
    ref: RunRef,
    *,
    token: str,
    before: int,
    events: Sequence[Event],
    asked: int = 0,
    pause_us: int = 0,
    unanswered: Event | None = None,
) -> Operation[Settled | RunLost | Illegal | LeftOpen]:
    """Ends a claimed run with its last `events`; a message that waited begins the next one.

    A pause ends after `pause_us` microseconds (0: never) with the event `unanswered`, if a watcher runs; `asked` counts
    the answers that the agent's `ask` will have got with the next message.
    """

    def parse(answer: Sequence[bytes]) -> Settled | RunLost | Illegal | LeftOpen:
        match answer[0]:
            case b"settled":
                return Settled(int(answer[1]), state_of(answer[2]), int(answer[3]) if answer[3] else None)
            case b"illegal":
                return Illegal(int(answer[1]), state_of(answer[2]))
            case b"open":
                return LeftOpen(state_of(answer[1]))
            case _:
                return RunLost()

    return Operation(
        script("settle_run"),
        keys.task(ref.task_id).as_list(),
        [
            ref.run,
            token,
            before,
            FIRST_PUBLISH_GRACE_US,
            asked,
            keys.pauses,
            pause_us,
            b"" if unanswered is None else encode(unanswered),
            *event_arguments(events),
        ],
        parse,
    )


def renew_runs(keys: Keys, held: Sequence[tuple[RunRef, str]], *, lease_us: int) -> Operation[Renewal]:
    """Renews the leases of `held` runs, each with the token of its claim."""
    arguments: list[Argument] = [lease_us]
    for ref, token in held:
        arguments += [ref.task_id, ref.run, token]

    def parse(answer: Sequence[Sequence[bytes]]) -> Renewal:
        lost, cancel = (frozenset(name.decode() for name in names) for names in answer)
        return Renewal(lost, cancel)

    records = [keys.task(ref.task_id).record for ref, _ in held]
    return Operation(script("renew_runs"), [keys.leases, *records], arguments, parse)


def mark_published(keys: Keys, ref: RunRef, *, again_us: int) -> Operation[None]:
    """The broker has the run: a watcher publishes it again only if no worker claims it within `again_us`."""
    return Operation(script("mark_published"), [keys.dispatch], [ref.name, again_us], lambda _: None)


def take_due_runs(keys: Keys, *, limit: int, again_us: int) -> Operation[list[tuple[RunRef, str]]]:
    """Up to `limit` runs that want to be published, with their agents' names; the caller publishes them."""

    def parse(answer: Sequence[bytes]) -> list[tuple[RunRef, str]]:
        parts = [part.decode() for part in answer]
        return [
            (RunRef(task_id, int(run)), agent)
            for task_id, run, agent in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
        ]

    return Operation(
        script("take_due_runs"), [keys.dispatch], [keys.prefix, limit, again_us, MAX_REDISPATCH_WAIT_US], parse
    )


def end_pauses(keys: Keys, *, limit: int) -> Operation[int]:
    """Fails up to `limit` tasks whose pause has lasted too long; gives how many were due."""
    return Operation(script("end_pauses"), [keys.pauses], [keys.prefix, limit], int)


def _written(answer: Sequence[bytes]) -> Written | RunLost | Illegal:
    match answer[0]:
        case b"written":
            return Written(int(answer[1]), state_of(answer[2]))
        case b"illegal":
            return Illegal(int(answer[1]), state_of(answer[2]))
        case _:
            return RunLost()
