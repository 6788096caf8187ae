"""Notifications as Celery tasks: a receiver answers its sender when the broker has the event, and workers handle it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from .notifications import Notification


class Publishes(Protocol):
    """What is needed of a Celery task, or of a signature."""

    def apply_async(self, **options: Any) -> Any:
        """Publishes it."""
        ...


def to_task(task: Publishes, **options: Any) -> Callable[[Notification], Awaitable[None]]:
    """A handler for `receiver_app` that publishes `task` with each notification, in order.

    The task is called with `notification`, the JSON of one: ``Notification.from_dict`` reads it. Its Celery id is the
    notification's, the same for an event that comes again. `options` are Celery's (queue, priority …). What the broker
    does not take is answered with 500, and comes again; so it is handed on at least once. Workers that run several
    tasks at a time keep no order: give the task a queue with a worker of one slot, or look at the version.
    """

    async def hand_on(notification: Notification) -> None:
        await asyncio.to_thread(
            task.apply_async, kwargs={"notification": notification.to_dict()}, **{"task_id": notification.id, **options}
        )

    return hand_on
