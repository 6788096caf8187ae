"""Agent that behaves as the A2A Technology Compatibility Kit (TCK) requires.

The id of a message selects the behaviour. Source: `scenarios/*.feature` of the kit for A2A 1.0.
"""

from __future__ import annotations

import asyncio
import os

from a2a.helpers import new_data_part, new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, Part
from celery import Celery

from a2a_celery import A2A, Rejected

app = Celery("tck")
app.conf.task_default_queue = os.environ.get("TEST_QUEUE", "celery")
a2a = A2A(app)

ARTIFACTS = {
    "tck-artifact-file-url": Part(url="https://example.com/output.txt", filename="output.txt", media_type="text/plain"),
    "tck-artifact-file": Part(raw=b"tck", filename="output.txt", media_type="text/plain"),
    "tck-artifact-text": Part(text="Generated text content"),
    "tck-artifact-data": new_data_part({"key": "value", "count": 42}),
    "tck-stream-001": Part(text="Stream hello from TCK"),
    "tck-stream-003": Part(text="Stream task lifecycle"),
    "tck-stream-ordering-001": Part(text="Ordered output"),
    "tck-stream-artifact-text": Part(text="Streamed text content"),
    "tck-stream-artifact-file": Part(raw=b"tck", filename="output.txt", media_type="text/plain"),
}
"""Artifact of a completed task, by the prefix of the message's id. A longer prefix precedes a shorter one."""


class TckAgent(AgentExecutor):
    """Executor with the behaviours of the kit."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Act as the id of the message requires."""
        assert context.message is not None
        assert context.task_id is not None
        assert context.context_id is not None
        updater, message_id = TaskUpdater(event_queue, context.task_id, context.context_id), context.message.message_id
        if message_id.startswith("tck-message-response"):
            await event_queue.enqueue_event(new_text_message("Direct message response", context_id=context.context_id))
            return
        if message_id.startswith("tck-reject-task"):
            raise Rejected("rejected")
        if message_id.startswith(("test-resubscribe-message-id", "tck-stream-")):
            await updater.start_work()
        if message_id.startswith("test-resubscribe-message-id"):
            await asyncio.sleep(4)  # twice the kit's TCK_STREAMING_TIMEOUT
        elif message_id.startswith("tck-input-required") or not message_id.startswith("tck-"):
            await updater.requires_input()  # the kit for A2A 0.3 continues and cancels the tasks of all other messages
            return
        if message_id.startswith("tck-stream-artifact-chunked"):
            await updater.add_artifact([Part(text="chunk-1 ")], artifact_id="chunked", last_chunk=False)
            await updater.add_artifact([Part(text="chunk-2")], artifact_id="chunked", append=True, last_chunk=True)
        part = next((part for prefix, part in ARTIFACTS.items() if message_id.startswith(prefix)), None)
        if part is not None:
            await updater.add_artifact([part])
        await updater.complete(new_text_message("Hello from TCK", context_id=context.context_id))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do nothing, because the executor has ended or is cancelled."""


CARD = AgentCard(
    name="TCK",
    description="Behaves as the A2A TCK requires.",
    version="1.0.0",
    capabilities=AgentCapabilities(
        streaming="TCK_MINIMAL" not in os.environ, push_notifications="TCK_MINIMAL" not in os.environ
    ),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="tck", name="TCK", description="Behaves as the A2A TCK requires.", tags=["test"])],
)
a2a.add_agent(CARD, TckAgent, name="tck")
