"""Operations of the HTTP+JSON binding that A2A does not define, with the JSON Schemas of their messages."""

from __future__ import annotations

from typing import NamedTuple

from ...features.operations import OPERATIONS as FEATURE_OPERATIONS
from ...features.operations import SCHEMAS as FEATURE_SCHEMAS
from ...lifecycle.signals import MAX_SIGNAL_ID
from .schemas import COMPONENTS, STRING, Schema, list_schema, object_schema

_ENTRY = ("identifier", "displayName", "description", "version", "type", "url")

SCHEMAS: dict[str, Schema] = {
    "Catalog": object_schema(
        {"specVersion": STRING, "entries": list_schema({"$ref": f"{COMPONENTS}CatalogEntry"})},
    ),
    "CatalogEntry": object_schema(dict.fromkeys(_ENTRY, STRING)),
    "Signal": object_schema(
        {"name": {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,64}$"}},
        {
            "payload": {"description": "A JSON value."},
            "signalId": {"type": "string", "minLength": 1, "maxLength": MAX_SIGNAL_ID},
            "tenant": STRING,
        },
    ),
    "SignalResult": object_schema({"taskId": STRING, "resumed": {"type": "boolean"}}),
    **FEATURE_SCHEMAS,
}


class ExtraOperation(NamedTuple):
    """Operation that A2A does not define.

    Attributes:
        name: Operation id.
        summary: Description in one sentence.
        response: Schema of the response, or "" for the stream of SubscribeToTask.
        request: Schema of the body, or "" for no body.
        status: HTTP status of a successful response.
    """

    name: str
    summary: str
    response: str
    request: str = ""
    status: int = 200


EXTRA_OPERATIONS: dict[tuple[str, str], ExtraOperation] = {
    ("POST", "/tasks/{id}:subscribe"): ExtraOperation(
        "SubscribeToTaskByPost", "Follow a task, like SubscribeToTask.", response=""
    ),
    ("POST", "/tasks/{id}:signal"): ExtraOperation(
        "SendSignal", "Send a signal to a task that accepts signals of its client.", "SignalResult", "Signal", 202
    ),
    **{
        (operation.method, operation.path.replace(":path}", "}")): ExtraOperation(
            operation.operation_id or operation.name, operation.summary, operation.response, status=operation.status
        )
        for operation in FEATURE_OPERATIONS
        if operation.response
    },
}
"""Operations by HTTP method and path."""
