"""Commands on retried runs, on runs delegated to a canvas, on runs that workers without this package execute, and on
stored execution activities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from a2a.types import TaskState

from ...lifecycle import Event
from ...lifecycle.execution import Activity, decode_activity
from ...lifecycle.journal import RunRecord
from ...lifecycle.references import RunRef, Scope
from ...lifecycle.states import short_name
from ..codec import EventArguments, EventsToWrite, TaskToWrite, event_arguments, state_of
from ..keys import Keys
from ..operation import Operation
from ..verbs import Parser, Reply, TaskId, Unsent, verb
from .commands import Illegal, Over, RunLost, Unchanged, Written, refused_write

T = TypeVar("T")

FIRST_POLL_AFTER_US = 300_000
"""µs until a canvas is polled for the first time."""


@dataclass(frozen=True, slots=True)
class Released:
    """Run that its worker has released. The run now waits for a worker or a canvas, unless its task was cancelled or a
    message interrupted the run.

    If a client requested cancellation of the task, the task has ended in CANCELED. If a message interrupted the run,
    the turn of the message has begun.
    """

    version: int
    state: TaskState

    def __str__(self) -> str:
        """Return the state of the task, as a sentence for logs."""
        return f"its task is {short_name(self.state)}"


@dataclass(frozen=True, slots=True)
class RetriedByCelery:
    """Claimed run that Celery retries, if its worker has not recorded the retry.

    Attributes:
        context_id: Id of the task's context.
        options: Stored options of the run.
    """

    context_id: str
    options: bytes


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """Run of a plain task that no worker with this package has claimed.

    Attributes:
        context_id: Id of the task's context.
        recorded: State in the result backend that was recorded last, or "".
    """

    context_id: str
    recorded: str


@verb
def release_run(
    keys: Keys,
    ref: RunRef,
    *,
    token: str,
    written_count: int,
    events: EventsToWrite,
    options: bytes,
    retries: int,
    delay_us: int,
    replacement: TaskToWrite | None = None,
    canvas: str | None = None,
) -> Reply[Released | RunLost | Illegal]:
    """Queue a claimed run for a retry, with the last `events` of the attempt, or delegate the run to a `canvas`.

    Args:
        keys: Keys of the deployment.
        ref: Claimed run.
        token: Token of the claim.
        written_count: Number of records that the run wrote earlier.
        events: Records that the run writes last.
        options: Options with which the run is published again.
        retries: Number of times that Celery has retried the run, including this retry.
        delay_us: µs until a watcher publishes the run, unless a worker has claimed the run by then, or until a watcher
            polls the canvas.
        replacement: Task that replaces the stored task before `events` are written, or None.
        canvas: See `delegate_to_canvas`, or None for a retry.
    """

    def parse(reply: Sequence[bytes]) -> Released | RunLost | Illegal:
        return Released(int(reply[1]), state_of(reply[2])) if reply[0] == b"released" else refused_write(reply)

    return Reply(parse)


def delegate_to_canvas(
    keys: Keys, ref: RunRef, *, token: str, written_count: int, events: Sequence[RunRecord], canvas: str
) -> Operation[Released | RunLost | Illegal]:
    """Delegate a claimed run to a canvas; see `release_run`. `canvas` is the JSON that `due_canvases` returns."""
    return release_run(
        keys,
        ref,
        token=token,
        written_count=written_count,
        events=events,
        options=b"",
        retries=0,
        delay_us=FIRST_POLL_AFTER_US,
        canvas=canvas,
    )


class AttemptArguments(NamedTuple):
    """Next attempt of a run, as the argument of a script.

    Attributes:
        options: Options of the run.
        delay_us: µs until a watcher publishes the run.
        event: Event of the retry.
    """

    options: bytes
    delay_us: int
    event: EventArguments


def read_retry(keys: Keys, ref: RunRef, *, runner: str, retries: int) -> Operation[RetriedByCelery | None]:
    """Read a claimed run whose retry number `retries` was not recorded.

    Returns:
        The run, or None if the retry was recorded, or if the id of the run's worker process does not begin with
        `runner`.
    """

    def parse(reply: Sequence[bytes]) -> RetriedByCelery | None:
        return RetriedByCelery(reply[1].decode(), reply[2]) if reply[0] == b"claimed" else None

    return _retry_run(keys, ref, runner=runner, retries=retries, attempt=None, parse=parse)


def retry_run(
    keys: Keys, ref: RunRef, *, runner: str, event: Event, options: bytes, retries: int, delay_us: int
) -> Operation[Released | Unchanged]:
    """Queue a claimed run for retry number `retries`, like `release_run`, on behalf of its worker."""

    def parse(reply: Sequence[bytes]) -> Released | Unchanged:
        return Released(int(reply[1]), state_of(reply[2])) if reply[0] == b"released" else Unchanged()

    attempt = AttemptArguments(options, delay_us, event_arguments(event))
    return _retry_run(keys, ref, runner=runner, retries=retries, attempt=attempt, parse=parse)


@verb
def _retry_run(
    keys: Keys, ref: RunRef, *, runner: str, retries: int, attempt: AttemptArguments | None, parse: Unsent[Parser[T]]
) -> Reply[T]:
    """Write nothing without `attempt`. `runner` is a prefix of the id of the runner."""
    return Reply(parse)


@verb
def due_canvases(keys: Keys, *, limit: int, delay_us: int) -> Reply[list[tuple[RunRef, bytes]]]:
    """Acquire up to `limit` canvases to poll. Each canvas is due again after `delay_us`.

    Returns:
        Pairs of the delegated run and the JSON that `delegate_to_canvas` stored.
    """

    def parse(reply: Sequence[bytes]) -> list[tuple[RunRef, bytes]]:
        runs = zip(*[iter(reply)] * 3, strict=True)
        return [(RunRef(task_id.decode(), int(run)), canvas) for task_id, run, canvas in runs]

    return Reply(parse)


@verb
def end_by_result(
    keys: Keys, ref: RunRef, events: EventsToWrite, *, lost: bool = False, is_resubmittable: bool = False
) -> Reply[Over | Illegal | Unchanged]:
    """End a run and its task with `events`. The run is delegated to a canvas, or no worker with this package has
    claimed it.

    Args:
        keys: Keys of the deployment.
        ref: Run that is delegated to a canvas, or that no worker with this package has claimed.
        events: Events that represent the result.
        lost: True if the result only reports that a worker was lost. If the worker has this package and was lost before
            it claimed the run, the run does not change, because it is published again.
        is_resubmittable: True if the task of an unclaimed run can be resubmitted after it fails.
    """

    def parse(reply: Sequence[bytes]) -> Over | Illegal | Unchanged:
        match reply[0]:
            case b"over":
                return Over(int(reply[1]), state_of(reply[2]))
            case b"illegal":
                return Illegal(int(reply[1]), state_of(reply[2]))
            case _:
                return Unchanged()

    return Reply(parse)


class ObservedState(NamedTuple):
    """State in the result backend, as the argument of a script.

    Attributes:
        previous_state: State that was recorded before, or "".
        state: State to record.
        event: Event of the state.
    """

    previous_state: str
    state: str
    event: EventArguments


def read_unclaimed(keys: Keys, ref: RunRef) -> Operation[Unclaimed | None]:
    """Read an unclaimed run of a plain task, which a worker without this package may execute.

    Returns:
        The run, or None for any other run.
    """

    def parse(reply: Sequence[bytes]) -> Unclaimed | None:
        result = _parse_record(reply)
        return result if isinstance(result, Unclaimed) else None

    return _record_result(keys, ref, observed=None, parse=parse)


def record_result(
    keys: Keys, ref: RunRef, *, previous_state: str, state: str, event: Event
) -> Operation[Written | Unclaimed | Unchanged]:
    """Record the `state` that the result backend reports for an unclaimed run, and write the `event` of that state.

    Args:
        keys: Keys of the deployment.
        ref: Unclaimed run of a plain task.
        previous_state: State that was recorded when the caller read the result backend. If a different state was
            recorded since then, nothing is written, because `state` may be outdated.
        state: State to record.
        event: Event of the state.
    """
    observed = ObservedState(previous_state, state, event_arguments(event))
    return _record_result(keys, ref, observed=observed, parse=_parse_record)


@verb
def _record_result(keys: Keys, ref: RunRef, *, observed: ObservedState | None, parse: Unsent[Parser[T]]) -> Reply[T]:
    """Write nothing without `observed`."""
    return Reply(parse)


def _parse_record(reply: Sequence[bytes]) -> Written | Unclaimed | Unchanged:
    match reply[0]:
        case b"written":
            return Written(int(reply[1]), state_of(reply[2]))
        case b"unclaimed":
            return Unclaimed(reply[1].decode(), reply[2].decode())
        case _:
            return Unchanged()


@dataclass(frozen=True, slots=True)
class Activities:
    """Newest activities of a task, oldest first.

    Attributes:
        run: Number of the newest run.
        running: True if the newest run is claimed, so that its activities may be incomplete.
        now_us: Time at which the activities were read, in µs by the store's clock.
        code_version: Version of the agent's code that began the turn, or "".
        scope: Agent, tenant and owner of the task.
        trace: W3C traceparent of the newest turn, or "".
        is_resubmittable: True if the task keeps the data for a further run.
        resumed_us: Time of the store, in µs, at which the newest suspension of the turn ended, or 0.
    """

    activities: list[Activity]
    agent: str
    context_id: str
    state: TaskState
    run: int
    running: bool
    now_us: int = field(compare=False)
    code_version: str = ""
    scope: Scope = field(default_factory=Scope)
    trace: str = ""
    is_resubmittable: bool = False
    resumed_us: int = 0


@verb
def read_activities(keys: Keys, task_id: TaskId) -> Reply[Activities | None]:
    """Read the newest activities of a task of any owner.

    Returns:
        The activities, or None if the task does not exist.
    """

    def parse(reply: Sequence[Any]) -> Activities | None:
        if not reply:
            return None
        now_us, agent, context_id, state, run, phase, code_version, activities = reply[:8]
        scope, trace, is_resubmittable, resumed_us = reply[8:]
        return Activities(
            [decode_activity(activity) for activity in activities],
            agent.decode(),
            context_id.decode(),
            state_of(state),
            int(run),
            phase == b"running",
            int(now_us),
            code_version.decode(),
            Scope.parse(scope.decode()),
            trace.decode(),
            is_resubmittable == b"1",
            int(resumed_us),
        )

    return Reply(parse)
