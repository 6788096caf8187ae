"""Commands on runs: claim, append, checkpoint, settle, end, revoke, renew leases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from a2a.types import SendMessageRequest, Task, TaskState, TaskStatusUpdateEvent

from ...lifecycle import Event
from ...lifecycle.steps import Step, decode_step
from ..blobs.references import decode_as, encode, has_references
from ..codec import event_arguments, pack_metadata, snapshot_is_resolved, state_of, task_from_snapshot
from ..keys import Keys, Scope
from ..operation import Argument, Operation, script
from ..tasks.commands import FIRST_PUBLISH_GRACE_US
from ..tasks.results import CancelRequested
from .sessions import SavedSession, SavedSince, SessionState, session_arguments

MAX_LOST_BEFORE_CLAIM = 3
"""With so many processes a run may be lost before one has claimed it."""


@dataclass(frozen=True, slots=True)
class RunRef:
    """A run of a task, as named in the broker: its Celery task's id is `name`."""

    task_id: str
    run: int

    @property
    def name(self) -> str:
        return f"{self.task_id}.{self.run}"

    @classmethod
    def of(cls, name: str) -> RunRef | None:
        """The run that a Celery task's id names; None: it names none."""
        task_id, _, run = name.rpartition(".")
        return cls(task_id, int(run)) if task_id and run.isascii() and run.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that is ours. `token` proves it; `task` is the snapshot at `version`, with what came with the claim.

    `asked` counts the newest messages of the client that answer the agent's `ask`; `scope` says whose task it is;
    `paused_in` is the state in which the task waited for the turn's message, None for a task's first.
    `options` are those that the run was stored with, see ``dispatch.RunOptions``; `session` is None unless asked for.
    `execution` has the newest steps of the task, oldest first. The first run of a task, before any retry, gets those of
    the session. () where there are none.
    """

    ref: RunRef
    token: str
    turn: int
    attempt: int
    request: SendMessageRequest
    caller: bytes
    asked: int
    paused_in: TaskState | None
    scope: Scope
    options: bytes
    task: Task
    version: int
    session: SavedSession | None = None
    is_resolved: bool = True
    """Else parts of request and task are in the object store: such a claim is for no agent to see."""
    execution: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Dropped:
    """Not ours to run; `reason` is for the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class RetryUnrecorded:
    """It is a retry, whose last attempt has not said so yet: claim again with its event, in this context."""

    context_id: str


@dataclass(frozen=True, slots=True)
class Written:
    """The log stands at `version` and the task in `state`."""

    version: int
    state: TaskState


@dataclass(frozen=True, slots=True)
class RunLost:
    """The run was given away, or its task has ended: nothing was written.

    `missing` counts the run's confirmed events that the store has no longer: it was restored from an older state.
    """

    missing: int = 0

    @classmethod
    def of(cls, reply: Sequence[bytes]) -> RunLost:
        """Parse the reply ``{'lost', missing}`` of a script."""
        return cls(int(reply[1]) if len(reply) > 1 else 0)


@dataclass(frozen=True, slots=True)
class Illegal:
    """The `number`-th event (from 1) can't follow; the task is in `state`. Nothing was written."""

    number: int
    state: TaskState


@dataclass(frozen=True, slots=True)
class Settled:
    """The run is over. `next_run` of its task, or the run `other` of another in its context, waits for a worker and
    wants to be published, with `next_options`; None: none."""

    version: int
    state: TaskState
    next_run: int | None
    next_options: bytes = b""
    other: RunRef | None = None


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """The run is over but its task is in a state that nobody moves on: write a final one."""

    state: TaskState


