"""Unmodified a2a-sdk executor that runs for some seconds, so that clients can follow and cancel its task."""

import asyncio

from a2a.helpers import new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill

from .app import a2a

STEPS = 30


class SlowExecutor(AgentExecutor):
    """Executor that reports a step per second. The first number in the message is the number of steps."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        words = [word for word in context.get_user_input().split() if word.isdigit()]
        steps = int(words[0]) if words else STEPS
        for step in range(1, steps + 1):
            message = updater.new_agent_message([new_text_part(f"step {step} of {steps}")])
            await updater.start_work(message)
            await asyncio.sleep(1)
        await updater.add_artifact([new_text_part(f"{steps} steps done")], name="report")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


a2a.add_agent(
    AgentCard(
        name="slow",
        description="Runs for some seconds, one step per second. It can be cancelled.",
        version="1.0.0",
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="slow", name="slow", description="Reports its steps.", tags=["sample"])],
    ),
    # by name, so that workers import the executor, and the gateway does not
    executor=f"{__name__}:SlowExecutor",
)
