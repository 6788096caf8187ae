"""The fold: what a task is, said by its log alone.

``fold(log) == snapshot`` holds for every task at every version; the store keeps the snapshot beside the log only so
that reading a task costs its size and not its history. The rules are those of the SDK's own TaskManager.
"""

from collections.abc import Iterable

from a2a.types import Artifact, Message, Task, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent

from .events import EventKind, LogEntry, kind_of, timestamp
from .states import COMPLETED


def fold(log: Iterable[LogEntry]) -> Task:
    """The task that `log` describes; `log` starts with version 1.

    Raises:
        ValueError: if the log does not begin with a task or has a gap.
    """
    task: Task | None = None
    version = 0
    for entry in log:
        if entry.version != version + 1:
            raise ValueError(f"the log jumps from version {version} to {entry.version}")
        version = entry.version
        if task is None and not isinstance(entry.event, Task):
            raise ValueError(f"a log begins with a task, not with {type(entry.event).__name__}")
        task = apply(task, entry)
    if task is None:
        raise ValueError("an empty log describes no task")
    return task


def apply(task: Task | None, entry: LogEntry) -> Task:
    """`task` after `entry`. Changes `task` in place, except where the entry replaces it as a whole."""
    event = entry.event
    if isinstance(event, Task):
        replaced = Task()
        replaced.CopyFrom(event)
        return replaced
    assert task is not None
    match event:
        case TaskStatusUpdateEvent():
            set_status(task, event.status)
            for key, value in event.metadata.fields.items():
                task.metadata.fields[key].CopyFrom(value)
        case TaskArtifactUpdateEvent():
            _set_artifact(task, event)
        case Message() if kind_of(event) is EventKind.ANSWER:
            set_status(task, answered(event, entry.recorded_us))
        case Message():
            _retire_status_message(task)
            task.history.append(event)
    return task


def set_status(task: Task, status: TaskStatus) -> None:
    """Gives `task` a new status; the message of the old one moves into the history."""
    _retire_status_message(task)
    task.status.CopyFrom(status)


def answered(message: Message, recorded_us: int) -> TaskStatus:
    """The status of a task that its agent's `message` has completed."""
    return TaskStatus(state=COMPLETED, message=message, timestamp=timestamp(recorded_us))


def merge_chunk(artifact: Artifact, event: TaskArtifactUpdateEvent) -> None:
    """Adds the chunk that `event` carries to `artifact`: its parts at the end, its metadata key by key."""
    artifact.parts.extend(event.artifact.parts)
    for key, value in event.artifact.metadata.fields.items():
        artifact.metadata.fields[key].CopyFrom(value)


def _retire_status_message(task: Task) -> None:
    if task.status.HasField("message"):
        task.history.append(task.status.message)
        task.status.ClearField("message")


def _set_artifact(task: Task, event: TaskArtifactUpdateEvent) -> None:
    known = next((a for a in task.artifacts if a.artifact_id == event.artifact.artifact_id), None)
    if known is None:  # also with append=true: the first chunk of an artifact is its beginning, whatever it says
        task.artifacts.append(event.artifact)
    elif event.append:
        merge_chunk(known, event)
    else:
        known.CopyFrom(event.artifact)
