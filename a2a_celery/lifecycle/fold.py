"""Fold of a log into its task.

``fold(log) == snapshot`` holds for every task at every version. The store saves the snapshot, so the cost of reading a
task depends on the size of the task instead of the length of its log. The fold follows the rules of the SDK's
TaskManager, except that a new status removes outdated metadata of this package; see `outdated_keys`.
"""

from collections.abc import Iterable

from a2a.types import Artifact, Message, Task, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent

from .events import EventKind, LogEntry, kind_of, timestamp
from .own_metadata import outdated_keys
from .states import COMPLETED


class TaskFold:
    """Incremental fold of a log. The cost of an added entry does not depend on the size of the task.

    Attributes:
        task: Task at `version`, or None before the first entry.
        version: Version of the newest entry, or 0 before the first entry.
    """

    def __init__(self) -> None:
        self.task: Task | None = None
        self.version = 0
        self._artifacts: dict[str, Artifact] = {}

    def add(self, entry: LogEntry) -> None:
        """Apply the next entry.

        Raises:
            ValueError: The entry does not have the next version, or the first entry is not a task.
        """
        event = entry.event
        if entry.version != self.version + 1:
            raise ValueError(f"the log is not continuous: version {entry.version} follows version {self.version}")
        if self.task is None and not isinstance(event, Task):
            raise ValueError(f"a log begins with a task, not with {type(event).__name__}")
        self.version = entry.version
        if self.task is not None and isinstance(event, TaskArtifactUpdateEvent):
            self._artifacts[event.artifact.artifact_id] = _set_artifact(
                self.task, event, self._artifacts.get(event.artifact.artifact_id)
            )
            return
        self.task = apply(self.task, entry)
        if isinstance(event, Task):
            self._artifacts = {artifact.artifact_id: artifact for artifact in reversed(self.task.artifacts)}


def fold(log: Iterable[LogEntry]) -> Task:
    """Return the task that results from the entries of `log`, which begins at version 1.

    Raises:
        ValueError: The log is empty, does not begin with a task, or has a gap.
    """
    task_fold = TaskFold()
    for entry in log:
        task_fold.add(entry)
    if task_fold.task is None:
        raise ValueError("the log is empty")
    return task_fold.task


def apply(task: Task | None, entry: LogEntry) -> Task:
    """Apply `entry` to `task` in place, and return `task`. If the entry contains a complete task, return a copy of that
    task."""
    event = entry.event
    if isinstance(event, Task):
        task_copy = Task()
        task_copy.CopyFrom(event)
        return task_copy
    assert task is not None
    match event:
        case TaskStatusUpdateEvent():
            set_status(task, event.status)
            for key, value in event.metadata.fields.items():
                task.metadata.fields[key].CopyFrom(value)
        case TaskArtifactUpdateEvent():
            artifact_id = event.artifact.artifact_id
            _set_artifact(task, event, next((a for a in task.artifacts if a.artifact_id == artifact_id), None))
        case Message() if kind_of(event) is EventKind.ANSWER:
            set_status(task, answer_status(event, entry.recorded_us))
        case Message():
            _retire_status_message(task)
            task.history.append(event)
    return task


def set_status(task: Task, status: TaskStatus) -> None:
    """Set the status of `task`, move the message of the old status to the history, and remove outdated metadata."""
    _retire_status_message(task)
    task.status.CopyFrom(status)
    if task.HasField("metadata"):
        for key in outdated_keys(status.state):
            task.metadata.fields.pop(key, None)
        if not task.metadata.fields:
            task.ClearField("metadata")


def answer_status(message: Message, recorded_us: int) -> TaskStatus:
    """Return the status of a task that the agent has completed with `message`."""
    return TaskStatus(state=COMPLETED, message=message, timestamp=timestamp(recorded_us))


def merge_chunk(artifact: Artifact, event: TaskArtifactUpdateEvent) -> None:
    """Append the parts of the chunk in `event` to `artifact`, and merge the metadata by key."""
    artifact.parts.extend(event.artifact.parts)
    for key, value in event.artifact.metadata.fields.items():
        artifact.metadata.fields[key].CopyFrom(value)


def _retire_status_message(task: Task) -> None:
    if task.status.HasField("message"):
        task.history.append(task.status.message)
        task.status.ClearField("message")


def _set_artifact(task: Task, event: TaskArtifactUpdateEvent, existing: Artifact | None) -> Artifact:
    if existing is None:  # even with append=true, because the first chunk begins the artifact
        task.artifacts.append(event.artifact)
        return task.artifacts[-1]
    if event.append:
        merge_chunk(existing, event)
    else:
        existing.CopyFrom(event.artifact)
    return existing
