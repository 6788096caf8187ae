"""The verbs about runs that go on without a worker: those that Celery retries, and those that a canvas ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from a2a.types import TaskState

from ..lifecycle import Event
from ..lifecycle.steps import Step
from .codec import event_arguments, state_of
from .keys import Keys
from .operation import Argument, Operation, script
from .runs import Illegal, Kept, Over, RunLost, RunRef

FIRST_LOOK_US = 300_000
"""When a canvas is looked at for the first time."""


@dataclass(frozen=True, slots=True)
class Released:
    """The run is nobody's: it waits for a worker or a canvas, or was cancelled while it was ours."""

    version: int
    state: TaskState


@dataclass(frozen=True, slots=True)
class DueCanvas:
    """A run that `canvas` (JSON, see `hand_on`) shall end."""

    ref: RunRef
    canvas: bytes


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
) -> Operation[Released | RunLost | Illegal]:
    """Gives a claimed run back, with its last `events`: Celery runs it again, as its `retries`-th retry.

    It is published with `options`, by a watcher in `again_us`, unless it was claimed by then.
    """
    return _release(keys, ref, token, before, events, ["queued", options, retries, "", again_us])


def hand_on(
    keys: Keys,
    ref: RunRef,
    *,
    token: str,
    before: int,
    events: Sequence[Event | Step],
    canvas: str,
) -> Operation[Released | RunLost | Illegal]:
    """Lets a `canvas` (JSON, what `due_canvases` gives) end a claimed run, with the last `events` of it."""
    return _release(keys, ref, token, before, events, ["handed", canvas, 0, keys.canvases, FIRST_LOOK_US])


def _release(
    keys: Keys, ref: RunRef, token: str, before: int, events: Sequence[Event | Step], how: list[Argument]
) -> Operation[Released | RunLost | Illegal]:
    def parse(answer: Sequence[bytes]) -> Released | RunLost | Illegal:
        match answer[0]:
            case b"released":
                return Released(int(answer[1]), state_of(answer[2]))
            case b"illegal":
                return Illegal(int(answer[1]), state_of(answer[2]))
            case _:
                return RunLost.of(answer)

    arguments = [ref.run, token, before, *how, *event_arguments(events)]
    return Operation(script("release_run"), keys.task(ref.task_id), arguments, parse)


def due_canvases(keys: Keys, *, limit: int, again_us: int) -> Operation[list[DueCanvas]]:
    """Up to `limit` canvases to look at, each of them again in `again_us`."""

    def parse(answer: Sequence[bytes]) -> list[DueCanvas]:
        rows = zip(*[iter(answer)] * 3, strict=True)
        return [DueCanvas(RunRef(task_id.decode(), int(run)), canvas) for task_id, run, canvas in rows]

    return Operation(script("due_canvases"), [keys.canvases], [keys.prefix, limit, again_us], parse)


def end_by_result(keys: Keys, ref: RunRef, events: Sequence[Event], *, lost: bool = False) -> Operation[Over | Kept]:
    """Ends a run that no worker of ours has, and its task, with `events`, the last of them terminal.

    `lost`: because a worker was lost. A run that a lost worker of ours had not begun is kept: it is published again.
    """

    def parse(answer: Sequence[bytes]) -> Over | Kept:
        return Over(int(answer[1]), state_of(answer[2])) if answer[0] == b"over" else Kept()

    arguments: list[Argument] = [ref.run, int(lost), *event_arguments(events)]
    return Operation(script("end_by_result"), keys.task(ref.task_id), arguments, parse)
