"""Executor that responds with a message instead of a task. The import is slow, like the import of a framework."""

from __future__ import annotations

import asyncio
import json
import time
from uuid import uuid4

from a2a.helpers import new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.types import Message, Role

from tests.support.chaos.agents import Order, mark_run

time.sleep(0.7)


class Direct(AgentExecutor):
    """Executor that responds with a message after the pause of the order."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        order = Order(**json.loads(context.get_user_input()))
        attempt = context.call_context.state["a2a_attempt"]
        with mark_run(context.task_id, 1, attempt) as tag:
            await asyncio.sleep(order.pause)
            answer = Message(message_id=uuid4().hex, role=Role.ROLE_AGENT, parts=[new_text_part(f"{tag}.0=")])
            await event_queue.enqueue_event(answer)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        return
