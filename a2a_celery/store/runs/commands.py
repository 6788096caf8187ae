"""Commands that claim, settle, end and revoke runs, and append events of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from a2a.types import Message, SendMessageRequest, Task, TaskState, TaskStatusUpdateEvent

from ...lifecycle import EventKind, is_terminal, kind_of
from ...lifecycle.execution import Activity, decode_activity
from ...lifecycle.journal import JournalEntry, RunRecord
from ...lifecycle.references import RunRef, Scope
from ...lifecycle.states import short_name
from ..blobs.references import has_references
from ..codec import (
    EventsToWrite,
    StatusToWrite,
    decode_request,
    journal_from,
    snapshot_is_resolved,
    state_of,
    task_from_snapshot,
)
from ..keys import Keys
from ..tasks.replies import CancelRequested
from ..verbs import Digits, Reply, Section, Sections, Unsent, parsed_by, verb

MAX_LOST_BEFORE_CLAIM = 3
"""Number of lost worker processes at which the task of a run ends, if no lost process has claimed the run."""


@dataclass(frozen=True, slots=True)
class ClaimedTurn:
    """Turn of a claimed run.

    Attributes:
        number: Number of the turn in its task.
        attempt: Number of the run in the turn.
        request: Request with the message that began the turn.
        caller: Client that sent the message; see ``Caller.from_json``.
        ask_count: Number of newest client messages that answer the agent's `ask`, including answers that the agent
            refused.
        interrupted_state: State before the message of the turn, or None in the first turn.
        messages: Indexes, in the task's history, of the messages of this turn and of the earlier turns in which the
            agent asked the questions that this turn answers, oldest first, without refused answers.
    """

    number: int
    attempt: int
    request: SendMessageRequest
    caller: bytes
    ask_count: int
    interrupted_state: TaskState | None
    messages: tuple[int, ...]

    @property
    def first_number(self) -> int:
        """Number of the turn that began the journal of this turn."""
        return self.number - self.ask_count

    @property
    def answers(self) -> tuple[int, ...]:
        """Indexes, in the task's history, of the answers to the agent's `ask`, without refused answers."""
        return self.messages[1:] if self.ask_count else ()

    @property
    def refusal_count(self) -> int:
        """Number of answers that the agent has refused."""
        return self.ask_count - len(self.answers)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Snapshot of a claimed task at `version`, including the changes that the claim made.

    Attributes:
        is_resolved: False if the task, its request or its journal has unresolved blob references. An agent must not
            receive such a snapshot.
    """

    task: Task
    version: int
    is_resolved: bool


@dataclass(frozen=True, slots=True)
class ClaimedJournal:
    """Journal of a claimed run.

    Attributes:
        entries: Entries by key, or None if the journal is too large for the claim and must be read with `read_journal`.
        origin: Id of the first resubmitted task that had the journal, or the id of the task itself.
        other_code_version: Version of the agent's code that recorded the journal, or "" if it is this run's version.
    """

    entries: Mapping[str, JournalEntry] | None = field(repr=False)
    origin: str
    other_code_version: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """Run that a worker has claimed, with the data that its agent needs.

    Attributes:
        token: Token of the claim, which each write of the run carries.
        options: Stored options of the run; see ``dispatch.RunOptions``.
        activities: Newest activities of the task or, in the task's first run before any retry, of a section, oldest
            first.
        sections: Sections of the claim, each with the parsed value that it added to the reply; see `value_of`.
    """

    ref: RunRef
    token: str
    scope: Scope
    options: bytes
    turn: ClaimedTurn
    snapshot: Snapshot
    journal: ClaimedJournal
    activities: tuple[Activity, ...]
    sections: tuple[tuple[Section[Any], Any], ...]

    @property
    def task(self) -> Task:
        """Task of the snapshot."""
        return self.snapshot.task

    def value_of(self, kind: type[Section[Any]]) -> Any:
        """Return the value of the section of the class `kind`, or None if the claim had no such section."""
        return next((value for section, value in self.sections if isinstance(section, kind)), None)


