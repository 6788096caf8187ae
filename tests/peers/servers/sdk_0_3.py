"""Server of a2a-sdk 0.3 with an executor that behaves like the sample. Arguments: a port and a binding."""

from __future__ import annotations

import asyncio
import sys

import httpx
import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2ARESTFastAPIApplication, A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, Part, TaskState, TextPart
from a2a.utils import new_agent_text_message, new_task


class SampleExecutor(AgentExecutor):
    """Executor that counts ("count 3"), asks ("ask"), works until cancelled ("wait"), raises ("fail"), or echoes."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        task = context.current_task
        if task is None:
            task = new_task(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        text = context.get_user_input()
        if task.status.state == TaskState.input_required:
            text = f"{text} it is"
        await updater.start_work()
        match text.split():
            case ["ask"]:
                await updater.update_status(
                    TaskState.input_required, new_agent_text_message("Which colour?"), final=True
                )
                return
            case ["wait"]:
                await asyncio.Event().wait()
            case ["fail"]:
                raise RuntimeError("a secret of the agent")
            case ["count", number]:
                for count in range(int(number)):
                    last = count == int(number) - 1
                    parts = [Part(root=TextPart(text=f"{count} "))]
                    await updater.add_artifact(parts, artifact_id="counts", append=count > 0, last_chunk=last)
            case _:
                await updater.add_artifact([Part(root=TextPart(text=text))])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


port, binding = int(sys.argv[1]), sys.argv[2]
card = AgentCard(
    name="Sample Agent",
    description="Does what its messages say.",
    version="1.0.0",
    url=f"http://127.0.0.1:{port}",
    preferred_transport=binding,
    capabilities=AgentCapabilities(streaming=True, push_notifications=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="sample", name="Sample", description="Counts, asks, waits, fails.", tags=["sample"])],
)
configs = InMemoryPushNotificationConfigStore()
handler = DefaultRequestHandler(
    SampleExecutor(),
    InMemoryTaskStore(),
    push_config_store=configs,
    push_sender=BasePushNotificationSender(httpx.AsyncClient(), configs),
)
application = A2AStarletteApplication if binding == "JSONRPC" else A2ARESTFastAPIApplication
uvicorn.run(application(card, handler).build(), port=port, log_level="warning")
