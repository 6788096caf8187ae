"""The verbs about runs that go on without a worker of ours: those that Celery retries, those that a canvas ends, and
those that a worker without this package has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from a2a.types import Task, TaskState

from ...lifecycle import Event
from ...lifecycle.steps import Step
from ..codec import event_arguments, state_of, task_arguments
from ..keys import Keys
from ..operation import Argument, Operation, script
from .commands import Illegal, Over, RunLost, RunRef, Unchanged, Written

FIRST_POLL_AFTER_US = 300_000
"""When a canvas is looked at for the first time."""


@dataclass(frozen=True, slots=True)
class Released:
    """The run is nobody's: it waits for a worker or a canvas, or was cancelled while it was ours."""

    version: int
    state: TaskState


@dataclass(frozen=True, slots=True)
class DueCanvas:
    """A run that `canvas` (JSON, see `delegate_to_canvas`) shall end."""

    ref: RunRef
    canvas: bytes


@dataclass(frozen=True, slots=True)
class RetriedByCelery:
    """A claimed run that Celery retries, and whose worker has not written so. `options` are those of the run."""

    context_id: str
    options: bytes


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """A run of a plain task that no worker of ours has claimed. `noted` is the state noted last, "" for none."""

    context_id: str
    noted: str


def release_run(
    keys: Keys,
    ref: RunRef,
    *,
    token: str,
    before: int,
    events: Sequence[Event | Step],
    options: bytes,
    retries: int,
    again_us: int,
    replacement: Task | None = None,
) -> Operation[Released | RunLost | Illegal]:
    """Give a claimed run back to its queue, with its last `events`, for its `retries`-th retry.

    A watcher publishes the run with `options` in `again_us`, unless it was claimed by then. `replacement` is what the
    task becomes before `events`; None: it stays unchanged.
    """
    return _release(keys, ref, token, before, events, ["queued", options, retries, "", again_us], replacement)


def read_retry(keys: Keys, ref: RunRef, *, runner: str, retries: int) -> Operation[RetriedByCelery | None]:
    """Return the run if a runner whose id begins with `runner` has it, and has not written its `retries`-th retry."""

    def parse(reply: Sequence[bytes]) -> RetriedByCelery | None:
        return RetriedByCelery(reply[1].decode(), reply[2]) if reply[0] == b"claimed" else None

    return Operation(script("retry_run"), keys.task(ref.task_id), [ref.run, runner, retries], parse)


def retry_run(
    keys: Keys, ref: RunRef, *, runner: str, event: Event, options: bytes, retries: int, again_us: int
) -> Operation[Released | Unchanged]:
    """Give a claimed run back to its queue for its `retries`-th retry, as `release_run`, from outside of the run."""

    def parse(reply: Sequence[bytes]) -> Released | Unchanged:
        return Released(int(reply[1]), state_of(reply[2])) if reply[0] == b"released" else Unchanged()

    arguments: list[Argument] = [ref.run, runner, retries, options, again_us, *event_arguments([event])]
    return Operation(script("retry_run"), keys.task(ref.task_id), arguments, parse)


def delegate_to_canvas(
    keys: Keys,
    ref: RunRef,
    *,
    token: str,
    before: int,
    events: Sequence[Event | Step],
    canvas: str,
) -> Operation[Released | RunLost | Illegal]:
    """Lets a `canvas` (JSON, what `due_canvases` gives) end a claimed run, with the last `events` of it."""
    return _release(keys, ref, token, before, events, ["delegated", canvas, 0, keys.canvases, FIRST_POLL_AFTER_US])


def _release(
    keys: Keys,
    ref: RunRef,
    token: str,
    before: int,
    events: Sequence[Event | Step],
    how: list[Argument],
    replacement: Task | None = None,
) -> Operation[Released | RunLost | Illegal]:
    def parse(reply: Sequence[bytes]) -> Released | RunLost | Illegal:
        match reply[0]:
            case b"released":
                return Released(int(reply[1]), state_of(reply[2]))
            case b"illegal":
                return Illegal(int(reply[1]), state_of(reply[2]))
            case _:
                return RunLost.of(reply)

    written = event_arguments(events)
    replaced = [] if replacement is None else task_arguments(replacement)
    arguments = [ref.run, token, before, *how, len(written), *written, *replaced]
    return Operation(script("release_run"), keys.task(ref.task_id), arguments, parse)


def due_canvases(keys: Keys, *, limit: int, again_us: int) -> Operation[list[DueCanvas]]:
    """Up to `limit` canvases to look at, each of them again in `again_us`."""

    def parse(reply: Sequence[bytes]) -> list[DueCanvas]:
        rows = zip(*[iter(reply)] * 3, strict=True)
        return [DueCanvas(RunRef(task_id.decode(), int(run)), canvas) for task_id, run, canvas in rows]

    return Operation(script("due_canvases"), [keys.canvases], [keys.prefix, limit, again_us], parse)


def end_by_result(
    keys: Keys, ref: RunRef, events: Sequence[Event], *, lost: bool = False
) -> Operation[Over | Unchanged]:
    """Ends a run that no worker of ours has, and its task, with `events`, the last of them terminal.

    `lost`: because a worker was lost. A run that a lost worker of ours had not begun is kept: it is published again.
    """

    def parse(reply: Sequence[bytes]) -> Over | Unchanged:
        return Over(int(reply[1]), state_of(reply[2])) if reply[0] == b"over" else Unchanged()

    arguments: list[Argument] = [ref.run, int(lost), *event_arguments(events)]
    return Operation(script("end_by_result"), keys.task(ref.task_id), arguments, parse)


def read_unclaimed(keys: Keys, ref: RunRef) -> Operation[Unclaimed | None]:
    """Return the run if a worker without this package may have it, else None."""

    def parse(reply: Sequence[bytes]) -> Unclaimed | None:
        noted = _noted(reply)
        return noted if isinstance(noted, Unclaimed) else None

    return Operation(script("record_result"), keys.task(ref.task_id), [ref.run], parse)


def record_result(
    keys: Keys, ref: RunRef, *, before: str, noted: str, event: Event
) -> Operation[Written | Unclaimed | Unchanged]:
    """Write the `event` of a state that the result backend has of an unclaimed run, and note that state as `noted`.

    `before` is the state that was noted when the result backend was read: if another has been noted since, nothing is
    written, because the state that was read may be older.
    """
    arguments: list[Argument] = [ref.run, before, noted, *event_arguments([event])]
    return Operation(script("record_result"), keys.task(ref.task_id), arguments, _noted)


def _noted(reply: Sequence[bytes]) -> Written | Unclaimed | Unchanged:
    match reply[0]:
        case b"written":
            return Written(int(reply[1]), state_of(reply[2]))
        case b"unclaimed":
            return Unclaimed(reply[1].decode(), reply[2].decode())
        case _:
            return Unchanged()
