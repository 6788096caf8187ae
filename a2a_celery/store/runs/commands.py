"""Commands on runs: publish, claim, append, checkpoint, settle, end, revoke, renew leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from a2a.types import SendMessageRequest, Task, TaskState, TaskStatusUpdateEvent

from ...lifecycle import Event
from ...lifecycle.execution import Step, decode_step
from ...lifecycle.journal import JournalEntry, RunRecord
from ..blobs.references import decode_as, encode, has_references
from ..codec import event_arguments, journal_from, pack_metadata, snapshot_is_resolved, state_of, task_from_snapshot
from ..keys import Keys, Scope
from ..operation import Argument, Operation, script
from ..tasks.commands import FIRST_PUBLISH_GRACE_US
from ..tasks.results import CancelRequested


@dataclass(frozen=True, slots=True)
class SavedSession:
    """Session as a run reads it.

    Attributes:
        version: number of saves; 0 if the session was never saved.
        state: saved state, or b"".
        resumed: True if an earlier run of the same turn saved it, also if that was a run of the dead letter from which
            the task was requeued.
    """

    version: int = 0
    state: bytes = field(default=b"", repr=False)
    resumed: bool = False

    @classmethod
    def of(cls, reply: Sequence[bytes]) -> SavedSession:
        """Parse the session in the reply of ``claim_run``."""
        if not reply:
            return cls()
        version, state, resumed = reply
        return cls(int(version), state, resumed == b"1")


@dataclass(frozen=True, slots=True)
class SessionState:
    """State to save.

    Attributes:
        version: version of the session that the state was derived from.
        state: new state, or b"" to only extend the life of the saved one.
        fingerprint: fingerprint of the secret that the state is sealed with, or "".
    """

    scope: Scope
    context_id: str
    version: int
    state: bytes = field(repr=False)
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class SavedSince:
    """Another run has saved the session, which is at `version`. Nothing was written."""

    version: int


def session_arguments(keys: Keys, session: SessionState | None) -> list[Argument]:
    """Return the arguments of ``save_session`` in scripts/lib."""
    if session is None:
        return ["", 0, "", "", "", ""]
    return [
        keys.session(session.scope, session.context_id),
        session.version,
        session.state,
        session.fingerprint,
        keys.sealed_with(session.fingerprint) if session.fingerprint else "",
        keys.secrets,
    ]


MAX_LOST_BEFORE_CLAIM = 3
"""Number of processes that may be lost with a run before one has claimed it."""


@dataclass(frozen=True, slots=True)
class RunRef:
    """Run of a task. `name` is the id of its Celery task."""

    task_id: str
    run: int

    @property
    def name(self) -> str:
        return f"{self.task_id}.{self.run}"

    @classmethod
    def of(cls, name: str) -> RunRef | None:
        """Return the run with that Celery task id, or None if it is not the id of a run."""
        task_id, _, run = name.rpartition(".")
        return cls(task_id, int(run)) if task_id and run.isascii() and run.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Claim:
    """Claimed run.

    Attributes:
        token: token of the claim, which each write of the run carries.
        ask_count: number of the newest client messages that answer the agent's `ask`.
        interrupted_state: state before the message of the turn, or None in the first turn.
        options: stored options of the run, see ``dispatch.RunOptions``.
        task: snapshot at `version`, including the changes of the claim.
        session: None unless requested.
        is_resolved: False if request and task have unresolved blob references. An agent must not receive such a claim.
        execution: newest steps of the task, oldest first. The first run of a task, before any retry, receives the steps
            of the session.
        journal: entries by key, or None if they are too large for the claim. `read_journal` then returns them in pages.
        journal_origin: id of the first task of the turn: of a dead letter, if the task was requeued with its journal.
    """

    ref: RunRef
    token: str
    turn: int
    attempt: int
    request: SendMessageRequest
    caller: bytes
    ask_count: int
    interrupted_state: TaskState | None
    scope: Scope
    options: bytes
    task: Task
    version: int
    session: SavedSession | None = None
    is_resolved: bool = True
    execution: tuple[Step, ...] = ()
    journal: Mapping[str, JournalEntry] | None = field(default_factory=dict, repr=False)
    journal_origin: str = ""


@dataclass(frozen=True, slots=True)
class Dropped:
    """The run cannot be claimed, for the `reason`."""

    reason: str


@dataclass(frozen=True, slots=True)
class RetryUnrecorded:
    """The run is a retry whose previous attempt has not recorded it: repeat the claim with the event of the retry."""

    context_id: str


@dataclass(frozen=True, slots=True)
class Written:
    """The events were written: the log is at `version`, and the task in `state`."""

    version: int
    state: TaskState


@dataclass(frozen=True, slots=True)
class RunLost:
    """The claim is no longer valid, or the task has ended. Nothing was written.

    `missing` is the number of confirmed events of the run that a restored store has lost.
    """

    missing: int = 0

    @classmethod
    def of(cls, reply: Sequence[bytes]) -> RunLost:
        """Parse the reply ``{'lost', missing}`` of a script."""
        return cls(int(reply[1]) if len(reply) > 1 else 0)


@dataclass(frozen=True, slots=True)
class Illegal:
    """Event `number`, from 1, is illegal for a task in `state`. Nothing was written."""

    number: int
    state: TaskState


@dataclass(frozen=True, slots=True)
class Settled:
    """The run has ended.

    The caller publishes `next_run` of the task, or the run `other` of another task in the context, with `next_options`.
    Both are None if no run follows.
    """

    version: int
    state: TaskState
    next_run: int | None
    next_options: bytes = b""
    other: RunRef | None = None


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """The events would leave the task in a `state` that needs a run. Nothing was written."""

    state: TaskState


@dataclass(frozen=True, slots=True)
class Over:
    """The run has ended, by this call or before. Its task is at `version`, in `state`."""

    version: int
    state: TaskState


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The run belongs to another worker, is followed by a newer run, or is unknown. Nothing was written."""


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
    """Claim a queued run. Only one caller receives a run.

    Args:
        runner: id of the worker process.
        max_attempts: largest number of runs of the turn; 1 is at most once.
        retried: event of the retry, which ends the previous attempt.
        resolve_blobs: False to leave blob references unresolved. The call can be repeated with True.
        worker: Celery node name of the worker, or "" if events are off.
    """

    def parse(reply: Sequence[Any]) -> Claim | Dropped | RetryUnrecorded:
        if reply[0] != b"claimed":
            return (Dropped if reply[0] == b"dropped" else RetryUnrecorded)(reply[1].decode())
        return _claim(reply, ref, token, session=session, resolve_blobs=resolve_blobs)

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


