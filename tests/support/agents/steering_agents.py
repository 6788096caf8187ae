"""Agents that receive messages while they work, of each kind and for each value of `on_message`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

from a2a.helpers import get_message_text
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Part

from a2a_celery import Turn
from tests.support.agents.basic import Patient, a2a, app, card  # noqa: F401  the app of these agents


def may_end(task_id: str) -> bool:
    """Return True if the test has allowed the agent to return."""
    return (Path(os.environ["TEST_FOLDER"]) / f"{task_id}.may-end").exists()


async def wait_until_allowed(task_id: str) -> None:
    """Wait until the test has allowed the agent to return."""
    while not may_end(task_id):  # noqa: ASYNC110 - the test creates the file
        await asyncio.sleep(0.05)


@a2a.agent("listens", on_message="steer", max_attempts=3)
async def listens(turn: Turn) -> str:
    """Repeat the client's messages until one is "done"."""
    texts = [turn.text]
    async for message in turn.incoming():
        texts.append(get_message_text(message))
        await turn.say(f"heard {texts[-1]}")
        if texts[-1] == "done":
            break
    return " ".join(texts)


@a2a.agent("sync-listens", on_message="steer")
def sync_listens(turn: Turn) -> Iterator[str]:
    """Repeat the client's messages until one is "done", from a plain function."""
    yield turn.text
    for message in turn.blocking.incoming():
        yield f" {get_message_text(message)}"
        if get_message_text(message) == "done":
            return


@a2a.agent("polls", on_message="steer")
async def polls(turn: Turn) -> str:
    """Wait for the permission of the test, and then read the messages that have arrived."""
    await wait_until_allowed(turn.task_id)
    return " ".join([turn.text, *map(get_message_text, await turn.poll_messages())])


@a2a.agent("ignores", on_message="steer")
async def ignores(turn: Turn) -> str:
    """Return the first message without reading later messages."""
    await wait_until_allowed(turn.task_id)
    return turn.text


@a2a.agent("asks", on_message="steer")
async def asks(turn: Turn) -> str:
    """Read a message and ask a question. Return the texts of both messages and the answer."""
    async for message in turn.incoming():
        steer_text = get_message_text(message)
        break
    answer = await turn.ask(f"After {steer_text}?")
    return f"{turn.text} {steer_text} {answer}"


class Listens(Patient):
    """Executor that repeats the client's messages until one is "done"."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        texts = [context.get_user_input()]
        async for message in context.call_context.state["a2a_incoming"].follow():
            texts.append(get_message_text(message))
            if texts[-1] == "done":
                break
        await updater.add_artifact([Part(text=" ".join(texts))])
        await updater.complete()


a2a.add_agent(card("executor-listens"), Listens, on_message="steer")


@a2a.agent("yields-to-messages", on_message="interrupt", cancel_grace=5)
async def yields_to_messages(turn: Turn) -> str:
    """Work until a message interrupts the run if the message begins with "work". Otherwise, return the run's number
    and the message."""
    if turn.text.startswith("work"):
        await asyncio.sleep(3600)
    return f"{turn.number} {turn.text}"


@a2a.agent("sync-yields-to-messages", on_message="interrupt", cancel_grace=5)
def sync_yields_to_messages(turn: Turn) -> str:
    """Behave like `yields_to_messages`, as a plain function."""
    while turn.text.startswith("work") and not turn.cancelled:
        time.sleep(0.02)
    return f"{turn.number} {turn.text}"


class YieldsToMessages(Patient):
    """Executor that works until a message interrupts the run, and reports CANCELED, as framework executors do."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Work until cancelled if the message begins with "work". Otherwise, send the text of the message as an
        artifact."""
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        try:
            if context.get_user_input().startswith("work"):
                await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await updater.cancel()
            raise
        await updater.add_artifact([Part(text=context.get_user_input())])
        await updater.complete()


a2a.add_agent(card("executor-yields"), YieldsToMessages, on_message="interrupt", cancel_grace=5)


@a2a.agent("ignores-interrupts", on_message="interrupt", cancel_grace=1)
async def ignores_interrupts(turn: Turn) -> str:
    """Block the event loop if the message is "work"."""
    if turn.text == "work":
        time.sleep(3600)  # noqa: ASYNC251 - the agent blocks the loop
    return turn.text


@a2a.agent("refuses", on_message="reject")
async def refuses(turn: Turn) -> str:
    """Work until the test allows the agent to return."""
    await wait_until_allowed(turn.task_id)
    return turn.text


@a2a.agent("queues")
async def queues(turn: Turn) -> str:
    """Wait for the permission of the test, and ask a question."""
    await wait_until_allowed(turn.task_id)
    return f"{turn.text} {await turn.ask('which?')}"