@dataclass(frozen=True, slots=True)
class Over:
    """The run is over, whoever ended it; its task is at `version`, in `state`."""

    version: int
    state: TaskState


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Nothing was written: the run belongs to another worker, has or will have a newer one behind it, or is unknown."""


def claim_run(
    keys: Keys,
    ref: RunRef,
    *,
    token: str,
    runner: str,
    lease_us: int,
    working: bool,
    max_attempts: int = 1,
    retries: int = 0,
    retried: TaskStatusUpdateEvent | None = None,
    session: bool = False,
    resolve_blobs: bool = True,
    worker: str = "",
) -> Operation[Claim | Dropped | RetryUnrecorded]:
    """Takes a queued run, which only one caller ever gets; `working` says so in the task's status at once.

    `max_attempts` is how many runs the turn may have, should workers be lost: 1 is at most once. A run that Celery
    retries, for the `retries`-th time, is taken from its last attempt with the event `retried`. With `session` its
    context's comes with the claim. One that is not wanted `whole` asks no object store; the same call can, afterwards.
    `worker` is what Celery's listeners know the worker as; "" where nobody listens.
    """

    def parse(reply: Sequence[Any]) -> Claim | Dropped | RetryUnrecorded:
        if reply[0] != b"claimed":
            return (Dropped if reply[0] == b"dropped" else RetryUnrecorded)(reply[1].decode())
        _, turn, attempt, request, caller, asked, paused_in, scope, options, snapshot, saved, steps = reply
        task, newest = task_from_snapshot(snapshot)
        return Claim(
            ref,
            token,
            int(turn),
            int(attempt),
            decode_as(SendMessageRequest, request),
            caller,
            int(asked),
            state_of(paused_in) if paused_in else None,
            Scope.parse(scope.decode()),
            options,
            task,
            newest.version,
            SavedSession.of(saved) if session else None,
            resolve_blobs or (snapshot_is_resolved(snapshot) and not has_references(request)),
            tuple(decode_step(step) for step in steps),
        )

    return Operation(
        script("claim_run"),
        keys.task(ref.task_id),
        [
            *(ref.run, token, runner, lease_us, int(working), max_attempts, retries),
            *((b"", b"") if retried is None else (encode(retried), pack_metadata(retried.metadata))),
            keys.sessions if session else "",
            worker,
        ],
        parse,
        resolve_blobs,
    )


def append(
    keys: Keys, ref: RunRef, *, token: str, before: int, events: Sequence[Event | Step]
) -> Operation[Written | RunLost | Illegal]:
    """Adds `events` of a claimed run, all or none; `before` counts the run's events so far, its steps too."""
    return Operation(
        script("append"),
        keys.task(ref.task_id),
        [ref.run, token, before, *event_arguments(events)],
        _written,
    )


def settle_run(
    keys: Keys,
    ref: RunRef,
    *,
    token: str,
    before: int,
    events: Sequence[Event | Step],
    asked: int = 0,
    pause_us: int = 0,
    unanswered: Event | None = None,
    session: SessionState | None = None,
) -> Operation[Settled | RunLost | Illegal | LeftOpen | SavedSince]:
    """Ends a claimed run with its last `events`; a message that waited begins the next one. A `session` is saved with
    that if the task then is COMPLETED or waits for its client.

    A pause ends after `pause_us` microseconds (0: never) with the event `unanswered`, if a watcher runs; `asked` counts
    the answers that the agent's `ask` will have got with the next message.
    """

    def parse(reply: Sequence[bytes]) -> Settled | RunLost | Illegal | LeftOpen | SavedSince:
        match reply[0]:
            case b"settled":
                run, own = int(reply[3] or 0), reply[5].decode() in ("", ref.task_id)
                other = None if own else RunRef(reply[5].decode(), run)
                return Settled(int(reply[1]), state_of(reply[2]), (run or None) if own else None, reply[4], other)
            case b"conflict":
                return SavedSince(int(reply[1]))
            case b"illegal":
                return Illegal(int(reply[1]), state_of(reply[2]))
            case b"open":
                return LeftOpen(state_of(reply[1]))
            case _:
                return RunLost.of(reply)

    return Operation(
        script("settle_run"),
        keys.task(ref.task_id),
        [
            ref.run,
            token,
            before,
            FIRST_PUBLISH_GRACE_US,
            asked,
            keys.pauses,
            pause_us,
            b"" if unanswered is None else encode(unanswered),
            *session_arguments(keys, session),
            *event_arguments(events),
        ],
        parse,
    )