def _claim(reply: Sequence[Any], ref: RunRef, token: str, *, session: bool, resolve_blobs: bool) -> Claim:
    _, turn, attempt, request, caller, ask_count, interrupted, scope, options, snapshot, saved, steps = reply[:12]
    entries, origin = reply[12:]
    task, newest = task_from_snapshot(snapshot)
    return Claim(
        ref,
        token,
        int(turn),
        int(attempt),
        decode_as(SendMessageRequest, request),
        caller,
        int(ask_count),
        state_of(interrupted) if interrupted else None,
        Scope.parse(scope.decode()),
        options,
        task,
        newest.version,
        SavedSession.of(saved) if session else None,
        resolve_blobs or (snapshot_is_resolved(snapshot) and not has_references(request)),
        tuple(decode_step(step) for step in steps),
        None if entries == b"" else journal_from(entries),
        origin.decode() or ref.task_id,
    )


def append(
    keys: Keys, ref: RunRef, *, token: str, before: int, events: Sequence[RunRecord]
) -> Operation[Written | RunLost | Illegal]:
    """Append `events` of a claimed run, all or none. `before` is the number of earlier events and steps of the run."""
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
    events: Sequence[RunRecord],
    ask_count: int = 0,
    pause_us: int = 0,
    pause_timeout: Event | None = None,
    dead_letter: bool = False,
    answer_schema: str = "",
    session: SessionState | None = None,
) -> Operation[Settled | RunLost | Illegal | LeftOpen | SavedSince]:
    """End a claimed run with its last `events`. A waiting message begins the next run.

    Args:
        before: number of earlier events and steps of the run.
        ask_count: number of answers that the agent's `ask` has received, including the next message.
        pause_us: µs after which a watcher ends a pause, or 0 for never.
        pause_timeout: event that ends the pause.
        dead_letter: True if the task, should it be FAILED, leaves a dead letter.
        answer_schema: JSON Schema of the answer to the question, or "" if any message answers it.
        session: saved if the task is then COMPLETED or interrupted.
    """

    def parse(reply: Sequence[bytes]) -> Settled | RunLost | Illegal | LeftOpen | SavedSince:
        match reply[0]:
            case b"settled":
                run, task_id = int(reply[3] or 0), reply[5].decode()
                is_own = task_id in ("", ref.task_id)
                other = None if is_own else RunRef(task_id, run)
                return Settled(int(reply[1]), state_of(reply[2]), (run or None) if is_own else None, reply[4], other)
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
            ask_count,
            *(keys.pauses, pause_us),
            b"" if pause_timeout is None else encode(pause_timeout),
            keys.dead_letters if dead_letter else "",
            answer_schema,
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
    """End a run without its worker, and its task, with the terminal `event`.

    A run that has ended does not change. A run whose cancel a client requested ends CANCELED.

    Args:
        runner: beginning of the id of the runner that has claimed the run. None to end an unclaimed run only.
        lost: True if the worker was lost. A claimed run is followed by the next attempt, or leaves a dead letter if the
            turn may have no other. An unclaimed run is published again, until `MAX_LOST_BEFORE_CLAIM` processes were
            lost with it; the agent's code then probably ended them.
        retries: retry count of the message that the call is about. A message from before the last retry ends no run.
            None if the call is about no message.
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
    """Names of the runs whose claims are no longer valid, and of the runs to cancel."""

    lost: frozenset[str]
    cancel: frozenset[str]


def renew_runs(keys: Keys, claims: Sequence[tuple[RunRef, str]], *, lease_us: int) -> Operation[Renewal]:
    """Renew the leases of `claims`, pairs of a run and the token of its claim."""
    arguments: list[Argument] = [lease_us]
    for ref, token in claims:
        arguments += [ref.task_id, ref.run, token]

    def parse(reply: Sequence[Sequence[bytes]]) -> Renewal:
        lost, cancel = (frozenset(name.decode() for name in names) for names in reply)
        return Renewal(lost, cancel)

    records = [keys.task(ref.task_id).record for ref, _ in claims]
    return Operation(script("renew_runs"), [keys.leases, *records], arguments, parse)


def checkpoint(
    keys: Keys, ref: RunRef, *, token: str, confirmed: int, session: SessionState
) -> Operation[SessionState | RunLost | SavedSince]:
    """Save the session of a claimed run, and return the saved state. The task does not change.

    `confirmed` is the number of events of the run that the store has confirmed. A store that has lost any of them
    refuses the call.
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

    A queued run, or one that Celery retries, ends at once. A claimed run continues, unless the operator terminates it:
    with `terminate`, its worker is asked to cancel it, and the message of `event` becomes the message of its end.
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


