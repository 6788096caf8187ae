"""Families in gateways: the operation GetTaskFamily, and the relatives in the timeline of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from a2a.types import GetTaskRequest

from ...gateway.call import Call
from ...gateway.openapi.schemas import COMPONENTS, STRING, Schema, list_schema, object_schema
from ...gateway.operations.validation import require_tenant
from ...operations.errors import not_found
from ...operations.requests import require_fields
from ...store import AsyncStore, Keys
from ..feature import GatewayOperation
from .family import Relative, read_family

if TYPE_CHECKING:  # the handler imports the operations
    from ...gateway.handler import GatewayHandler

MAX_CHILDREN = 100
"""Maximum number of children in a timeline."""


async def get_task_family(handler: GatewayHandler, params: GetTaskRequest, call: Call) -> dict[str, Any]:
    """Return the parent and the children of a task. This operation is not part of A2A."""
    require_fields(params)
    require_tenant(call)
    service = handler.service
    family = await service.store.run(read_family(service.keys, handler.scope(call), params.id))
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


_RELATED_TASK: Schema = {"$ref": f"{COMPONENTS}RelatedTask"}
_NULL: Schema = {"type": "null"}
SCHEMAS: dict[str, Schema] = {
    "RelatedTask": object_schema(
        {
            "id": STRING,
            "agent": {"type": ["string", "null"]},
            "state": {"anyOf": [{"$ref": f"{COMPONENTS}TaskState"}, _NULL]},
            "cancelWithParent": {"type": "boolean"},
        }
    ),
    "TaskFamily": object_schema(
        {"id": STRING, "parent": {"anyOf": [_RELATED_TASK, _NULL]}, "children": list_schema(_RELATED_TASK)}
    ),
}
"""JSON Schemas of the response of GetTaskFamily."""

GET_TASK_FAMILY = GatewayOperation(
    "GetTaskFamily",
    "Return the parent and the children of a task.",
    "GET",
    "/families/{id}",
    GetTaskRequest,
    get_task_family,
    response="TaskFamily",
)
