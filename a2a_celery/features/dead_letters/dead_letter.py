"""Dead letters in the store: reading a dead letter, and creating a new task from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

from a2a.types import SendMessageRequest, Task, TaskStatus

from ...lifecycle.outcomes import status_event
from ...lifecycle.own_metadata import NAMESPACE, own_metadata
from ...lifecycle.references import Scope, quote_key_part
from ...lifecycle.refusals import Reason, Refusal
from ...lifecycle.states import SUBMITTED, WORKING, short_name
from ...store import Keys
from ...store.blobs.references import EncodedEntry, encode, resolve_entry
from ...store.codec import TaskToWrite, decode_request, encode_request, state_of, task_from_snapshot
from ...store.keys import TaskKeys
from ...store.operation import Operation
from ...store.verbs import Reply, Sections, TaskId, verb
from ..families.section import ResubmissionSection

REQUEUED_FROM = "requeuedFrom"
"""Id of the dead letter, in the metadata of the task as which it was requeued."""

NO_DEAD_LETTER = (
    "only a task that FAILED because its worker was lost or its steps changed can be requeued; send the message again "
    "instead"
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Dead letter with the data from which the task is requeued.

    Attributes:
        request: Request of the last run.
        options: Options of the last run.
        task: Snapshot of the task without artifacts, with the history before the message of the last turn.
        large_entries: Entries of the journal whose contents are blobs, by key.
    """

    agent: str
    scope: Scope
    request: SendMessageRequest
    options: bytes
    task: Task
    large_entries: Mapping[str, EncodedEntry] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class AlreadyRequeued:
    """Dead letter that was already requeued as the task `task_id`."""

    task_id: str


@verb
def read_dead_letter(
    keys: Keys, task_id: TaskId, *, from_start: bool = False
) -> Reply[DeadLetter | AlreadyRequeued | Refusal]:
    """Read the dead letter of a task.

    Args:
        keys: Keys of the deployment.
        task_id: Id of the task.
        from_start: True not to read the journal. The dead letter can then only be requeued without its journal.

    Returns:
        The dead letter, or a refusal if there is no such task, or the task has not ended or left no dead letter.
    """

    def parse(reply: Sequence[Any]) -> DeadLetter | AlreadyRequeued | Refusal:
        match reply[0]:
            case b"requeued":
                return AlreadyRequeued(reply[1].decode())
            case b"missing":
                return Refusal(Reason.MISSING, task_id)
            case b"alive":
                text = f"has not ended ({short_name(state_of(reply[1]))}): only a dead letter can be requeued"
                return Refusal(Reason.FEATURE, task_id, {"text": f"task {task_id} {text}"})
            case b"ended":
                text = f"is {short_name(state_of(reply[1]))}: {NO_DEAD_LETTER}"
                return Refusal(Reason.FEATURE, task_id, {"text": f"task {task_id} {text}"})
            case _:
                _, agent, scope, request, options, snapshot, turn_messages, entries = reply
                task, _newest = task_from_snapshot(snapshot)
                last_request, message_indexes = decode_request(request, task, turn_messages)
                del task.history[message_indexes[-1] :]
                large = {
                    key.decode(): resolve_entry(entry, quote_key_part(task_id))
                    for key, entry in zip(entries[::2], entries[1::2], strict=True)
                }
                return DeadLetter(agent.decode(), Scope.parse(scope.decode()), last_request, options, task, large)

    return Reply(parse)


class EntryArguments(NamedTuple):
    """Journal entry, as the argument of a script: its key and stored form."""

    key: str
    content: bytes


def requeue_task(
    keys: Keys,
    dead_letter: DeadLetter,
    task_id: str,
    *,
    retention: int,
    options: bytes,
    from_start: bool = False,
    kept_metadata: Iterable[str] = (),
) -> Operation[Literal["requeued", "blocked", "gone"]]:
    """Create the task `task_id` from a dead letter, and remove the dead letter from the list.

    Args:
        keys: Keys of the deployment.
        dead_letter: Dead letter to requeue.
        task_id: Id of the new task.
        retention: Seconds for which the new task is stored after it has ended.
        options: Options with which the caller publishes run 1, unless the run is blocked.
        from_start: True to delete the journal. With False, the new task continues with the journal.
        kept_metadata: Names of the metadata that the new task also has.

    Returns:
        "requeued" if the task was created. "blocked" if the task was created, but another run of the context must end
        first. "gone" if the dead letter was already requeued or has expired.
    """
    request, task = resubmission(dead_letter, task_id, kept_metadata)
    # The new task receives copies of the blobs, because each task has its own folder.
    entries = [] if from_start else [EntryArguments(*entry) for entry in dead_letter.large_entries.items()]
    return _requeue_task(
        keys,
        keys.task(task_id),
        keys.task(dead_letter.task.id),
        task_id=task_id,
        retention=retention,
        request=encode_request(request),
        options=options,
        working_event=encode(status_event(task_id, task.context_id, WORKING)),
        from_start=from_start,
        entries=entries,
        task=task,
        sections=[ResubmissionSection()],
    )


@verb
def _requeue_task(
    keys: Keys,
    new_keys: TaskKeys,
    dead_keys: TaskKeys,
    task_id: str,
    retention: int,
    request: bytes,
    options: bytes,
    working_event: bytes,
    from_start: bool,
    entries: Sequence[EntryArguments],
    task: TaskToWrite,
    sections: Sections,
) -> Reply[Literal["requeued", "blocked", "gone"]]:
    """The content of each of the `entries` is a blob. The keys of the new task come first; see `tag_in`."""
    return Reply(lambda reply: cast(Literal["requeued", "blocked", "gone"], reply[0].decode()))


def resubmission(
    dead_letter: DeadLetter, task_id: str, kept_metadata: Iterable[str]
) -> tuple[SendMessageRequest, Task]:
    """Return the request and the task with which a dead letter is resubmitted.

    The history also contains the messages before the last turn, because the message of the last turn may answer a
    question in the earlier messages. The history omits the messages of the lost run, and messages that a client sent
    during the run.
    """
    request = SendMessageRequest()
    request.CopyFrom(dead_letter.request)
    request.message.task_id = task_id
    request.message.reference_task_ids.append(dead_letter.task.id)
    task = Task(id=task_id, context_id=dead_letter.task.context_id, status=TaskStatus(state=SUBMITTED))
    for message in dead_letter.task.history:
        copy = task.history.add()
        copy.CopyFrom(message)
        copy.task_id = task_id
    task.history.append(request.message)
    task.metadata.update(own_metadata({REQUEUED_FROM: dead_letter.task.id}))
    for name in kept_metadata:
        if (key := NAMESPACE + name) in dead_letter.task.metadata:
            task.metadata[key] = dead_letter.task.metadata[key]
    return request, task