MAX_REDISPATCH_WAIT_US = 3600 * 1_000_000
"""The longest time between two publishes of a run that no worker claims."""
MAX_CLAIMED_OPTIONS = 1024
"""Largest size in bytes of the options that `claimed_runs` returns; arguments of a plain Celery task can be large."""


@dataclass(frozen=True, slots=True)
class DueRun:
    """Run to publish.

    Attributes:
        agent: name of its agent.
        options: its stored options.
        published_us: time of its last publish, if its queue may still hold the message.
        acquired_us: time at which it was acquired.
    """

    ref: RunRef
    agent: str
    options: bytes
    published_us: int | None = None
    acquired_us: int = field(default=0, compare=False)

    @property
    def queued_us(self) -> int:
        """µs since its last publish."""
        return self.acquired_us - (self.published_us or self.acquired_us)


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """Claimed run that was published once, at `published_us` (time of the store, in µs)."""

    agent: str
    options: bytes
    published_us: int


def mark_published(keys: Keys, ref: RunRef, *, again_us: int) -> Operation[None]:
    """Record that the broker has the run. A watcher publishes it again if no worker claims it within `again_us`."""
    return mark_all_published(keys, {ref: again_us})


def mark_all_published(keys: Keys, runs: Mapping[RunRef, int]) -> Operation[None]:
    """Call `mark_published` for several `runs`, each with its own time in µs."""
    records = [keys.task(ref.task_id).record for ref in runs]
    arguments: list[Argument] = []
    for ref, again_us in runs.items():
        arguments += [ref.name, again_us]
    return Operation(script("mark_published"), [keys.dispatch, *records], arguments, lambda _: None)


