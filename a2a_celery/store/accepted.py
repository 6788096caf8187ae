"""What the scripts answer that take a message, or say what became of it, read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .answers import (
    Begun,
    Conflict,
    Continued,
    Ended,
    Full,
    Known,
    Limited,
    Missing,
    Stopped,
    TooManyConfigs,
    Waiting,
    WrongContext,
)
from .codec import direct_answer, snapshot_is_whole, state_of, task_from_snapshot


def continued(answer: Sequence[Any]) -> Continued:
    """What `continue_task` answered."""
    match answer[0]:
        case b"missing":
            return Missing()
        case b"context":
            return WrongContext(answer[1].decode())
        case b"ended":
            return Ended(state_of(answer[1]))
        case b"full":
            return Full()
        case b"configs":
            return TooManyConfigs()
        case b"known":
            return _known(answer)
        case b"conflict":
            return Conflict()
        case b"limited":
            return Limited.parse(answer)
        case b"begun":
            task, version = task_from_snapshot(answer[2])
            return Begun(int(answer[1]), task, version, answer[3] == b"1", snapshot_is_whole(answer[2]))
        case _:
            return Waiting(int(answer[1]), *task_from_snapshot(answer[2]), snapshot_is_whole(answer[2]))


def not_created(answer: Sequence[bytes]) -> Known | Conflict | Limited:
    """What `create_task` answered that made no task."""
    match answer[0]:
        case b"known":
            return _known(answer)
        case b"limited":
            return Limited.parse(answer)
        case _:
            return Conflict()


def stopped(answer: list[Any] | None) -> Stopped | None:
    """What `read_task` answered that was asked for a task that has stopped."""
    return Stopped(*task_from_snapshot(answer), direct_answer(answer)) if answer else None


def _known(answer: Sequence[bytes]) -> Known:
    _, task_id, version, ahead = answer
    return Known(task_id.decode(), int(version), int(ahead))
