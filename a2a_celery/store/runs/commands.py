"""Commands that claim, checkpoint, settle, end and revoke runs, and append events of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, NamedTuple

from a2a.types import Message, SendMessageRequest, Task, TaskState, TaskStatusUpdateEvent

from ...lifecycle import EventKind, is_terminal, kind_of
from ...lifecycle.execution import Step, decode_step
from ...lifecycle.journal import JournalEntry, RunRecord
from ...lifecycle.references import RunRef, Scope
from ...lifecycle.states import short_name
from ..blobs.references import decode_as, has_references
from ..codec import (
    EventsToWrite,
    StatusToWrite,
    journal_from,
    snapshot_is_resolved,
    state_of,
    task_from_snapshot,
)
from ..keys import Keys
from ..tasks.replies import CancelRequested
from ..verbs import Digits, Reply, Sections, Unsent, verb


@dataclass(frozen=True, slots=True)
class SavedSession:
    """Session that a run reads.

    Attributes:
        version: Number of times that the session was saved.
        state: Saved state, or b"".
        resumed: True if an earlier run of the same turn saved the session, in this task or in one that it repeats.
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
    """Session state to save.

    Attributes:
        version: Version of the session from which the state was derived.
        state: New state, or b"" to only extend the lifetime of the saved state.
        fingerprint: Fingerprint of the secret that seals the state, or "" if the state is not sealed.
    """

    scope: Scope
    context_id: str
    version: int
    state: bytes = field(repr=False)
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class SavedSince:
    """Conflict with another run that has saved the session as `version`. Nothing was written."""

    version: int


class SessionArguments(NamedTuple):
    """Session to save, as the argument of a script.

    Attributes:
        key: Key of the session.
        version: Version from which the state was derived.
        state: State, or b"" if it is unchanged.
        fingerprint: Fingerprint of the secret, or "" for a state in plain text.
        sealed_with: Key of the list of values that the secret seals, or "".
        secrets: Key of the secrets.
    """

    key: str
    version: int
    state: bytes
    fingerprint: str
    sealed_with: str
    secrets: str


def _session_arguments(keys: Keys, session: SessionState) -> SessionArguments:
    """Return a session in the form that ``save_session`` in ``scripts/lib`` receives."""
    return SessionArguments(
        keys.session(session.scope, session.context_id),
        session.version,
        session.state,
        session.fingerprint,
        keys.sealed_with(session.fingerprint) if session.fingerprint else "",
        keys.secrets,
    )


SessionToSave = Annotated[SessionState, _session_arguments]
"""Session as an argument of a script."""

MAX_LOST_BEFORE_CLAIM = 3
"""Number of lost worker processes at which the task of a run ends, if no lost process has claimed the run."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Run that a worker has claimed, with the data that its agent needs.

    Attributes:
        token: Token of the claim, which each write of the run carries.
        ask_count: Number of newest client messages that answer the agent's `ask`, including answers that the agent
            refused.
        interrupted_state: State before the message of the turn, or None in the first turn.
        options: Stored options of the run; see ``dispatch.RunOptions``.
        task: Snapshot of the task at `version`, including the changes that the claim made.
        session: Session of the context, or None if the caller did not request it.
        is_resolved: False if the claim has unresolved blob references. An agent must not receive such a claim.
        execution: Newest steps of the task or, in the task's first run before any retry, of the session, oldest first.
        journal: Entries by key, or None if the journal is too large for the claim and must be read with `read_journal`.
        journal_origin: Id of the first resubmitted task that had the journal, or the id of the task itself.
        turn_messages: Indexes, in the task's history, of the messages of this turn and of the earlier turns in which
            the agent asked the questions that this turn answers, oldest first, without refused answers. Empty in the
            first turn of a task.
        read_messages: Indexes, in the task's history, of further messages that the agent read in these earlier turns.
        other_version: Version of the agent's code that recorded the journal if it is not this run's version, or "".
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
    turn_messages: tuple[int, ...] = ()
    read_messages: tuple[int, ...] = ()
    other_version: str = ""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Refusal of a claim. `reason` explains the refusal, for logs."""

    reason: str


@dataclass(frozen=True, slots=True)
class RetryUnrecorded:
    """Refusal of a claim for an unrecorded retry. The caller repeats the claim with the event of the retry."""

    context_id: str


@dataclass(frozen=True, slots=True)
class OtherVersion:
    """Refusal to claim a run with the stored `options`, because a different `version` of the code began the turn."""

    version: str
    options: bytes


NotClaimed = Dropped | RetryUnrecorded | OtherVersion


@dataclass(frozen=True, slots=True)
class Written:
    """Result of a write of events. The log is at `version`, and the task is in `state`."""

    version: int
    state: TaskState


@dataclass(frozen=True, slots=True)
class RunLost:
    """Refusal of a write, because the claim is no longer valid or the task has ended. Nothing was written.

    Attributes:
        missing: Number of the run's confirmed records that a restored store has lost.
    """

    missing: int = 0

    @classmethod
    def of(cls, reply: Sequence[bytes]) -> RunLost:
        """Parse the reply ``{'lost', missing}`` of a script."""
        return cls(int(reply[1]) if len(reply) > 1 else 0)


