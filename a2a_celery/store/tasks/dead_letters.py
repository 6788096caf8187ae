"""Commands on dead letters: FAILED tasks whose worker was lost.

FAILED is a terminal state, so a dead letter is resubmitted as a new task with the same context, caller and message. The
new task refers to the dead letter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from a2a.types import Message, Role, SendMessageRequest, Task, TaskState, TaskStatus

from ...lifecycle.outcomes import status_event
from ...lifecycle.own_metadata import REQUEUED_FROM, own_metadata
from ...lifecycle.states import SUBMITTED, WORKING
from ..blobs.references import EncodedEntry, decode_as, encode, encode_request, resolve_entry
from ..codec import require_blobs_retained, state_of, task_arguments, task_from_snapshot
from ..keys import Keys, Scope, quoted
from ..operation import Argument, Operation, script
from .commands import FIRST_PUBLISH_GRACE_US, TASK_ENDED_FIRST
from .results import Ended, Missing


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Dead letter.

    Attributes:
        request: request of the last run.
        options: options of the last run.
        task: snapshot of the task without artifacts.
        large_entries: entries of the journal whose contents are blobs, by key.
    """

    agent: str
    scope: Scope
    request: SendMessageRequest
    options: bytes
    task: Task
    large_entries: Mapping[str, EncodedEntry] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class AlreadyRequeued:
    """The dead letter was already requeued, as the task `task_id`."""

    task_id: str


@dataclass(frozen=True, slots=True)
class Alive:
    """The task has not ended. It is in `state`."""

    state: TaskState


def read_dead_letter(
    keys: Keys, task_id: str, *, from_start: bool = False
) -> Operation[DeadLetter | Missing | AlreadyRequeued | Alive | Ended]:
    """Read the dead letter of a task. The result is `Ended` if the task ended without a dead letter.

    With `from_start`, the dead letter can only be requeued without its journal, and the journal is not read.
    """

    def parse(reply: Sequence[Any]) -> DeadLetter | Missing | AlreadyRequeued | Alive | Ended:
        match reply[0]:
            case b"missing":
                return Missing()
            case b"requeued":
                return AlreadyRequeued(reply[1].decode())
            case b"alive":
                return Alive(state_of(reply[1]))
            case b"ended":
                return Ended(state_of(reply[1]))
            case _:
                _, agent, scope, request, options, snapshot, entries = reply
                task, _newest = task_from_snapshot(snapshot)
                sent = decode_as(SendMessageRequest, request)
                large = {
                    key.decode(): resolve_entry(entry, quoted(task_id))
                    for key, entry in zip(entries[::2], entries[1::2], strict=True)
                }
                return DeadLetter(agent.decode(), Scope.parse(scope.decode()), sent, options, task, large)

    arguments: list[Argument] = [keys.dead_letters, int(not from_start)]
    return Operation(script("read_dead_letter"), keys.task(task_id), arguments, parse)


def requeue_task(
    keys: Keys, dead_letter: DeadLetter, task_id: str, *, retention: int, options: bytes, from_start: bool = False
) -> Operation[Literal["requeued", "blocked", "gone"]]:
    """Create the task `task_id` from a dead letter, and remove the dead letter from the list.

    Args:
        keys: keys of the deployment.
        dead_letter: dead letter to requeue.
        task_id: id of the new task.
        retention: seconds for which the new task is stored after it has ended.
        options: options with which the caller publishes run 1, unless the run is blocked.
        from_start: True to delete the journal. With False, the new task continues with the journal.

    Returns:
        "requeued"; "blocked" if the task was created, but another run of the context must end first; or "gone" if the
        dead letter was already requeued or has expired.
    """
    request, task = resubmission(dead_letter, task_id)
    # The new task receives copies of the blobs, because each task has its own folder.
    entries = [] if from_start else [argument for entry in dead_letter.large_entries.items() for argument in entry]

    def parse(reply: Sequence[bytes]) -> Literal["requeued", "blocked", "gone"]:
        require_blobs_retained(reply)
        return cast(Literal["requeued", "blocked", "gone"], reply[0].decode())

    return Operation(
        script("requeue_task"),
        [*keys.task(dead_letter.task.id), *keys.task(task_id)],
        [
            keys.dead_letters,
            task_id,
            retention,
            FIRST_PUBLISH_GRACE_US,
            encode_request(request),
            options,
            encode(status_event(task_id, task.context_id, WORKING)),
            int(not from_start),
            len(entries),
            *entries,
            *task_arguments(task),
        ],
        parse,
    )


def resubmission(dead_letter: DeadLetter, task_id: str) -> tuple[SendMessageRequest, Task]:
    """Return the request and the new task for a dead letter.

    The history contains the messages before the message of the last turn, because that message may answer a question in
    them. The history does not contain the messages of the lost run, or messages that a client sent while it worked.
    """
    request = SendMessageRequest()
    request.CopyFrom(dead_letter.request)
    request.message.task_id = task_id
    request.message.reference_task_ids.append(dead_letter.task.id)
    task = Task(id=task_id, context_id=dead_letter.task.context_id, status=TaskStatus(state=SUBMITTED))
    for message in _before_the_turn(dead_letter):
        copy = task.history.add()
        copy.CopyFrom(message)
        copy.task_id = task_id
    task.history.append(request.message)
    task.metadata.update(own_metadata({REQUEUED_FROM: dead_letter.task.id}))
    return request, task


def _before_the_turn(dead_letter: DeadLetter) -> Sequence[Message]:
    """Return the messages before the message of the last turn, which later messages to the working agent may follow."""
    history, message_id = dead_letter.task.history, dead_letter.request.message.message_id
    turns = [
        number
        for number, message in enumerate(history)
        if message.role == Role.ROLE_USER and TASK_ENDED_FIRST not in message.metadata
    ]
    of_request = [number for number in turns if history[number].message_id == message_id]
    return history[: (of_request or turns)[-1]] if turns else []
