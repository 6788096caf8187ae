"""Agents that submit their message to the agent "echo" without a gateway, and return the id of the new task."""

from __future__ import annotations

from a2a_celery import Turn
from tests.support.agents.basic import a2a, app


@a2a.agent("submits")
async def submits(turn: Turn) -> str:
    """Submit from a coroutine."""
    return (await a2a.submit_async("echo", turn.text)).task_id


@a2a.agent("submits-in-a-thread")
def submits_in_a_thread(turn: Turn) -> str:
    """Submit from a plain function."""
    return a2a.submit("echo", turn.text).task_id


@app.task(name="submitting.submits", shared=False)
def submits_in_a_task(text: str) -> str:
    """Submit from a Celery task."""
    return a2a.submit("echo", text).task_id


a2a.expose(submits_in_a_task, name="submits-in-a-task")
