"""Cancelling what a step has begun: a Celery task too, `a2a.cancel`, so that it outlives its worker."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from threading import Thread
from typing import Any

from a2a.utils.errors import A2AError, InternalError
from celery import Celery, Task

from ..failures import AgentUnreachable, RemoteError
from .content import message_of
from .loop import CallsPerProcess
from .remotes import Remote, find

logger = logging.getLogger(__name__)

NAME = "a2a.cancel"

TRIES = 12
"""Each twice as long after the last, from a second on: about an hour."""


def cancel_task(app: Celery, remotes: Mapping[str, Remote], calls: CallsPerProcess, options: dict[str, Any]) -> Task:
    """Makes `a2a.cancel` a task of `app`, with the Celery `options` of the steps that it is for."""

    def cancel(
        self: Task, url: str, task_id: str = "", content: Sequence[Any] = (), message_id: str = "", **where: str
    ) -> str:
        """Cancels a remote task; without its id, the one that the same message made. Gives its state."""
        remote = find(remotes, url)
        here = calls.here()

        async def ask() -> str:
            async with here.agent(remote) as agent:
                wanted = task_id or (await agent.submit(message_of(content, message_id, **where))).task_id
                return (await agent.cancel(wanted)).state_name if wanted else ""

        try:
            return here.run(ask())
        except (AgentUnreachable, InternalError) as e:
            asked = getattr(e, "retry_after", None) or 0.0
            raise self.retry(countdown=min(max(2.0**self.request.retries, asked), 600.0), exc=e) from None
        except (A2AError, RemoteError) as e:
            logger.warning("task %s of %s was not cancelled: %s", task_id, remote.url, e)
            return type(e).__name__

    attributes = {"run": cancel, "name": NAME, "acks_late": True, "reject_on_worker_lost": True, "max_retries": TRIES}
    queue = {name: value for name, value in options.items() if name in ("queue", "priority")}
    return app.register_task(type("CancelTask", (Task,), {**queue, "ignore_result": True, **attributes})())


def cancel_there(canceling: Task, delivery_info: Mapping[str, Any] | None, **kwargs: Any) -> None:
    """Has a task cancelled by any worker of the queue that its step came from; does not wait for the broker."""
    info = delivery_info or {}
    exchange, routing_key = info.get("exchange"), info.get("routing_key")
    if not exchange and routing_key:
        route = {"queue": routing_key}
    else:
        route = {name: value for name, value in (("exchange", exchange), ("routing_key", routing_key)) if value}

    def publish() -> None:
        try:
            canceling.apply_async(kwargs=kwargs, **route)
        except Exception:
            logger.exception(
                "task %s of %s is not cancelled: the broker did not take it", kwargs.get("task_id"), kwargs["url"]
            )

    Thread(target=publish, name="a2a-cancel", daemon=True).start()
