"""Parent and child tasks, and the cancellation of children with their parent.

If the agent of a task starts another task, the new task is a child of the agent's task. The store records the relation
if both tasks have the same tenant and owner. When the parent ends without a result, a watcher cancels the children,
except children that are not cancelled with their parent. The called children of a task that can be resubmitted
continue. When a message interrupts a turn of the parent, a watcher cancels only the children for which the turn waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from a2a.types import Task, TaskState
from google.protobuf.struct_pb2 import Struct

from ...lifecycle.own_metadata import NAMESPACE, PARENT_TASK_ID
from ...lifecycle.references import Scope
from ..blobs.references import encode
from ..codec import pack_metadata, state_of
from ..keys import AnyScope, Keys
from ..verbs import Reply, TaskId, verb

MAX_DEPTH = 16
"""Maximum number of ancestors of a task. The limit stops agents that call each other in a cycle."""

MAX_CHILDREN = 1000
"""Maximum number of live children of a task. Ended children are removed from the list of children when it is full."""


@dataclass(frozen=True, slots=True)
class Parent:
    """Parent of a new task.

    Attributes:
        task_id: Id of the parent.
        cancels: True if the new task is cancelled with its parent.
        is_waiting: True if the parent waits until the new task has ended or waits for its client. Such a task is also
            called.
        is_called: True if the parent uses the new task again when the parent is resubmitted.
    """

    task_id: str
    cancels: bool = True
    is_waiting: bool = False
    is_called: bool = False

    def metadata(self) -> Struct:
        """Return the metadata of the child task, which contains the id of the parent."""
        metadata = Struct()
        metadata[NAMESPACE + PARENT_TASK_ID] = self.task_id
        return metadata


@dataclass(frozen=True, slots=True)
class Relative:
    """Parent or child of a task, or the task itself.

    Attributes:
        task_id: Id of the task.
        agent: Name of the agent, or "" for a parent that is not in the store.
        state: State of the task, or None for a parent that is not in the store.
        at_us: Time of the status in µs since 1970, or 0 for a parent that is not in the store.
        cancels: True if the task is cancelled with its parent. Always True for a parent and for the task itself.
    """

    task_id: str
    agent: str
    state: TaskState | None
    at_us: int
    cancels: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the task as a JSON object for clients and operators."""
        state = None if self.state is None else TaskState.Name(self.state)
        return {"id": self.task_id, "agent": self.agent or None, "state": state, "cancelWithParent": self.cancels}

    @classmethod
    def parse(cls, reply: Sequence[bytes]) -> Relative:
        """Parse a task in the reply of ``read_family``."""
        task_id, agent, state, at, cancels = reply
        known_state = state_of(state) if state else None
        return cls(task_id.decode(), agent.decode(), known_state, int(at or 0), cancels == b"1")


@dataclass(frozen=True, slots=True)
class Family:
    """Task with its parent and its children.

    Attributes:
        parent: Parent of the task, or None for a task without a parent.
        children: Children that are in the store, in the order of their creation.
    """

    task: Relative
    parent: Relative | None
    children: tuple[Relative, ...]


@dataclass(frozen=True, slots=True)
class OrphanedChild:
    """Live child task to cancel, because its parent has ended without a result, or a message has interrupted the turn
    that waits for the child."""

    parent_id: str
    task_id: str
    context_id: str
    scope: Scope


class ParentArguments(NamedTuple):
    """Parent of a new task, as the argument of a script. The first four fields are those of `Parent`.

    Attributes:
        suffix: Bytes that are appended to the task event of a child.
        metadata: Packed metadata of a child.
    """

    id: str
    cancels: bool
    is_waiting: bool
    is_called: bool
    max_depth: int
    max_children: int
    suffix: bytes
    metadata: bytes


def parent_arguments(parent: Parent, task_id: str, context_id: str) -> ParentArguments:
    """Return the parent of a new task in the form that ``create_task`` receives."""
    metadata = parent.metadata()
    return ParentArguments(
        id=parent.task_id,
        cancels=parent.cancels,
        is_waiting=parent.is_waiting,
        is_called=parent.is_waiting or parent.is_called,
        max_depth=MAX_DEPTH,
        max_children=MAX_CHILDREN,
        suffix=bytes(encode(Task(id=task_id, context_id=context_id, metadata=metadata))),
        metadata=pack_metadata(metadata),
    )


@verb
def read_family(keys: Keys, scope: AnyScope, task_id: TaskId) -> Reply[Family | None]:
    """Read a task with its parent and children.

    Args:
        keys: Keys of the deployment.
        scope: Scope of the task, or None for any scope.
        task_id: Id of the task.

    Returns:
        The task's family, or None if `scope` has no such task.
    """

    def parse(reply: Any) -> Family | None:
        if reply is None:
            return None
        task, parent, *children = reply
        relatives = map(Relative.parse, children)
        return Family(Relative.parse(task), Relative.parse(parent) if parent else None, tuple(relatives))

    return Reply(parse)


@verb
def acquire_ended_parents(keys: Keys, *, limit: int, delay_us: int) -> Reply[list[OrphanedChild]]:
    """Acquire up to `limit` tasks that ended, or of which a turn was interrupted, and read the children to cancel.

    A task with live children to cancel is due again after `delay_us`.
    """

    def parse(reply: Sequence[bytes]) -> list[OrphanedChild]:
        fields = zip(*[(value.decode() for value in reply)] * 4, strict=True)
        return [
            OrphanedChild(parent, task_id, context_id, Scope.parse(scope))
            for parent, task_id, context_id, scope in fields
        ]

    return Reply(parse)