@dataclass(frozen=True, slots=True)
class Illegal:
    """Refusal of a write whose event `number`, from 1, is illegal for a task in `state`. Nothing was written."""

    number: int
    state: TaskState

    def __str__(self) -> str:
        """Return the reason, as a sentence for logs."""
        return f"event {self.number} is illegal for a task in {short_name(self.state)}"


@dataclass(frozen=True, slots=True)
class Settled:
    """Settled run. The caller publishes `next_run` of the task, or the run `other` of another task of the same context
    queue, with `next_options`. Both runs are None if no run follows. The run that follows belongs to the same agent.
    """

    version: int
    state: TaskState
    next_run: int | None
    next_options: bytes = b""
    other: RunRef | None = None


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """Refusal of events that would leave the task in a `state` that needs a run. Nothing was written."""

    state: TaskState


@dataclass(frozen=True, slots=True)
class Over:
    """Run that has ended, by this call or an earlier call. The task is at `version` and in `state`."""

    version: int
    state: TaskState

    def __str__(self) -> str:
        """Return the state of the task, as a sentence for logs."""
        return f"its task is {short_name(self.state)}"


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Run to which the call does not apply, for example a run of another worker. No event was written."""

    def __str__(self) -> str:
        """Return a sentence for logs."""
        return "nothing changed"


@verb
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
    retried: StatusToWrite | None = None,
    reads_session: bool = False,
    resolve_blobs: Unsent[bool] = True,
    worker: str = "",
    version: str = "",
    claims_other_version: bool = False,
) -> Reply[Claim | NotClaimed]:
    """Claim a queued run. Only one caller receives the claim of a run.

    Args:
        keys: Keys of the deployment.
        ref: Run to claim.
        token: Token of the claim. A repeated call with the same token returns the same claim.
        runner: Id of the worker process.
        lease_us: Duration of the lease in µs.
        working: True to write the status WORKING, unless the task is WORKING already.
        max_attempts: Maximum number of runs of the turn. With 1, the agent runs at most once.
        retries: Number of times that Celery has retried the run.
        retried: Event of the retry, which ends the previous attempt, or None.
        reads_session: True to read the session of the context.
        resolve_blobs: False to leave blob references unresolved. The caller may repeat the call with True.
        worker: Celery node name of the worker, or "" if Celery events are disabled.
        version: Version of the agent's code in the worker, or "" for none.
        claims_other_version: True to claim a run whose turn began with a different version.
    """

    def parse(reply: Sequence[Any]) -> Claim | NotClaimed:
        if reply[0] == b"other_version":
            return OtherVersion(reply[1].decode(), reply[2])
        if reply[0] != b"claimed":
            return (Dropped if reply[0] == b"dropped" else RetryUnrecorded)(reply[1].decode())
        return _claim(reply, ref, token, session=reads_session, resolve_blobs=resolve_blobs)

    return Reply(parse, resolve_blobs)


def _claim(reply: Sequence[Any], ref: RunRef, token: str, *, session: bool, resolve_blobs: bool) -> Claim:
    _, turn, attempt, request, caller, ask_count, interrupted_state, scope, options, snapshot, saved_session, steps = (
        reply[:12]
    )
    stored_journal, origin, turn_messages, read_messages, other_version = reply[12:]
    entries = stored_journal or []
    task, newest = task_from_snapshot(snapshot)
    return Claim(
        ref,
        token,
        int(turn),
        int(attempt),
        decode_as(SendMessageRequest, request),
        caller,
        int(ask_count),
        state_of(interrupted_state) if interrupted_state else None,
        Scope.parse(scope.decode()),
        options,
        task,
        newest.version,
        SavedSession.of(saved_session) if session else None,
        resolve_blobs or (snapshot_is_resolved(snapshot) and not any(map(has_references, (request, *entries[1::2])))),
        tuple(decode_step(step) for step in steps),
        None if stored_journal == b"" else journal_from(entries, ref.task_id),
        origin.decode() or ref.task_id,
        tuple(map(int, turn_messages.split())),
        tuple(map(int, read_messages.split())),
        other_version.decode(),
    )


@verb
def append(
    keys: Keys, ref: RunRef, *, token: str, written_count: int, events: EventsToWrite
) -> Reply[Written | RunLost | Illegal]:
    """Append all `events` of a claimed run, or none. The run has written `written_count` records earlier."""

    def parse(reply: Sequence[bytes]) -> Written | RunLost | Illegal:
        return Written(int(reply[1]), state_of(reply[2])) if reply[0] == b"written" else refused_write(reply)

    return Reply(parse, ends_task=any(map(_ends_task, events)))


def refused_write(reply: Sequence[bytes]) -> RunLost | Illegal:
    """Parse the reply with which a script refuses the writes of a run."""
    return Illegal(int(reply[1]), state_of(reply[2])) if reply[0] == b"illegal" else RunLost.of(reply)


def _ends_task(record: RunRecord) -> bool:
    """Return True if `record` ends the task. A message of the agent completes the task."""
    if isinstance(record, TaskStatusUpdateEvent):
        return is_terminal(record.status.state)
    return isinstance(record, Message) and kind_of(record) is EventKind.ANSWER


@verb
def settle_run(
    keys: Keys,
    ref: RunRef,
    *,
    token: str,
    written_count: int,
    events: EventsToWrite,
    ask_count: Digits = 0,
    refuses_answer: bool = False,
    read_count: int = 0,
    pause_us: int = 0,
    pause_timeout: StatusToWrite | None = None,
    is_resubmittable: bool = False,
    session: SessionToSave | None = None,
    sections: Sections = (),
) -> Reply[Settled | RunLost | Illegal | LeftOpen | SavedSince]:
    """End a claimed run with its last `events`. If a message waits, the next run begins.

    Args:
        keys: Keys of the deployment.
        ref: Claimed run.
        token: Token of the claim.
        written_count: Number of records that the run wrote earlier.
        events: Records that the run writes last. Together they must leave the task terminal or interrupted.
        ask_count: Number of answers that the agent's `ask` has received, including refused answers and the next
            message.
        refuses_answer: True if the agent has refused the answer that began the turn.
        read_count: Number of messages that the agent has read in the run. The first unread message begins a turn.
        pause_us: µs after which a watcher ends the pause, or 0 for no timeout.
        pause_timeout: Event with which the watcher ends the pause, or None if `pause_us` is 0.
        is_resubmittable: True if the task can be resubmitted after it fails.
        session: Session to save if the run completes or interrupts the task, even if another turn follows, or None.
        sections: Sections of features.
    """
    return Reply(partial(_parse_settlement, ref))


def _parse_settlement(ref: RunRef, reply: Sequence[bytes]) -> Settled | RunLost | Illegal | LeftOpen | SavedSince:
    match reply[0]:
        case b"settled":
            run, task_id = int(reply[3] or 0), reply[5].decode()
            is_own = task_id in ("", ref.task_id)
            other = None if is_own else RunRef(task_id, run)
            return Settled(int(reply[1]), state_of(reply[2]), (run or None) if is_own else None, reply[4], other)
        case b"conflict":
            return SavedSince(int(reply[1]))
        case b"open":
            return LeftOpen(state_of(reply[1]))
        case _:
            return refused_write(reply)


@verb
def end_run(
    keys: Keys,
    ref: RunRef,
    *,
    runner: str | None,
    event: StatusToWrite,
    lost: bool = False,
    retries: int | None = None,
) -> Reply[Over | Unchanged]:
    """End a run and its task with the terminal `event`, on behalf of the worker.

    A run that has ended does not change. If a client requested cancellation of the task, the task ends in CANCELED.

    Args:
        keys: Keys of the deployment.
        ref: Run to end.
        runner: Prefix of the id of the runner that has claimed the run. None to end only an unclaimed run.
        event: Status event of a terminal state.
        lost: True if the worker was lost. A claimed run is followed by the next attempt, or leaves a resubmittable task
            if the turn may not have another attempt. An unclaimed run is published again until `MAX_LOST_BEFORE_CLAIM`
            processes have been lost before claiming the run.
        retries: Retry count of the Celery message that caused the call, or None if no message caused it. A message
            that is older than the last retry does not end the run.
    """

    def parse(reply: Sequence[bytes]) -> Over | Unchanged:
        return Over(int(reply[1]), state_of(reply[2])) if reply[0] == b"over" else Unchanged()

    return Reply(parse)


@verb
def checkpoint(
    keys: Keys, ref: RunRef, *, token: str, confirmed: int, session: SessionToSave
) -> Reply[SessionState | RunLost | SavedSince]:
    """Save the session of a claimed run, unless the store has lost any of the `confirmed` records of the run.

    Returns:
        `session` if it was saved, or the reason for the refusal.
    """

    def parse(reply: Sequence[bytes]) -> SessionState | RunLost | SavedSince:
        match reply[0]:
            case b"saved":
                return session
            case b"conflict":
                return SavedSince(int(reply[1]))
            case _:
                return RunLost.of(reply)

    return Reply(parse)


@verb
def revoke_run(
    keys: Keys, ref: RunRef, *, event: StatusToWrite, terminate: bool
) -> Reply[Over | CancelRequested | Unchanged]:
    """End a run that an operator has revoked, and its task, with the CANCELED `event`.

    A queued or suspended run ends immediately. A delegated run does not change. A claimed run continues unless
    `terminate` is True. In that case, the worker cancels the run, and the task ends with the message of `event`.
    """

    def parse(reply: Sequence[bytes]) -> Over | CancelRequested | Unchanged:
        match reply[0]:
            case b"over":
                return Over(int(reply[1]), state_of(reply[2]))
            case b"requested":
                return CancelRequested(int(reply[1]))
            case _:
                return Unchanged()

    return Reply(parse)
