"""Operations of the HTTP+JSON binding that A2A does not define, with the JSON Schemas of their messages."""

from __future__ import annotations

from typing import NamedTuple

from ...features.gateway import CLIENT_OPERATIONS
from ...lifecycle.signals import MAX_SIGNAL_ID
from .schemas import COMPONENTS, Schema

STRING: Schema = {"type": "string"}
TIME: Schema = {"type": "string", "format": "date-time"}
COUNT: Schema = {"type": "integer", "minimum": 0}


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    return {"type": "object", "properties": required | (optional or {}), "required": list(required)}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


_DELIVERIES: dict[str, Schema] = {
    "taskId": STRING,
    "id": STRING,
    "state": STRING,
    "delivered": COUNT,
    "lastEvent": COUNT,
    "failures": COUNT,
    "requested": _list(STRING),
    "deliveries": _list({"$ref": f"{COMPONENTS}WebhookDelivery"}),
}
_DELIVERY_TIMES = {"nextTry": TIME, "givenUpAt": TIME}

_ENTRY = ("identifier", "displayName", "description", "version", "type", "url")

SCHEMAS: dict[str, Schema] = {
    "Catalog": _object(
        {"specVersion": STRING, "entries": _list({"$ref": f"{COMPONENTS}CatalogEntry"})},
    ),
    "CatalogEntry": _object(dict.fromkeys(_ENTRY, STRING)),
    "Signal": _object(
        {"name": {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,64}$"}},
        {
            "payload": {"description": "A JSON value."},
            "signalId": {"type": "string", "minLength": 1, "maxLength": MAX_SIGNAL_ID},
            "tenant": STRING,
        },
    ),
    "SignalResult": _object({"taskId": STRING, "resumed": {"type": "boolean"}}),
    **{name: schema for feature in CLIENT_OPERATIONS for name, schema in feature.schemas.items()},
    "WebhookDelivery": _object(
        {"outcome": STRING},
        {
            "time": TIME,
            "event": STRING,
            "ping": STRING,
            "status": {"type": "integer"},
            "latencyMs": {"type": "number"},
            "reason": STRING,
            "nextTry": TIME,
        },
    ),
    "WebhookDeliveries": _object(_DELIVERIES, _DELIVERY_TIMES),
    "WebhookPing": _object({"ping": STRING, **_DELIVERIES}, _DELIVERY_TIMES),
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


_WEBHOOK = "/webhooks/{task_id}/{id}"

EXTRA_OPERATIONS: dict[tuple[str, str], ExtraOperation] = {
    ("POST", "/tasks/{id}:subscribe"): ExtraOperation(
        "SubscribeToTaskByPost", "Follow a task, like SubscribeToTask.", response=""
    ),
    ("POST", "/tasks/{id}:signal"): ExtraOperation(
        "SendSignal", "Send a signal to a task that accepts signals of its client.", "SignalResult", "Signal", 202
    ),
    **{
        (feature.method, feature.path): ExtraOperation(feature.name, feature.summary, next(iter(feature.schemas)))
        for feature in CLIENT_OPERATIONS
    },
    ("GET", f"{_WEBHOOK}/deliveries"): ExtraOperation(
        "GetWebhookDeliveries", "Return the newest and the pending deliveries of a webhook.", "WebhookDeliveries"
    ),
    ("POST", f"{_WEBHOOK}/deliveries:replay"): ExtraOperation(
        "ReplayWebhookDeliveries", "Post all failed events of a webhook again.", "WebhookDeliveries", status=202
    ),
    ("POST", f"{_WEBHOOK}/deliveries/{{event}}:replay"): ExtraOperation(
        "ReplayWebhookDelivery", "Post one event of a webhook again.", "WebhookDeliveries", status=202
    ),
    ("POST", f"{_WEBHOOK}:ping"): ExtraOperation("PingWebhook", "Post a test ping.", "WebhookPing", status=202),
}
"""Operations by HTTP method and path."""
