"""Executor that puts a task into the state that the message names, and an app with the executor, for tests of clients.

The executor runs in fleets and in the SDK's server (`plain_server`).
"""

from __future__ import annotations

import os

from a2a.helpers import new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from celery import Celery

from a2a_celery import A2A
from tests.support.agents.basic import card

# The app is separate, because other tests in the same process count the agents of `agents`.
app = Celery("states", set_as_current=False)
app.conf.task_default_queue = os.environ.get("TEST_QUEUE", "celery")
app.conf.broker_connection_retry_on_startup = True
a2a = A2A(app)

LATER = 42
"""Number of a state that no protocol version defines."""

ENDS = {"COMPLETED", "FAILED", "CANCELED", "REJECTED", "INPUT_REQUIRED", "AUTH_REQUIRED"}


class States(AgentExecutor):
    """Executor that sends the state that the message names.

    After a state that is neither terminal nor interrupted, the executor sends an artifact and completes the task. The
    response to "MESSAGE" is a message without a task.
    """

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        name = context.get_user_input()
        ids = {"task_id": context.task_id or "", "context_id": context.context_id or ""}
        if name == "MESSAGE":
            await event_queue.enqueue_event(new_text_message("MESSAGE it is", role=Role.ROLE_AGENT, **ids))
            return
        if context.current_task is None:
            submitted_status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            task = Task(
                id=ids["task_id"], context_id=ids["context_id"], status=submitted_status, history=[context.message]
            )
            await event_queue.enqueue_event(task)

        async def status(state: int, text: str = "") -> None:
            message = None if not text else Message(message_id=text, role=Role.ROLE_AGENT, parts=[Part(text=text)])
            update = TaskStatusUpdateEvent(status=TaskStatus(state=state, message=message), **ids)  # type: ignore[arg-type]
            await event_queue.enqueue_event(update)

        await status(TaskState.TASK_STATE_WORKING)
        is_known = f"TASK_STATE_{name}" in TaskState.DESCRIPTOR.values_by_name
        if is_known or name == "LATER":
            await status(TaskState.Value(f"TASK_STATE_{name}") if is_known else LATER, f"{name} it is")
        if name not in ENDS:
            artifact = Artifact(artifact_id="a", parts=[Part(text=f"after {name}")])
            await event_queue.enqueue_event(TaskArtifactUpdateEvent(artifact=artifact, **ids))
            await status(TaskState.TASK_STATE_COMPLETED)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        return


a2a.add_agent(card("states"), "tests.support.agents.states:States")
a2a.add_agent(card("states-without-streams", streaming=False), "tests.support.agents.states:States")
