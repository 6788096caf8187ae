"""An unmodified a2a-sdk executor that takes its time: something to watch, and to cancel."""

import asyncio

from a2a.helpers import new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill

from .app import a2a

STEPS = 30


class SlowExecutor(AgentExecutor):
    """Reports a step a second; the text of the message may say how many."""

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
        description="Works for a while, a step a second. Cancel it.",
        version="1.0.0",
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="slow", name="slow", description="Takes its time.", tags=["sample"])],
    ),
    # by name: imported in workers, not in the gateway
    executor=f"{__name__}:SlowExecutor",
)
