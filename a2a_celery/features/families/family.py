"""Task with its parent and its children."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from a2a.types import TaskState

from ...store.codec import state_of
from ...store.keys import AnyScope, Keys
from ...store.verbs import Reply, TaskId, verb


@dataclass(frozen=True, slots=True)
class Relative:
    """Parent or child of a task, or the task itself.

    Attributes:
        task_id: Id of the task.
        agent: Name of the agent, or "" for a parent that is not in the store.
        state: State of the task, or None for a parent that is not in the store.
        cancels: True if the task is cancelled with its parent. Always True for a parent and for the task itself.
    """

    task_id: str
    agent: str
    state: TaskState | None
    cancels: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the task as a JSON object for clients and operators."""
        state = None if self.state is None else TaskState.Name(self.state)
        return {"id": self.task_id, "agent": self.agent or None, "state": state, "cancelWithParent": self.cancels}

    @classmethod
    def parse(cls, reply: Sequence[bytes]) -> Relative:
        """Parse a task in the reply of ``read_family``."""
        task_id, agent, state, cancels = reply
        known_state = state_of(state) if state else None
        return cls(task_id.decode(), agent.decode(), known_state, cancels == b"1")


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
