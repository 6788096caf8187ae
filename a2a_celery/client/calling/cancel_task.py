"""Celery task `a2a.cancel`, which cancels the remote task of a step even if the step's worker dies."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from threading import Thread
from typing import Any

from a2a.utils.errors import A2AError, InternalError
from celery import Celery, Task

from ..errors import AgentUnreachable, RemoteError
from .client_loop import ClientLoops, Remote, find_remote
from .content import message_of
from .webhook import Webhook, submit_with_webhook

logger = logging.getLogger(__name__)

NAME = "a2a.cancel"

PUBLISH_TIMEOUT = 10.0
"""Seconds for which a step that gives up waits until the broker has the message of `a2a.cancel`."""

MAX_RETRIES = 12
"""Maximum number of retries. The delay doubles from 1 s to 600 s, and the delays add up to 37 minutes."""


def register_cancel_task(
    app: Celery,
    remotes: Mapping[str, Remote],
    loops: ClientLoops,
    options: dict[str, Any],
    webhook: Webhook | None = None,
) -> Task:
    """Register `a2a.cancel` with `app`, with the queue and priority in `options`."""

    def cancel(
        self: Task,
        url: str,
        task_id: str = "",
        content: Sequence[Any] = (),
        message_id: str = "",
        celery_id: str = "",
        tenant: str = "",
        **fields: Any,
    ) -> str:
        """Cancel a remote task. Without a task id, resend the message with its original id and cancel the task that the
        agent returns. An idempotent agent returns the task only if the request is equal to the first request, which
        contains the webhook of the step `celery_id`.

        Returns:
            The name of the task's state, "" if the agent returned no task, or the class name of the error if the agent
            refuses the call.
        """
        remote = find_remote(remotes, url)
        loop = loops.current()

        async def cancel_remote() -> str:
            async with loop.agent(remote, tenant=tenant) as agent:
                remote_id = task_id
                if not remote_id:
                    message = message_of(content, message_id, **fields)
                    result, _ = await submit_with_webhook(agent, message, webhook, celery_id)
                    remote_id = result.task_id
                return (await agent.cancel(remote_id)).state_name if remote_id else ""

        try:
            return loop.run(cancel_remote())
        except (AgentUnreachable, InternalError) as e:
            retry_after = getattr(e, "retry_after", None) or 0.0
            raise self.retry(countdown=min(max(2.0**self.request.retries, retry_after), 600.0), exc=e) from None
        except (A2AError, RemoteError) as e:
            logger.warning("could not cancel task %s of %s: %s", task_id, remote.url, e)
            return type(e).__name__

    attributes = {
        "run": cancel,
        "name": NAME,
        "acks_late": True,
        "reject_on_worker_lost": True,
        "max_retries": MAX_RETRIES,
    }
    queue = {name: value for name, value in options.items() if name in ("queue", "priority")}
    return app.register_task(type("CancelTask", (Task,), {**queue, "ignore_result": True, **attributes})())


def publish_cancel(
    canceler: Task, delivery_info: Mapping[str, Any] | None, *, max_wait: float = 0.0, **kwargs: Any
) -> None:
    """Publish `a2a.cancel` to the step's queue, in a background thread. Errors are logged.

    Args:
        canceler: Task `a2a.cancel`.
        delivery_info: Delivery info of the step's message, or None for the default queue.
        max_wait: Maximum number of seconds to wait until the broker has the message. The thread ends with its process,
            so a process that may exit must wait.
        kwargs: Arguments of `a2a.cancel`.
    """
    info = delivery_info or {}
    exchange, routing_key = info.get("exchange"), info.get("routing_key")
    if not exchange and routing_key:
        route = {"queue": routing_key}
    else:
        route = {name: value for name, value in (("exchange", exchange), ("routing_key", routing_key)) if value}

    def publish() -> None:
        try:
            canceler.apply_async(kwargs=kwargs, **route)
        except Exception:
            logger.exception(
                "could not publish the Celery task that cancels task %s of %s", kwargs.get("task_id"), kwargs["url"]
            )

    thread = Thread(target=publish, name="a2a-cancel", daemon=True)
    thread.start()
    thread.join(max_wait)