def postpone_runs(keys: Keys, runs: Mapping[DueRun, int]) -> Operation[None]:
    """Undo `acquire_due_runs` for runs that were not published. Each is due again after its time in µs."""
    records = [keys.task(run.ref.task_id).record for run in runs]
    arguments: list[Argument] = []
    for run, again_us in runs.items():
        arguments += [run.ref.name, again_us, "" if run.published_us is None else run.published_us]
    return Operation(script("postpone_runs"), [keys.dispatch, *records], arguments, lambda _: None)


def report_prefetched(keys: Keys, refs: Sequence[RunRef], *, silent_us: int, again_us: int) -> Operation[None]:
    """Record that a worker has prefetched these runs.

    Args:
        silent_us: µs after the last report until the runs are published again.
        again_us: µs after the first report until the runs are published again in any case.
    """
    arguments: list[Argument] = [silent_us, again_us]
    for ref in refs:
        arguments += [ref.task_id, ref.run]
    records = [keys.task(ref.task_id).record for ref in refs]
    return Operation(script("report_prefetched"), [keys.dispatch, *records], arguments, lambda _: None)


def acquire_due_runs(keys: Keys, *, limit: int, again_us: int) -> Operation[list[DueRun]]:
    """Acquire up to `limit` runs to publish.

    A run is due again after `again_us`, then after twice that, and so on. If the client delays the start of a run,
    these times count from that start.
    """

    def parse(reply: Sequence[bytes]) -> list[DueRun]:
        acquired_us, runs = int(reply[0]), zip(*[iter(reply[1:])] * 5, strict=True)
        return [
            DueRun(
                RunRef(task_id.decode(), int(run)),
                agent.decode(),
                options,
                int(published) if published else None,
                acquired_us,
            )
            for task_id, run, agent, options, published in runs
        ]

    return Operation(
        script("acquire_due_runs"), [keys.dispatch], [keys.prefix, limit, again_us, MAX_REDISPATCH_WAIT_US], parse
    )


def claimed_runs(keys: Keys, *, limit: int) -> Operation[list[ClaimedRun]]:
    """Return the runs of the `limit` newest leases. Runs that were published again are left out."""

    def parse(reply: Sequence[bytes]) -> list[ClaimedRun]:
        runs = zip(*[iter(reply)] * 3, strict=True)
        return [ClaimedRun(agent.decode(), options, int(published)) for agent, options, published in runs]

    return Operation(script("claimed_runs"), [keys.leases], [keys.prefix, limit, MAX_CLAIMED_OPTIONS], parse)
