"""The queues that runs of agents go to."""

from __future__ import annotations

from celery import Celery

from ..agents import Agent
from .publisher import entry_name


def queue_of(app: Celery, agent: Agent) -> str | None:
    """Return the queue for the runs of `agent` without a `route` of its own, or None if its options name none."""
    name, options = entry_name(agent.name), dict(agent.options)
    if agent.kind == "task":
        name = agent.code.name
        if getattr(agent.code, "queue", None):
            options.setdefault("queue", agent.code.queue)
    queue = app.amqp.router.route(options, name).get("queue")
    return None if queue is None else str(getattr(queue, "name", queue))
