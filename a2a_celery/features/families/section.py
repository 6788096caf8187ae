"""Sections that make a new task a child, and that move the children of a resubmitted task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from a2a.types import Message, Task
from google.protobuf.struct_pb2 import Struct

from ...lifecycle import encode
from ...lifecycle.own_metadata import NAMESPACE, PARENT_TASK_ID
from ...lifecycle.parents import parent_named_in
from ...lifecycle.refusals import Reason, Refusal
from ...operations.errors import MAX_ID_LENGTH
from ...store.codec import pack_metadata
from ...store.verbs import section

MAX_DEPTH = 16
"""Maximum number of ancestors of a task. The limit stops agents that call each other in a cycle."""

MAX_CHILDREN = 1000
"""Maximum number of live children of a task. Ended children are removed from the list of children when it is full."""

TOO_DEEP = f"the parent task has {MAX_DEPTH} ancestors, the maximum: agents may call each other in a cycle"

WAITS_FOR_ITSELF = (
    "the task would wait for itself: a task that waits for it keeps its place in the context, which executes one run "
    "at a time; pass another context id, or none"
)


@section(Path(__file__).with_suffix(".lua"))
class ChildSection(NamedTuple):
    """Section of ``create_task`` for a task with a parent. A parent of another tenant or owner is ignored.

    Attributes:
        id: Id of the parent.
        cancels: True if the new task is cancelled with its parent.
        is_waiting: True if the parent waits until the new task has ended or waits for its client. A task that would
            then wait for itself in its context is refused.
        is_called: True if the parent uses the new task again when the parent is resubmitted.
        task: Encoded event of a `Task` with the metadata of a child, which name the parent.
        metadata: The metadata, packed.
    """

    id: str
    cancels: bool
    is_waiting: bool
    is_called: bool
    max_depth: int
    max_children: int
    task: bytes
    metadata: bytes

    @classmethod
    def of(cls, parent_id: str, *, cancels: bool = True, is_waiting: bool = False, is_called: bool = False) -> Self:
        """Return the section of a child of the task `parent_id`. A task for which the parent waits is also called."""
        metadata = Struct()
        metadata[NAMESPACE + PARENT_TASK_ID] = parent_id
        return cls(
            parent_id,
            cancels,
            is_waiting,
            is_waiting or is_called,
            MAX_DEPTH,
            MAX_CHILDREN,
            encode(Task(metadata=metadata)),
            pack_metadata(metadata),
        )

    def parse(self, task_id: str, reply: Sequence[bytes]) -> Refusal | None:
        """Parse the refusal of a task that cannot become a child."""
        match reply[0]:
            case b"deep":
                return Refusal(Reason.FEATURE, task_id, {"text": TOO_DEEP})
            case b"waits_for_itself":
                return Refusal(Reason.FEATURE, task_id, {"text": WAITS_FOR_ITSELF})
            case _:
                return None


def section_of_message(message: Message) -> ChildSection | None:
    """Return the section for a message that names a parent, or None if the id of the parent is empty or too long."""
    parent_id, cancels, is_called = parent_named_in(message)
    is_valid = 0 < len(parent_id) <= MAX_ID_LENGTH
    return ChildSection.of(parent_id, cancels=cancels, is_called=is_called) if is_valid else None


@section(Path(__file__).with_name("resubmission_section.lua"))
class ResubmissionSection(NamedTuple):
    """Section of the script that resubmits a task. If the new task continues with the journal, it uses the called
    children again."""

    def parse(self, task_id: str, reply: Sequence[bytes]) -> None:
        """Return None: the section adds no reply."""
