"""Fold of a log into its task.

``fold(log) == snapshot`` holds for every task at every version. The store saves the snapshot, so the cost of reading a
task depends on the size of the task instead of the length of its log. The fold follows the rules of the SDK's
TaskManager, with two exceptions: a new status removes outdated metadata of this package (see `outdated_keys`), and the
texts of consecutive chunks become one part (see `ArtifactFold`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from a2a.types import Artifact, Message, Part, Task, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent

from .events import EventKind, LogEntry, kind_of, timestamp
from .own_metadata import outdated_keys
from .states import COMPLETED

PLAIN = ("", "text/plain")
"""Media types of the text parts that are joined."""


class ArtifactFold:
    """Incremental fold of the chunks of an artifact, with joined texts.

    If a chunk begins with a text part and the artifact ends with a text part, both become one part. Parts with
    metadata, a file name or a media type other than ``text/plain`` are not joined, and neither are the parts of one
    chunk. An empty text is omitted next to another part. The cost of a chunk does not depend on the size of the
    artifact.

    Attributes:
        artifact: Artifact, which lacks texts that `finish` adds.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self._texts: list[str] = []  # texts of the artifact's last part, if there are several
        self._media_type = ""  # of the artifact's last part, if there are several texts

    def append(self, chunk: Artifact) -> None:
        """Append the parts of `chunk`, and merge its metadata by key."""
        parts, added = self.artifact.parts, chunk.parts
        if chunk.HasField("metadata"):
            _merge_metadata(self.artifact, chunk)
        rest: Sequence[Part] = added
        is_text = len(added) > 0 and _is_plain(added[0])
        if is_text and self._continues_text(added[0]):
            self._texts.append(added[0].text)
            rest = added[1:]
        else:
            self.finish()
            if parts and added and _is_plain(parts[-1]) and not parts[-1].text:
                del parts[-1]
            if is_text and parts and not added[0].text:
                rest = added[1:]
        if rest:
            self.finish()
            parts.extend(rest)

    def _continues_text(self, part: Part) -> bool:
        """Return True if the text of `part` belongs to the artifact's last part."""
        if not self._texts:
            parts = self.artifact.parts
            if not parts or not _is_plain(parts[-1]):
                return False
            self._texts, self._media_type = [parts[-1].text], parts[-1].media_type
        same_type: bool = part.media_type == self._media_type
        return same_type

    def replace(self, artifact: Artifact) -> None:
        """Replace the artifact by a copy of `artifact`."""
        self._texts = []
        self.artifact.CopyFrom(artifact)

    def finish(self) -> None:
        """Write the joined texts to the artifact. More chunks may follow."""
        if self._texts:
            self.artifact.parts[-1].text = "".join(self._texts)
            self._texts = []


class TaskFold:
    """Incremental fold of a log. The cost of an added entry does not depend on the size of the task.

    Attributes:
        version: Version of the newest entry, or 0 before the first entry.
    """

    def __init__(self) -> None:
        self.version = 0
        self._task: Task | None = None
        self._artifacts: dict[str, ArtifactFold] = {}

    @classmethod
    def resume(cls, task: Task, version: int) -> TaskFold:
        """Return the fold of the entries until `version`, whose task is a copy of `task`."""
        task_fold = cls()
        task_fold.version = version - 1
        task_fold.add(LogEntry(version, 0, task))
        return task_fold

    @property
    def task(self) -> Task | None:
        """Task at `version`, or None before the first entry. More entries may follow."""
        for artifact_fold in self._artifacts.values():
            artifact_fold.finish()
        return self._task

    def add(self, entry: LogEntry) -> None:
        """Apply the next entry.

        Raises:
            ValueError: The entry does not have the next version, or the first entry is not a task.
        """
        event = entry.event
        if entry.version != self.version + 1:
            raise ValueError(f"the log is not continuous: version {entry.version} follows version {self.version}")
        if self._task is None and not isinstance(event, Task):
            raise ValueError(f"a log begins with a task, not with {type(event).__name__}")
        self.version = entry.version
        if self._task is not None and isinstance(event, TaskArtifactUpdateEvent):
            self._add_chunk(self._task, event)
            return
        self._task = apply(self._task, entry)
        if isinstance(event, Task):
            self._artifacts = {
                artifact.artifact_id: ArtifactFold(artifact) for artifact in reversed(self._task.artifacts)
            }

    def _add_chunk(self, task: Task, event: TaskArtifactUpdateEvent) -> None:
        artifact_id = event.artifact.artifact_id
        artifact_fold = self._artifacts.get(artifact_id)
        if artifact_fold is None:  # even with append=true, because the first chunk begins the artifact
            task.artifacts.append(event.artifact)
            self._artifacts[artifact_id] = ArtifactFold(task.artifacts[-1])
        elif event.append:
            artifact_fold.append(event.artifact)
        else:
            artifact_fold.replace(event.artifact)


def fold(log: Iterable[LogEntry]) -> Task:
    """Return the task that results from the entries of `log`, which begins at version 1.

    Raises:
        ValueError: The log is empty, does not begin with a task, or has a gap.
    """
    task_fold = TaskFold()
    for entry in log:
        task_fold.add(entry)
    task = task_fold.task
    if task is None:
        raise ValueError("the log is empty")
    return task


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
        case Message() if kind_of(event) is EventKind.AGENT_MESSAGE:
            set_status(task, message_status(event, entry.recorded_us))
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


def message_status(message: Message, recorded_us: int) -> TaskStatus:
    """Return the status of a task that the agent has completed with `message`."""
    return TaskStatus(state=COMPLETED, message=message, timestamp=timestamp(recorded_us))


def joined_texts(parts: Iterable[Part]) -> list[Part]:
    """Return `parts` with adjacent plain texts joined, for parts whose chunks are unknown. Empty texts are omitted."""
    joined = ArtifactFold(Artifact())
    for part in parts:
        joined.append(Artifact(parts=[part]))
    joined.finish()
    return [part for part in joined.artifact.parts if not _is_plain(part) or part.text]


def _is_plain(part: Part) -> bool:
    """Return True if `part` is a text without metadata, file name and special media type."""
    is_text = part.HasField("text") and part.media_type in PLAIN
    return is_text and not part.filename and not part.HasField("metadata")


def _merge_metadata(artifact: Artifact, chunk: Artifact) -> None:
    for key, value in chunk.metadata.fields.items():
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
        existing.parts.extend(event.artifact.parts)
        _merge_metadata(existing, event.artifact)
    else:
        existing.CopyFrom(event.artifact)
    return existing
