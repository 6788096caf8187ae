"""Encoding of tasks and events as script arguments, and decoding of script replies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import pack
from typing import Any, cast

from a2a.types import (
    Artifact,
    Message,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.struct_pb2 import Struct, Value

from ..lifecycle import Event, EventId, LogEntry, event_of_response, kind_of
from ..lifecycle.execution import Step, encode_step
from ..lifecycle.fold import answer_status, fold, merge_chunk
from ..lifecycle.journal import JournalEntry, RunRecord, decode_entry
from .blobs.references import (
    BlobsExpired,
    decode_as,
    encode,
    encode_again,
    encode_entry,
    has_references,
    insert_blobs,
    referenced_bytes,
    resolve_entry,
)
from .keys import quote_key_part
from .operation import Argument

LOG_BLOB_BYTES = 8 * 1024 * 1024
"""Bytes of large parts after which a page of a log ends. A stream or a webhook delivery keeps one page in memory."""

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


def event_arguments(events: Iterable[RunRecord]) -> list[Argument]:
    """Return five script arguments for each element of `events`, as ``scripts/lib/events.lua`` describes.

    Raises:
        TypeError: An event is a complete task.
    """
    arguments: list[Argument] = []
    for event in events:
        if isinstance(event, Step):
            arguments += ["X", "", "", encode_step(event), b""]
            continue
        if isinstance(event, JournalEntry):
            arguments += ["J", event.key, "", encode_entry(event), b""]
            continue
        kind = kind_of(event)
        subject: Argument = ""
        flag = ""
        metadata = b""
        if isinstance(event, TaskStatusUpdateEvent):
            subject = int(event.status.state)
            flag = "1" if event.status.HasField("message") else "0"
            metadata = pack_metadata(event.metadata)
        elif isinstance(event, TaskArtifactUpdateEvent):
            subject = event.artifact.artifact_id
            flag = "1" if event.append else "0"
        elif isinstance(event, Task):
            raise TypeError("a complete task cannot be appended: use create_task or save_task")
        arguments += [kind.value, subject, flag, encode(event), metadata]
    return arguments


def task_arguments(task: Task) -> list[Argument]:
    """Return the arguments of ``replace_task`` in ``scripts/lib``. Unresolved references are preserved."""
    status = TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status)
    history: list[Argument] = [encode_again(message) for message in task.history]
    artifacts: list[Argument] = []
    for artifact in task.artifacts:
        chunk = TaskArtifactUpdateEvent(task_id=task.id, context_id=task.context_id, artifact=artifact)
        artifacts += [artifact.artifact_id, encode_again(chunk)]
    return [
        encode_again(task),
        int(task.status.state),
        encode_again(status),
        int(task.status.HasField("message")),
        pack_metadata(task.metadata),
        len(history),
        *history,
        *artifacts,
    ]


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
    if len(reply) == _WITHOUT_CONTENTS or isinstance(reply[-1], FoldedTask):
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
    """
    require_contents([reply])
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


def omit_contents(task: Task, history_length: int, *, artifacts: bool) -> None:
    """Remove the artifacts unless `artifacts`, and all messages but the newest `history_length` (-1 keeps all)."""
    if 0 <= history_length < len(task.history):
        del task.history[: len(task.history) - history_length]
    if not artifacts:
        task.ClearField("artifacts")


def direct_answer(reply: Sequence[Any]) -> Message | None:
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


def require_blobs_retained(reply: Sequence[Any]) -> None:
    """Check that the script did not refuse a new task because of its blobs.

    Raises:
        BlobsExpired: The task was not created, because its blobs may have been removed.
    """
    if reply[0] == b"blobs_expired":
        raise BlobsExpired("the upload of a new task's parts to the object store took too long: nothing was stored")


def log_entries(reply: Sequence[bytes], after: int) -> list[LogEntry]:
    """Parse the log entries after version `after`, until their large parts exceed `LOG_BLOB_BYTES`."""
    entries = []
    for version, content in enumerate(reply, after + 1):
        entries.append(LogEntry(version, *_event_of(content)))
        if referenced_bytes() > LOG_BLOB_BYTES:
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
    return event_of_response(decode_as(StreamResponse, content), recorded_us)


def _status(content: bytes, at: int) -> TaskStatus:
    event = _decode(content, at)
    if isinstance(event, Message):
        return answer_status(event, at)
    assert isinstance(event, TaskStatusUpdateEvent)
    return event.status


def _message(content: bytes) -> Message:
    event = _decode(content)
    if isinstance(event, TaskStatusUpdateEvent):
        return event.status.message
    assert isinstance(event, Message)
    return event


def _artifact(chunks: Sequence[bytes]) -> Artifact:
    first, *rest = (_decode(chunk) for chunk in chunks)
    assert isinstance(first, TaskArtifactUpdateEvent)
    artifact = Artifact()
    artifact.CopyFrom(first.artifact)
    for event in rest:
        assert isinstance(event, TaskArtifactUpdateEvent)
        merge_chunk(artifact, event)
    return artifact
