"""Families in gateways: the operation GetTaskFamily, and the relatives in the timeline of a task."""

from __future__ import annotations

from typing import Any

from a2a.types import GetTaskRequest

from ...gateway.openapi.schemas import COMPONENTS
from ...lifecycle.references import Scope
from ...operations.errors import not_found
from ...operations.service import TaskService
from ...store import AsyncStore, Keys
from .family import Relative, read_family

MAX_CHILDREN = 100
"""Maximum number of children in a timeline."""

_RELATED_TASK = {"$ref": f"{COMPONENTS}RelatedTask"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "TaskFamily": {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "parent": {"anyOf": [_RELATED_TASK, {"type": "null"}]},
            "children": {"type": "array", "items": _RELATED_TASK},
        },
        "required": ["id", "parent", "children"],
    },
    "RelatedTask": {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "agent": {"type": ["string", "null"]},
            "state": {"anyOf": [{"$ref": f"{COMPONENTS}TaskState"}, {"type": "null"}]},
            "cancelWithParent": {"type": "boolean"},
        },
        "required": ["id", "agent", "state", "cancelWithParent"],
    },
}
"""JSON Schemas of the response of GetTaskFamily."""


async def get_task_family(service: TaskService, scope: Scope, params: GetTaskRequest) -> dict[str, Any]:
    """Return the parent and the children of a task.

    Raises:
        TaskNotFoundError: `scope` has no such task.
    """
    family = await service.store.run(read_family(service.keys, scope, params.id))
    if family is None:
        raise not_found(params.id)
    return {"id": params.id, "parent": _json(family.parent), "children": [child.to_dict() for child in family.children]}


async def relatives(store: AsyncStore, keys: Keys, task_id: str) -> dict[str, Any]:
    """Return the parent and the newest children of a task, for its timeline."""
    family = await store.run(read_family(keys, None, task_id))
    if family is None:
        return {"parent": None, "children": []}
    children = [child.to_dict() for child in family.children[-MAX_CHILDREN:]]
    return {"parent": _json(family.parent), "children": children}


def _json(task: Relative | None) -> dict[str, Any] | None:
    return None if task is None else task.to_dict()