@dataclass(frozen=True, slots=True)
class Dropped:
    """Refusal of a claim. `reason` explains the refusal, for logs."""

    reason: str


@dataclass(frozen=True, slots=True)
class RetryUnrecorded:
    """Refusal of a claim for an unrecorded retry. The caller repeats the claim with the event of the retry."""

    context_id: str


@dataclass(frozen=True, slots=True)
class OtherCodeVersion:
    """Refusal to claim a run with the stored `options`, because a different `code_version` began the turn."""

    code_version: str
    options: bytes


NotClaimed = Dropped | RetryUnrecorded | OtherCodeVersion


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


class EndRefused:
    """Refusal of the end of a run by a section. Nothing was written."""

    __slots__ = ()


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
    resolve_blobs: Unsent[bool] = True,
    worker: str = "",
    code_version: str = "",
    claims_other_code_version: bool = False,
    sections: Sections = (),
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
        resolve_blobs: False to leave blob references unresolved. The caller may repeat the call with True.
        worker: Celery node name of the worker, or "" if Celery events are disabled.
        code_version: Version of the agent's code in the worker, or "" for none.
        claims_other_code_version: True to claim a run whose turn began with a different version.
        sections: Sections of features.
    """

    def parse(reply: Sequence[Any]) -> Claim | NotClaimed:
        if reply[0] == b"other_code_version":
            return OtherCodeVersion(reply[1].decode(), reply[2])
        if reply[0] != b"claimed":
            return (Dropped if reply[0] == b"dropped" else RetryUnrecorded)(reply[1].decode())
        return _claim(reply, ref, token, sections, resolve_blobs=resolve_blobs)

    return Reply(parse, resolve_blobs)


def _claim(
    reply: Sequence[Any], ref: RunRef, token: str, sections: Sequence[Section[Any]], *, resolve_blobs: bool
) -> Claim:
    _, turn, attempt, request, caller, ask_count, interrupted_state, scope, options, snapshot, activities = reply[:11]
    stored_journal, origin, turn_messages, other_code_version, *values = reply[11:]
    entries = stored_journal or []
    task, newest = task_from_snapshot(snapshot)
    is_resolved = resolve_blobs or (snapshot_is_resolved(snapshot) and not any(map(has_references, entries[1::2])))
    whole_request, messages = decode_request(request, task, turn_messages)
    return Claim(
        ref,
        token,
        Scope.parse(scope.decode()),
        options,
        ClaimedTurn(
            int(turn),
            int(attempt),
            whole_request,
            caller,
            int(ask_count),
            state_of(interrupted_state) if interrupted_state else None,
            messages,
        ),
        Snapshot(task, newest.version, is_resolved),
        ClaimedJournal(
            None if stored_journal == b"" else journal_from(entries, ref.task_id),
            origin.decode() or ref.task_id,
            other_code_version.decode(),
        ),
        tuple(decode_activity(activity) for activity in activities),
        tuple((section, section.parse(ref.task_id, value)) for section, value in zip(sections, values, strict=True)),
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
    return isinstance(record, Message) and kind_of(record) is EventKind.AGENT_MESSAGE


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
    sections: Sections = (),
) -> Reply[Settled | RunLost | Illegal | LeftOpen | EndRefused]:
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
        sections: Sections of features.
    """
    return Reply(partial(_parse_settlement, ref, sections))


def _parse_settlement(
    ref: RunRef, sections: Sequence[Section[Any]], reply: Sequence[bytes]
) -> Settled | RunLost | Illegal | LeftOpen | EndRefused:
    match reply[0]:
        case b"settled":
            run, task_id = int(reply[3] or 0), reply[5].decode()
            is_own = task_id in ("", ref.task_id)
            other = None if is_own else RunRef(task_id, run)
            return Settled(int(reply[1]), state_of(reply[2]), (run or None) if is_own else None, reply[4], other)
        case b"open":
            return LeftOpen(state_of(reply[1]))
        case _:
            return parsed_by(sections, ref.task_id, reply) or refused_write(reply)


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