def end_run(
    keys: Keys,
    ref: RunRef,
    *,
    runner: str | None,
    event: TaskStatusUpdateEvent,
    lost: bool = False,
    retries: int | None = None,
) -> Operation[Over | Unchanged]:
    """Ends a run from outside with the terminal `event`, and so its task; a run that is over stays as it is.

    A claimed run is ended only if its runner's id begins with `runner`; None: only a run that nobody has claimed. A run
    that a client asked to cancel ends CANCELED instead. One whose worker was `lost` gives way to the next attempt, if
    its turn may have one; else it leaves a dead letter. A run that the lost worker had not claimed has not begun: it is
    published again, unless `MAX_LOST_BEFORE_CLAIM` processes were lost so; then it is the agent's code that ends them.
    `retries` is the retry count of the message that the call is about: a message from before the run's last retry ends
    nothing. None: the call is about no message.
    """

    def parse(reply: Sequence[bytes]) -> Over | Unchanged:
        return Over(int(reply[1]), state_of(reply[2])) if reply[0] == b"over" else Unchanged()

    return Operation(
        script("end_run"),
        keys.task(ref.task_id),
        [
            *(ref.run, runner or "", int(lost), keys.dead_letters, MAX_LOST_BEFORE_CLAIM),
            "" if retries is None else retries,
            *event_arguments([event]),
        ],
        parse,
    )


def _written(reply: Sequence[bytes]) -> Written | RunLost | Illegal:
    match reply[0]:
        case b"written":
            return Written(int(reply[1]), state_of(reply[2]))
        case b"illegal":
            return Illegal(int(reply[1]), state_of(reply[2]))
        case _:
            return RunLost.of(reply)


@dataclass(frozen=True, slots=True)
class Renewal:
    """Names of the runs that are no longer ours, and of those a client wants cancelled."""

    lost: frozenset[str]
    cancel: frozenset[str]


def renew_runs(keys: Keys, held: Sequence[tuple[RunRef, str]], *, lease_us: int) -> Operation[Renewal]:
    """Renews the leases of `held` runs, each with the token of its claim."""
    arguments: list[Argument] = [lease_us]
    for ref, token in held:
        arguments += [ref.task_id, ref.run, token]

    def parse(reply: Sequence[Sequence[bytes]]) -> Renewal:
        lost, cancel = (frozenset(name.decode() for name in names) for names in reply)
        return Renewal(lost, cancel)

    records = [keys.task(ref.task_id).record for ref, _ in held]
    return Operation(script("renew_runs"), [keys.leases, *records], arguments, parse)


def checkpoint(
    keys: Keys, ref: RunRef, *, token: str, confirmed: int, session: SessionState
) -> Operation[SessionState | RunLost | SavedSince]:
    """Saves the state of a claimed run's session; gives what was saved. Its task is not changed.

    `confirmed` counts the events of the run that the store has confirmed: a state is not saved without its events.
    """

    def parse(reply: Sequence[bytes]) -> SessionState | RunLost | SavedSince:
        match reply[0]:
            case b"saved":
                return session
            case b"conflict":
                return SavedSince(int(reply[1]))
            case _:
                return RunLost.of(reply)

    arguments = [ref.run, token, confirmed, *session_arguments(keys, session)]
    return Operation(script("checkpoint"), keys.task(ref.task_id), arguments, parse)


def revoke_run(
    keys: Keys, ref: RunRef, *, event: TaskStatusUpdateEvent, terminate: bool
) -> Operation[Over | CancelRequested | Unchanged]:
    """End a run that an operator revoked, and so its task, with the CANCELED `event`.

    A run that is queued, or that Celery retries, ends at once. A claimed run goes on, unless the operator wants to
    `terminate` it: its worker is asked to cancel it, and the message of `event` becomes the message of its end.
    """

    def parse(reply: Sequence[bytes]) -> Over | CancelRequested | Unchanged:
        match reply[0]:
            case b"over":
                return Over(int(reply[1]), state_of(reply[2]))
            case b"requested":
                return CancelRequested(int(reply[1]))
            case _:
                return Unchanged()

    return Operation(
        script("revoke_run"),
        keys.task(ref.task_id),
        [ref.run, keys.runner("") if terminate else "", *event_arguments([event])],
        parse,
    )
