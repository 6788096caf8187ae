"""Features in the operations of gateways: the operations that belong to features, and the sections of messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..gateway.gate import Gate
from ..gateway.operations.task_reader import TaskReader
from ..operations.service import TaskService
from .families.gateway import GET_TASK_FAMILY
from .families.gateway import SCHEMAS as FAMILY_SCHEMAS
from .feature import GatewayFeature, GatewayOperation
from .webhooks.gateway_configs import PushConfigs
from .webhooks.operations import OPERATIONS as WEBHOOK_OPERATIONS
from .webhooks.operations import SCHEMAS as WEBHOOK_SCHEMAS

GATEWAY_FEATURES: Sequence[Callable[[TaskService, TaskReader, Gate], GatewayFeature | None]] = (PushConfigs.of,)
"""Functions that open the features of a gateway, or return None if the settings do not turn the feature on."""

OPERATIONS: Sequence[GatewayOperation] = (*WEBHOOK_OPERATIONS, GET_TASK_FAMILY)
"""Operations that belong to features."""

SCHEMAS: Mapping[str, dict[str, Any]] = {**FAMILY_SCHEMAS, **WEBHOOK_SCHEMAS}
"""JSON Schemas of the responses of `OPERATIONS` that A2A does not define, by name."""
