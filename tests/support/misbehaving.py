"""An executor with the odd manners of frameworks: it plays the part that its task's first message names."""

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

from .agents import a2a, app, card

__all__ = ["app"]


class Stage:
    """The request, and its event queue in fewer words."""

    def __init__(self, context: RequestContext, queue: EventQueue) -> None:
        task, self.heard = context.current_task, context.get_user_input()
        self.part = self.heard if task is None else get_message_text(task.history[0])
        self.follows_up = task is not None
        self.queue = queue
        self.ids = {"task_id": context.task_id or "", "context_id": context.context_id or ""}

    async def status(self, name: str, text: str | None = None, **ids: str) -> None:
        """A status; `text` None: without a message, "": with one that has no parts."""
        status = TaskStatus(state=TaskState.Value(f"TASK_STATE_{name}"))
        if text is not None:
            status.message.CopyFrom(Message(message_id="m", parts=[Part(text=text)] if text else []))
        await self.queue.enqueue_event(TaskStatusUpdateEvent(status=status, **{**self.ids, **ids}))

    async def artifact(self, text: str, *, append: bool = False, **ids: str) -> None:
        """A chunk of the artifact "a"."""
        artifact = Artifact(artifact_id="a", parts=[Part(text=text)])
        await self.queue.enqueue_event(TaskArtifactUpdateEvent(artifact=artifact, append=append, **{**self.ids, **ids}))


PARTS: dict[str, Callable[[Stage], Awaitable[None]]] = {}


def part(played: Callable[[Stage], Awaitable[None]]) -> Callable[[Stage], Awaitable[None]]:
    """A part in the play, under its function's name."""
    PARTS[played.__name__] = played
    return played


@part
async def artifacts_without_working(on: Stage) -> None:
    await on.artifact("one ")
    await on.artifact("two", append=True)
    await on.status("COMPLETED")


@part
async def submitted_each_time(on: Stage) -> None:
    task = Task(id=on.ids["task_id"], context_id=on.ids["context_id"])
    task.status.state = TaskState.TASK_STATE_SUBMITTED
    await on.queue.enqueue_event(task)
    await on.status("SUBMITTED")
    await on.status("WORKING")
    await on.status("COMPLETED" if on.follows_up else "INPUT_REQUIRED")


@part
async def artifacts_on_a_follow_up(on: Stage) -> None:
    await on.artifact("two" if on.follows_up else "one ", append=on.follows_up)
    await on.status("COMPLETED" if on.follows_up else "INPUT_REQUIRED")


@part
async def messages_without_parts(on: Stage) -> None:
    await on.status("WORKING", "")
    await on.status("WORKING", "")
    await on.status("COMPLETED", "")


@part
async def answer_without_parts(on: Stage) -> None:
    await on.queue.enqueue_event(Message(message_id="m"))


@part
async def artifact_replaced(on: Stage) -> None:
    await on.status("WORKING")
    await on.artifact("draft, ")
    await on.artifact("continued", append=True)
    await on.artifact("final")
    await on.status("COMPLETED")


@part
async def append_to_nothing(on: Stage) -> None:
    await on.artifact("one", append=True)
    await on.status("COMPLETED")


@part
async def wrong_ids(on: Stage) -> None:
    await on.status("WORKING", task_id="another", context_id="elsewhere")
    await on.artifact("mine", task_id="another")
    await on.status("COMPLETED", "done", context_id="elsewhere")


@part
async def canceled_twice(on: Stage) -> None:
    await on.status("CANCELED", "first")
    await on.status("CANCELED", "second")


@part
async def more_after_the_end(on: Stage) -> None:
    await on.status("COMPLETED", "done")
    await on.status("WORKING", "again")
    await on.artifact("late")
    await on.status("FAILED", "no")
    await on.queue.enqueue_event(Message(message_id="m", parts=[Part(text="and another thing")]))


@part
async def no_end(on: Stage) -> None:
    await on.status("WORKING")
    await on.artifact("all of it")


@part
async def nothing_at_all(on: Stage) -> None:
    return


@part
async def paused_and_returned(on: Stage) -> None:
    await on.status("INPUT_REQUIRED", "which?")


@part
async def paused_then_an_artifact(on: Stage) -> None:
    await on.status("AUTH_REQUIRED", "who?")
    await on.artifact("form")


@part
async def paused_and_went_on(on: Stage) -> None:
    await on.status("INPUT_REQUIRED", "which?")
    await on.status("WORKING", "never mind")


@part
async def swallows_its_cancellation(on: Stage) -> None:
    await until_cancelled(on)


@part
async def completes_when_cancelled(on: Stage) -> None:
    await until_cancelled(on)
    await on.artifact("half")
    await on.status("COMPLETED", "done")


@part
async def answers_when_cancelled(on: Stage) -> None:
    await until_cancelled(on)
    await on.queue.enqueue_event(Message(message_id="m", parts=[Part(text="bye")]))


@part
async def pauses_when_cancelled(on: Stage) -> None:
    await until_cancelled(on)
    await on.status("INPUT_REQUIRED", "sure?")


@part
async def fails_when_cancelled(on: Stage) -> None:
    await until_cancelled(on)
    raise RuntimeError("a secret")


@part
async def canceled_twice_when_cancelled(on: Stage) -> None:
    await until_cancelled(on)
    await on.status("CANCELED", "second")


@part
async def canceled_when_late(on: Stage) -> None:
    await until_cancelled(on)
    await on.status("CANCELED", "not by me")


async def until_cancelled(on: Stage) -> None:
    """Works for an hour, and swallows the cancellation."""
    await on.status("WORKING")
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        return


@part
async def wants_a_number(on: Stage) -> None:
    await pick(on, "INPUT_REQUIRED")


@part
async def wants_a_password(on: Stage) -> None:
    await pick(on, "AUTH_REQUIRED")


async def pick(on: Stage, pause: str) -> None:
    """Pauses, and refuses every answer that is no number; "slow" ones after a while."""
    await on.status("WORKING")
    if not on.follows_up:
        await on.status(pause, "a number?")
    elif on.heard.isdigit():
        await on.status("COMPLETED", f"{on.heard} it is")
    else:
        await asyncio.sleep(1.5 if "slow" in on.heard else 0)
        raise errors.InvalidParamsError(f"{on.heard} is no number")


class Odd(AgentExecutor):
    """Plays. What is no part is the name of an A2A error, which it raises."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        on = Stage(context, event_queue)
        if on.part not in PARTS:
            raise getattr(errors, on.part)("not such a message")
        await PARTS[on.part](on)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        on = Stage(context, event_queue)
        if on.part == "canceled_twice_when_cancelled":
            await on.status("CANCELED", "first")


a2a.add_agent(card("odd"), Odd)
a2a.add_agent(card("odd-limited"), Odd, time_limit=1)
