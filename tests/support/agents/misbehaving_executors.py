"""Executor that imitates unusual behaviour of frameworks. The first message of a task names the behaviour."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from a2a.helpers import get_message_text
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.types import (
    Artifact,
    Message,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils import errors

from tests.support.agents.basic import a2a, app, card

__all__ = ["app"]


class Actions:
    """Sender of events for a task, with the fields of the request that the behaviours need."""

    def __init__(self, context: RequestContext, queue: EventQueue) -> None:
        task, self.text = context.current_task, context.get_user_input()
        self.behaviour = self.text if task is None else get_message_text(task.history[0])
        self.follows_up = task is not None
        self.queue = queue
        self.ids = {"task_id": context.task_id or "", "context_id": context.context_id or ""}

    async def status(self, name: str, text: str | None = None, **ids: str) -> None:
        """Send a status. For None as `text`, the status has no message. For "", the message has no parts."""
        status = TaskStatus(state=TaskState.Value(f"TASK_STATE_{name}"))
        if text is not None:
            status.message.CopyFrom(Message(message_id="m", parts=[Part(text=text)] if text else []))
        await self.queue.enqueue_event(TaskStatusUpdateEvent(status=status, **{**self.ids, **ids}))

    async def artifact(self, text: str, *, append: bool = False, **ids: str) -> None:
        """Send a chunk of the artifact "a"."""
        artifact = Artifact(artifact_id="a", parts=[Part(text=text)])
        await self.queue.enqueue_event(TaskArtifactUpdateEvent(artifact=artifact, append=append, **{**self.ids, **ids}))


BEHAVIOURS: dict[str, Callable[[Actions], Awaitable[None]]] = {}


def behaviour(function: Callable[[Actions], Awaitable[None]]) -> Callable[[Actions], Awaitable[None]]:
    """Register a behaviour under the name of its function."""
    BEHAVIOURS[function.__name__] = function
    return function


@behaviour
async def artifacts_without_working(on: Actions) -> None:
    await on.artifact("one ")
    await on.artifact("two", append=True)
    await on.status("COMPLETED")


@behaviour
async def submitted_each_time(on: Actions) -> None:
    task = Task(id=on.ids["task_id"], context_id=on.ids["context_id"])
    task.status.state = TaskState.TASK_STATE_SUBMITTED
    await on.queue.enqueue_event(task)
    await on.status("SUBMITTED")
    await on.status("WORKING")
    await on.status("COMPLETED" if on.follows_up else "INPUT_REQUIRED")


@behaviour
async def artifacts_on_a_follow_up(on: Actions) -> None:
    await on.artifact("two" if on.follows_up else "one ", append=on.follows_up)
    await on.status("COMPLETED" if on.follows_up else "INPUT_REQUIRED")


@behaviour
async def messages_without_parts(on: Actions) -> None:
    await on.status("WORKING", "")
    await on.status("WORKING", "")
    await on.status("COMPLETED", "")


@behaviour
async def answer_without_parts(on: Actions) -> None:
    await on.queue.enqueue_event(Message(message_id="m"))


@behaviour
async def parts_without_content(on: Actions) -> None:
    artifact = Artifact(artifact_id="a", parts=[Part(), Part(text="one")])
    await on.queue.enqueue_event(TaskArtifactUpdateEvent(artifact=artifact, **on.ids))
    await on.queue.enqueue_event(TaskArtifactUpdateEvent(artifact=Artifact(artifact_id="b"), **on.ids))
    status = TaskStatus(state=TaskState.TASK_STATE_COMPLETED, message=Message(message_id="m", parts=[Part()]))
    await on.queue.enqueue_event(TaskStatusUpdateEvent(status=status, **on.ids))


@behaviour
async def artifact_replaced(on: Actions) -> None:
    await on.status("WORKING")
    await on.artifact("draft, ")
    await on.artifact("continued", append=True)
    await on.artifact("final")
    await on.status("COMPLETED")


@behaviour
async def append_to_nothing(on: Actions) -> None:
    await on.artifact("one", append=True)
    await on.status("COMPLETED")


@behaviour
async def wrong_ids(on: Actions) -> None:
    await on.status("WORKING", task_id="another", context_id="elsewhere")
    await on.artifact("mine", task_id="another")
    await on.status("COMPLETED", "done", context_id="elsewhere")


@behaviour
async def canceled_twice(on: Actions) -> None:
    await on.status("CANCELED", "first")
    await on.status("CANCELED", "second")


@behaviour
async def more_after_the_end(on: Actions) -> None:
    await on.status("COMPLETED", "done")
    await on.status("WORKING", "again")
    await on.artifact("late")
    await on.status("FAILED", "no")
    await on.queue.enqueue_event(Message(message_id="m", parts=[Part(text="and another thing")]))


@behaviour
async def no_end(on: Actions) -> None:
    await on.status("WORKING")
    await on.artifact("all of it")


@behaviour
async def nothing_at_all(on: Actions) -> None:
    return


@behaviour
async def paused_and_returned(on: Actions) -> None:
    await on.status("INPUT_REQUIRED", "which?")


@behaviour
async def paused_then_an_artifact(on: Actions) -> None:
    await on.status("AUTH_REQUIRED", "who?")
    await on.artifact("form")


@behaviour
async def paused_and_went_on(on: Actions) -> None:
    await on.status("INPUT_REQUIRED", "which?")
    await on.status("WORKING", "never mind")


@behaviour
async def swallows_its_cancellation(on: Actions) -> None:
    await until_cancelled(on)


@behaviour
async def completes_when_cancelled(on: Actions) -> None:
    await until_cancelled(on)
    await on.artifact("half")
    await on.status("COMPLETED", "done")


@behaviour
async def answers_when_cancelled(on: Actions) -> None:
    await until_cancelled(on)
    await on.queue.enqueue_event(Message(message_id="m", parts=[Part(text="bye")]))


@behaviour
async def pauses_when_cancelled(on: Actions) -> None:
    await until_cancelled(on)
    await on.status("INPUT_REQUIRED", "sure?")


@behaviour
async def fails_when_cancelled(on: Actions) -> None:
    await until_cancelled(on)
    raise RuntimeError("a secret")


@behaviour
async def canceled_twice_when_cancelled(on: Actions) -> None:
    await until_cancelled(on)
    await on.status("CANCELED", "second")


@behaviour
async def canceled_when_late(on: Actions) -> None:
    await until_cancelled(on)
    await on.status("CANCELED", "not by me")


async def until_cancelled(on: Actions) -> None:
    """Sleep for an hour, or until cancelled. Suppress the cancellation."""
    await on.status("WORKING")
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        return


@behaviour
async def wants_a_number(on: Actions) -> None:
    await pick(on, "INPUT_REQUIRED")


@behaviour
async def wants_a_password(on: Actions) -> None:
    await pick(on, "AUTH_REQUIRED")


async def pick(on: Actions, pause: str) -> None:
    """Interrupt the task in the state `pause`, and reject every answer that is not a number. Delay the rejection if the
    answer contains "slow"."""
    await on.status("WORKING")
    if not on.follows_up:
        await on.status(pause, "a number?")
    elif on.text.isdigit():
        await on.status("COMPLETED", f"{on.text} it is")
    else:
        await asyncio.sleep(1.5 if "slow" in on.text else 0)
        raise errors.InvalidParamsError(f"{on.text} is no number")


class MisbehavingExecutor(AgentExecutor):
    """Executor that executes the behaviour, or raises the A2A error, that the first message names."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        on = Actions(context, event_queue)
        if on.behaviour not in BEHAVIOURS:
            raise getattr(errors, on.behaviour)("not such a message")
        await BEHAVIOURS[on.behaviour](on)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        on = Actions(context, event_queue)
        if on.behaviour == "canceled_twice_when_cancelled":
            await on.status("CANCELED", "first")


a2a.add_agent(card("odd"), MisbehavingExecutor)
a2a.add_agent(card("odd-limited"), MisbehavingExecutor, time_limit=1)
