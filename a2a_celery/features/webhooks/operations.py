"""Operations of gateways on push notification configs and their deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from a2a.types import (
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import PushNotificationNotSupportedError
from google.protobuf.message import Message as Proto

from ...gateway.call import Call
from ...gateway.openapi.schemas import COMPONENTS, COUNT, STRING, TIME, Schema, list_schema, object_schema
from ...gateway.operations.validation import require_tenant
from ...operations.requests import require_fields
from ..feature import GatewayOperation
from .gateway_configs import PushConfigs

if TYPE_CHECKING:  # the handler imports the operations
    from ...gateway.handler import GatewayHandler


async def create_push_config(
    handler: GatewayHandler, params: TaskPushNotificationConfig, call: Call
) -> TaskPushNotificationConfig:
    """Register a webhook for the later events of a task."""
    return await _configs(handler, params, call).create(handler.scope(call), params, call)


async def get_push_config(
    handler: GatewayHandler, params: GetTaskPushNotificationConfigRequest, call: Call
) -> TaskPushNotificationConfig:
    """Return a config without its secrets."""
    return await _configs(handler, params, call).get(handler.scope(call), params.task_id, params.id)


async def list_push_configs(
    handler: GatewayHandler, params: ListTaskPushNotificationConfigsRequest, call: Call
) -> ListTaskPushNotificationConfigsResponse:
    """Return the configs of a task without their secrets."""
    return await _configs(handler, params, call).list(handler.scope(call), params)


async def delete_push_config(
    handler: GatewayHandler, params: DeleteTaskPushNotificationConfigRequest, call: Call
) -> None:
    """Delete a config and stop the deliveries to its webhook."""
    await _configs(handler, params, call).delete(handler.scope(call), params.task_id, params.id)


async def get_webhook_deliveries(
    handler: GatewayHandler, params: GetTaskPushNotificationConfigRequest, call: Call
) -> dict[str, Any]:
    """Return the newest deliveries of a config. This operation is not part of A2A."""
    return await _configs(handler, params, call).deliveries(handler.scope(call), params.task_id, params.id)


async def replay_webhook_deliveries(
    handler: GatewayHandler, params: GetTaskPushNotificationConfigRequest, call: Call
) -> dict[str, Any]:
    """Queue another delivery of the event in the path, or of all failed events. This operation is not part of A2A."""
    configs, event = _configs(handler, params, call), call.path_parameters.get("event", "")
    return await configs.replay(handler.scope(call), params.task_id, params.id, event)


async def ping_webhook(
    handler: GatewayHandler, params: GetTaskPushNotificationConfigRequest, call: Call
) -> dict[str, Any]:
    """Queue a test ping, which a watcher posts. This operation is not part of A2A."""
    return await _configs(handler, params, call).ping(handler.scope(call), params.task_id, params.id)


def _configs(handler: GatewayHandler, params: Proto, call: Call) -> PushConfigs:
    """Return the push configs. The error for unsupported push notifications takes precedence over errors about the
    request's fields."""
    require_tenant(call)
    configs = handler.feature(PushConfigs)
    if configs is None or not handler.card.capabilities.push_notifications:
        raise PushNotificationNotSupportedError("Push notifications are not supported by this agent")
    require_fields(params)
    return configs


_CONFIGS = "/tasks/{task_id}/pushNotificationConfigs"
_CONFIG = _CONFIGS + "/{id:path}"
"""Path of a push notification config. The id may contain slashes, which a client sends as ``%2F``."""

_WEBHOOK = "/webhooks/{task_id}/{id:path}"
"""Path prefix of the operations that are not part of the specification."""

OPERATIONS: Sequence[GatewayOperation] = (
    GatewayOperation(
        "GetTaskPushNotificationConfig",
        "Return a webhook of a task.",
        "GET",
        _CONFIG,
        GetTaskPushNotificationConfigRequest,
        get_push_config,
    ),
    GatewayOperation(
        "DeleteTaskPushNotificationConfig",
        "Delete a webhook of a task.",
        "DELETE",
        _CONFIG,
        DeleteTaskPushNotificationConfigRequest,
        delete_push_config,
    ),
    GatewayOperation(
        "CreateTaskPushNotificationConfig",
        "Create a webhook of a task.",
        "POST",
        _CONFIGS,
        TaskPushNotificationConfig,
        create_push_config,
    ),
    GatewayOperation(
        "ListTaskPushNotificationConfigs",
        "Return the webhooks of a task.",
        "GET",
        _CONFIGS,
        ListTaskPushNotificationConfigsRequest,
        list_push_configs,
    ),
    GatewayOperation(
        "GetWebhookDeliveries",
        "Return the newest and the pending deliveries of a webhook.",
        "GET",
        f"{_WEBHOOK}/deliveries",
        GetTaskPushNotificationConfigRequest,
        get_webhook_deliveries,
        response="WebhookDeliveries",
    ),
    GatewayOperation(
        "ReplayWebhookDeliveries",
        "Post all failed events of a webhook again.",
        "POST",
        f"{_WEBHOOK}/deliveries:replay",
        GetTaskPushNotificationConfigRequest,
        replay_webhook_deliveries,
        response="WebhookDeliveries",
        status=202,
    ),
    GatewayOperation(
        "ReplayWebhookDeliveries",
        "Post one event of a webhook again.",
        "POST",
        f"{_WEBHOOK}/deliveries/{{event}}:replay",
        GetTaskPushNotificationConfigRequest,
        replay_webhook_deliveries,
        response="WebhookDeliveries",
        status=202,
        operation_id="ReplayWebhookDelivery",
    ),
    GatewayOperation(
        "PingWebhook",
        "Post a test ping.",
        "POST",
        f"{_WEBHOOK}:ping",
        GetTaskPushNotificationConfigRequest,
        ping_webhook,
        response="WebhookPing",
        status=202,
    ),
)
"""Operations, in the order in which a gateway tries their paths."""

_DELIVERIES: dict[str, Schema] = {
    "taskId": STRING,
    "id": STRING,
    "state": STRING,
    "delivered": COUNT,
    "lastEvent": COUNT,
    "failures": COUNT,
    "requested": list_schema(STRING),
    "deliveries": list_schema({"$ref": f"{COMPONENTS}WebhookDelivery"}),
}
_DELIVERY_TIMES = {"nextTry": TIME, "givenUpAt": TIME}

SCHEMAS: dict[str, Schema] = {
    "WebhookDelivery": object_schema(
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
    "WebhookDeliveries": object_schema(_DELIVERIES, _DELIVERY_TIMES),
    "WebhookPing": object_schema({"ping": STRING, **_DELIVERIES}, _DELIVERY_TIMES),
}
"""JSON Schemas of the responses that A2A does not define, by name."""
