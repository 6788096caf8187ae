"""Request handler through which the bindings of the SDK (gRPC, and all bindings of protocol 0.3) perform operations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

from a2a.server.request_handlers.request_handler import RequestHandler

from ...lifecycle import Event
from ...store.log.follower import StreamEvent
from ..call import Call
from ..handler import OPERATIONS
from ..pipeline import perform, stream

Convert: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Function that converts a result or an event to the form of a binding."""


async def unchanged(result: Any) -> Any:
    """Return `result`."""
    return result


class SdkHandler(RequestHandler):
    """Handler of calls whose context is a `Call`. Each method performs the operation of its name; the results are
    messages of A2A."""

    async def perform(self, operation: str, params: Any, call: Call, convert: Convert = unchanged) -> Any:
        """Perform an operation that does not stream, and return its result as `convert` returns it."""
        return await perform(OPERATIONS[operation], params, call, convert)

    async def stream(
        self, operation: str, params: Any, call: Call, convert: Convert = unchanged
    ) -> AsyncGenerator[Any, None]:
        """Perform an operation that streams, and yield its events one at a time as `convert` returns them. Before each
        event, set `Call.is_last` and add the id of the event to `Call.event_ids`."""

        async def write(page: list[StreamEvent]) -> list[tuple[StreamEvent, Any]]:
            converted = []
            for event in page:
                call.is_last = event.is_last
                converted.append((event, await convert(event.event)))
            return converted

        async with aclosing(stream(OPERATIONS[operation], params, call, write)) as pages:
            del params
            async for page in pages:
                for event, converted in page:
                    if call.event_ids is not None:
                        call.event_ids.append(event.id)
                    yield converted

    async def on_message_send(self, params: Any, context: Any) -> Any:
        return await self.perform("SendMessage", params, context)

    def on_message_send_stream(self, params: Any, context: Any) -> AsyncGenerator[Event, None]:
        return self.stream("SendStreamingMessage", params, context)

    def on_subscribe_to_task(self, params: Any, context: Any) -> AsyncGenerator[Event, None]:
        return self.stream("SubscribeToTask", params, context)

    async def on_get_task(self, params: Any, context: Any) -> Any:
        return await self.perform("GetTask", params, context)

    async def on_list_tasks(self, params: Any, context: Any) -> Any:
        return await self.perform("ListTasks", params, context)

    async def on_cancel_task(self, params: Any, context: Any) -> Any:
        return await self.perform("CancelTask", params, context)

    async def on_create_task_push_notification_config(self, params: Any, context: Any) -> Any:
        return await self.perform("CreateTaskPushNotificationConfig", params, context)

    async def on_get_task_push_notification_config(self, params: Any, context: Any) -> Any:
        return await self.perform("GetTaskPushNotificationConfig", params, context)

    async def on_list_task_push_notification_configs(self, params: Any, context: Any) -> Any:
        return await self.perform("ListTaskPushNotificationConfigs", params, context)

    async def on_delete_task_push_notification_config(self, params: Any, context: Any) -> Any:
        return await self.perform("DeleteTaskPushNotificationConfig", params, context)

    async def on_get_extended_agent_card(self, params: Any, context: Any) -> Any:
        return await self.perform("GetExtendedAgentCard", params, context)
