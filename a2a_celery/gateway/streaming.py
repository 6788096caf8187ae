"""Streams of JSON-RPC, for protocol 1.0: as the SDK's dispatcher writes them, but page by page, not event by event."""

from __future__ import annotations

import json
from typing import Any

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.types import SendMessageRequest
from a2a.utils import json_utils

from ..lifecycle import Event
from .event_json import event_line, one_line
from .faults import to_a2a
from .handler import GatewayHandler
from .sse import EventStream, frames_of


async def rpc_stream(handler: GatewayHandler, request_id: Any, params: Any, context: ServerCallContext) -> EventStream:
    """The answer to a streaming method of JSON-RPC."""
    before, after = f'{{"jsonrpc": "2.0", "id": {json.dumps(request_id)}, "result": ', "}"

    async def say(event: Event) -> str:
        return before + await event_line(event) + after

    def fault(error: Exception) -> str:
        return one_line(json_utils.dumps(build_error_response(request_id, to_a2a(error))))

    pages = handler.message_pages if isinstance(params, SendMessageRequest) else handler.subscription_pages
    return await EventStream.begun(frames_of(pages(params, context), say, fault), handler.leaving, handler.clock)
