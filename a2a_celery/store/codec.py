"""Encoding of tasks and events as script arguments, and decoding of script replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import pack
from typing import Annotated, Any, NamedTuple, cast

from a2a.types import (
    Artifact,
    Message,
    SendMessageRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct, Value

from ..lifecycle import Event, EventId, LogEntry, event_of_response, kind_of
from ..lifecycle.execution import Activity, encode_activity
from ..lifecycle.fold import ArtifactFold, fold, message_status
from ..lifecycle.journal import JournalEntry, RunRecord, decode_entry
from ..lifecycle.references import quote_key_part
from .blobs.references import (
    decode_stored,
    encode,
    encode_again,
    encode_entry,
    has_references,
    insert_blobs,
    referenced_bytes,
    resolve_entry,
)
from .verbs import Digits

LOG_BLOB_BYTES = 8 * 1024 * 1024
"""Bytes of large parts after which a page of a log ends. A reader keeps one page in memory."""

_WITHOUT_CONTENTS = 10
"""Number of elements in a snapshot without contents; see ``scripts/lib/snapshot.lua``."""

_PACKED = 4
"""Number of elements in the snapshot of a packed task: the id of the newest event, the requested length of the history,
"1" if artifacts were requested, and the log entries."""

SLICE = 25
"""Number of log entries that are folded before control returns to the event loop. Folding a slice takes about
0.3 ms."""


class LongSnapshot(Exception):
    """Exception for a reply that has snapshots without contents, or with a long log. ``log/long_tasks.py`` must fold
    the log before the reply is parsed."""

    def __init__(self, snapshots: Sequence[list[Any]]) -> None:
        super().__init__()
        self.snapshots = snapshots


class UnreadableTask(ValueError):
    """Error for a task whose log has an unknown form. As the only element of a snapshot, it replaces the contents."""


DECODE_ERRORS = (AssertionError, DecodeError, LookupError, ValueError)
"""Errors of a stored text that has an unknown form."""


@dataclass(frozen=True, slots=True)
class FoldedTask:
    """Task that was folded from its log, the only element of its snapshot.

    Attributes:
        newest: Id of the task's newest event.
        has_references: True if parts of the task are in the object store.
    """

    task: Task
    newest: EventId
    has_references: bool


class EventArguments(NamedTuple):
    """Event as the argument of a script; see ``scripts/lib/events.lua``.

    Attributes:
        kind: Letter of the kind.
        subject: State, id of the artifact, or key of the journal entry, depending on the kind.
        flag: "1" or "0", or "" for a kind without a flag.
        content: Stored form of the event.
        metadata: Packed metadata of a status update.
    """

    kind: str
    subject: str
    flag: str
    content: bytes
    metadata: bytes = b""


def event_arguments(event: RunRecord) -> EventArguments:
    """Return an event in the form that scripts receive.

    Raises:
        TypeError: The event is a complete task.
    """
    match event:
        case Activity():
            return EventArguments("X", "", "", encode_activity(event))
        case JournalEntry():
            return EventArguments("J", event.key, "", encode_entry(event))
        case Task():
            raise TypeError("a complete task cannot be appended: use create_task")
    subject = flag = ""
    metadata = b""
    if isinstance(event, TaskStatusUpdateEvent):
        subject = str(int(event.status.state))
        flag = "1" if event.status.HasField("message") else "0"
        metadata = pack_metadata(event.metadata)
    elif isinstance(event, TaskArtifactUpdateEvent):
        subject = event.artifact.artifact_id
        flag = "1" if event.append else "0"
    return EventArguments(kind_of(event).value, subject, flag, encode(event), metadata)


def _all_arguments(records: Sequence[RunRecord]) -> Sequence[EventArguments]:
    return list(map(event_arguments, records))


StatusToWrite = Annotated[TaskStatusUpdateEvent, event_arguments]
"""Status event as an argument of a script."""

EntryToWrite = Annotated[JournalEntry, event_arguments]
"""Journal entry as an argument of a script, with its key as `subject`."""

EventsToWrite = Annotated[Sequence[RunRecord], _all_arguments]
"""Events, activities and journal entries as an argument of a script."""


class ArtifactArguments(NamedTuple):
    """Artifact of `TaskArguments`: the stored form of its only chunk."""

    id: str
    content: bytes


class Position(NamedTuple):
    """Position in a list of tasks: time of the status in µs, and quoted id of the task."""

    at_us: Digits
    tag: str


class TaskArguments(NamedTuple):
    """Task that replaces a stored task, as the argument of a script.

    Attributes:
        event: Stored form of the task, for the log.
        state: State of the task.
        status: Stored form of the status event.
        has_message: 1 if the status has a message, or 0.
        metadata: Packed metadata of the task.
        history: Stored form of each message.
        artifacts: Artifacts in the order of their appearance.
    """

    event: bytes
    state: int
    status: bytes
    has_message: Digits
    metadata: bytes
    history: Sequence[bytes]
    artifacts: Sequence[ArtifactArguments]


def task_arguments(task: Task) -> TaskArguments:
    """Return a task in the form that ``replace_task`` in ``scripts/lib`` receives, with unresolved references."""
    return TaskArguments(
        event=encode_again(task),
        state=int(task.status.state),
        status=encode_again(TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status)),
        has_message=int(task.status.HasField("message")),
        metadata=pack_metadata(task.metadata),
        history=[encode_again(message) for message in task.history],
        artifacts=[
            ArtifactArguments(
                artifact.artifact_id,
                encode_again(TaskArtifactUpdateEvent(task_id=task.id, context_id=task.context_id, artifact=artifact)),
            )
            for artifact in task.artifacts
        ],
    )


TaskToWrite = Annotated[Task, task_arguments]
"""Task that replaces a stored task, as an argument of a script."""


def encode_request(request: SendMessageRequest) -> bytes:
    """Return the stored form of the request of a run, without its message, which the log contains."""
    stored_request = SendMessageRequest(tenant=request.tenant)
    if request.HasField("configuration"):
        stored_request.configuration.CopyFrom(request.configuration)
    if request.HasField("metadata"):
        stored_request.metadata.CopyFrom(request.metadata)
    return stored_request.SerializeToString()


def decode_request(content: bytes, task: Task, turn_messages: bytes) -> tuple[SendMessageRequest, tuple[int, ...]]:
    """Return the request of a run of `task` with its message, and the indexes, in the history, of the messages of the
    turn, of which the last is that message.

    Args:
        content: Stored form of the request.
        task: Task with its whole history.
        turn_messages: Field of the record, which is empty in the first turn.
    """
    message_indexes = tuple(map(int, turn_messages.split())) or (0,)
    request = SendMessageRequest.FromString(content)
    request.message.CopyFrom(task.history[message_indexes[-1]])
    return request, message_indexes


def pack_metadata(metadata: Struct) -> bytes:
    """Return alternating keys and values, each preceded by its length in four bytes."""
    content = b""
    for key, value in metadata.fields.items():
        name, value_content = key.encode(), value.SerializeToString()
        content += pack(">I", len(name)) + name + pack(">I", len(value_content)) + value_content
    return content


def snapshot_size(reply: list[Any]) -> int:
    """Return the size, in bytes, of the messages and artifacts in a reply of ``snapshot``, or 0 if the contents are
    read separately."""
    if len(reply) == _WITHOUT_CONTENTS or isinstance(reply[-1], FoldedTask | UnreadableTask):
        return 0
    if (entries := packed_log(reply)) is not None:
        return sum(map(len, entries))
    return sum(map(len, reply[6])) + sum(len(chunk) for chunks in reply[8] for chunk in chunks)


def packed_log(reply: Sequence[Any]) -> list[bytes] | None:
    """Return the log entries in the snapshot of a packed task, or None if the snapshot has no log."""
    return reply[3] if len(reply) == _PACKED else None


def require_contents(snapshots: Sequence[list[Any]]) -> None:
    """Check that each snapshot has its contents, and no log that takes long to fold.

    Raises:
        LongSnapshot: A snapshot has no contents, or a long log.
    """
    incomplete = [
        snapshot
        for snapshot in snapshots
        if len(snapshot) == _WITHOUT_CONTENTS or len(packed_log(snapshot) or ()) > SLICE
    ]
    if incomplete:
        raise LongSnapshot(incomplete)


def task_from_snapshot(reply: list[Any]) -> tuple[Task, EventId]:
    """Parse a reply of ``snapshot`` in ``scripts/lib``. Return the task and the id of its newest event.

    Raises:
        LongSnapshot: The contents must be read first.
        UnreadableTask: The log of the task has an unknown form.
    """
    require_contents([reply])
    if isinstance(reply[-1], UnreadableTask):
        raise reply[-1]
    if isinstance(folded_task := reply[-1], FoldedTask):
        if folded_task.has_references:
            insert_blobs(folded_task.task)
        return folded_task.task, folded_task.newest
    if (entries := packed_log(reply)) is not None:
        task = fold(log_entries(entries, 0))
        omit_contents(task, int(reply[1]), artifacts=reply[2] == b"1")
        return task, event_id(reply[0])
    task_id, context_id, newest, at, status, _, history, metadata, artifacts = reply
    task = Task(id=task_id.decode(), context_id=context_id.decode(), status=_status(status, int(at)))
    task.history.extend(_message(entry) for entry in history)
    for key, value in zip(metadata[::2], metadata[1::2], strict=True):
        task.metadata.fields[key.decode()].CopyFrom(Value.FromString(value))
    task.artifacts.extend(_artifact(chunks) for chunks in artifacts)
    if not bool(int(reply[5])):
        task.status.ClearField("message")
    return task, event_id(newest)


def omit_contents(task: Task, history_length: int | None, *, artifacts: bool = True) -> None:
    """Remove contents of a task.

    Args:
        task: Task to change.
        history_length: Number of newest messages to keep, or None or -1 to keep all.
        artifacts: False to remove the artifacts.
    """
    if history_length is not None and 0 <= history_length < len(task.history):
        del task.history[: len(task.history) - history_length]
    if not artifacts:
        task.ClearField("artifacts")


def direct_message(reply: Sequence[Any]) -> Message | None:
    """Return the agent's message if it is the agent's only event, or None."""
    if isinstance(reply[-1], FoldedTask):
        return None
    entries = packed_log(reply)
    newest, content = (reply[2], reply[4]) if entries is None else (reply[0], entries[-1].partition(b" ")[2])
    event = _decode(content) if event_id(newest).version == 2 else None
    return event if isinstance(event, Message) else None


def snapshot_is_resolved(reply: Sequence[Any]) -> bool:
    """Return True if no part of the snapshot is in the object store. A packed task has no such part."""
    if packed_log(reply) is not None:
        return True
    if isinstance(folded_task := reply[-1], FoldedTask):
        return not folded_task.has_references
    contents = (reply[4], *reply[6], *(chunk for chunks in reply[8] for chunk in chunks))
    return not any(map(has_references, contents))


def log_entries(reply: Sequence[bytes], after: int, blob_bytes: int = LOG_BLOB_BYTES) -> list[LogEntry]:
    """Parse the log entries after version `after`, until their large parts exceed `blob_bytes` bytes."""
    entries = []
    for version, content in enumerate(reply, after + 1):
        entries.append(LogEntry(version, *_event_of(content)))
        if referenced_bytes() > blob_bytes:
            break
    return entries


def journal_from(reply: Sequence[bytes], task_id: str) -> dict[str, JournalEntry]:
    """Return the journal entries of the task `task_id` by key. `reply` contains alternating keys and entries."""
    keys, tag = [key.decode() for key in reply[::2]], quote_key_part(task_id)
    return {key: decode_entry(key, resolve_entry(content, tag)) for key, content in zip(keys, reply[1::2], strict=True)}


def event_id(reply: bytes) -> EventId:
    """Parse the id of an event in a reply."""
    return EventId.parse(reply.decode())


def state_of(reply: bytes) -> TaskState:
    """Parse the number of a state in a reply."""
    return cast(TaskState, int(reply))


def _event_of(entry: bytes) -> tuple[int, Event]:
    """Return the time and the event of a log entry."""
    recorded_us, _, event = entry.partition(b" ")
    return int(recorded_us), _decode(event, int(recorded_us))


def _decode(content: bytes, recorded_us: int | None = None) -> Event:
    return event_of_response(decode_stored(content), recorded_us)


def _status(content: bytes, at: int) -> TaskStatus:
    event = _decode(content, at)
    if isinstance(event, Message):
        return message_status(event, at)
    assert isinstance(event, TaskStatusUpdateEvent)
    return event.status


def _message(content: bytes) -> Message:
    match _decode(content):
        case TaskStatusUpdateEvent(status=status):
            return status.message
        case Task(history=history):  # the first entry of the log
            return history[0]
        case event:
            assert isinstance(event, Message)
            return event


def _artifact(chunks: Sequence[bytes]) -> Artifact:
    first, *rest = (_decode(chunk) for chunk in chunks)
    assert isinstance(first, TaskArtifactUpdateEvent)
    artifact_fold = ArtifactFold(first.artifact)
    for event in rest:
        assert isinstance(event, TaskArtifactUpdateEvent)
        artifact_fold.append(event.artifact)
    artifact_fold.finish()
    return artifact_fold.artifact
