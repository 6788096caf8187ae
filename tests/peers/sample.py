"""Executor like those of the SDK's samples. It imports nothing but the SDK, and runs in the SDK's server and in
workers."""

from __future__ import annotations

import asyncio

from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, TaskState

CARD = AgentCard(
    name="Sample Agent",
    description="Does what its messages say.",
    version="1.0.0",
    capabilities=AgentCapabilities(streaming=True, push_notifications=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="sample", name="Sample", description="Counts, asks, waits, fails.", tags=["sample"])],
)


class SampleExecutor(AgentExecutor):
    """Executor that counts ("count 3"), asks ("ask"), works until cancelled ("wait"), raises ("fail"), or echoes."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        text = context.get_user_input()
        if task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED:
            text = f"{text} it is"
        await updater.start_work()
        match text.split():
            case ["ask"]:
                await updater.requires_input(new_text_message("Which colour?"))
                return
            case ["wait"]:
                await asyncio.Event().wait()
            case ["fail"]:
                raise RuntimeError("a secret of the agent")
            case ["count", number]:
                for count in range(int(number)):
                    last = count == int(number) - 1
                    parts = [new_text_part(f"{count} ")]
                    await updater.add_artifact(parts, artifact_id="counts", append=count > 0, last_chunk=last)
            case _:
                await updater.add_artifact([new_text_part(text)])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()
