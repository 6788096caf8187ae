"""A claimed run with its event queue, on a store that can be held up and that can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from celery import Task
from celery.app.trace import build_tracer

from a2a_celery.dispatch import RUN_HEADER
from a2a_celery.errors import StoreUnavailable
from a2a_celery.execution.events import RunEvents
from a2a_celery.lifecycle import Completed, final_event
from a2a_celery.store import AsyncStore, Keys, Operation
from a2a_celery.store.runs import Claim, RunRef
from tests.support.seeds import Seeds
from tests.support.waiting import eventually_async

T = TypeVar("T")


def perform_run(task: Task, celery_id: str, *args: Any, **kwargs: Any) -> Any:
    """Call a run's Celery task as a pool's thread or child does. Return Celery's result with its state."""
    message = {"id": celery_id, "delivery_info": {}, "headers": {RUN_HEADER: True}, RUN_HEADER: True}
    return build_tracer(task.name, task, app=task.app)(celery_id, args, kwargs, message)


LONG = 60.0
"""A hold that does not end within a test."""


class Gate(AsyncStore):
    """A store that can be held up, and that can fail before or after it has done what it was asked."""

    def __init__(self, store: AsyncStore) -> None:
        self.store = store
        self.calls: list[str] = []
        self.open = asyncio.Event()
        self.open.set()
        self.lose_answers = 0
        self.refuse = 0

    async def run(self, operation: Operation[T]) -> T:
        """See `AsyncStore.run`."""
        await self.open.wait()
        self.calls.append(operation.script.name)
        if self.refuse:
            self.refuse -= 1
            raise StoreUnavailable("away")
        answer = await self.store.run(operation)
        if self.lose_answers:
            self.lose_answers -= 1
            raise StoreUnavailable("the answer was lost")
        return answer


class Scene:
    """A claimed run with its events on a gate."""

    def __init__(self, gate: Gate, keys: Keys, seeds: Seeds) -> None:
        self.gate, self.keys, self.seeds = gate, keys, seeds
        self.published: list[int] = []
        self.opened: list[RunEvents] = []

    async def begin(
        self, *, hold: float = LONG, claim: Claim | None = None, working: bool = True
    ) -> tuple[Claim, RunEvents]:
        """A run and its event queue."""
        claim = claim or await self.seeds.claimed(working=working)

        async def publish_next(run: RunRef, options: bytes) -> None:
            self.published.append(run.run)

        events = RunEvents(self.gate, self.keys, claim, hold=hold, input_timeout=None, publish_next=publish_next)
        self.opened.append(events)
        return claim, events

    async def settle(self, claim: Claim, events: RunEvents, outcome: Any = None) -> None:
        """The run ends, as `Run` would end it."""
        async with asyncio.timeout(20):
            await events.settle(final_event(outcome or Completed(), claim.task.id, claim.task.context_id))

    async def texts(self, task_id: str) -> list[str]:
        """The texts of the first artifact's parts."""
        task = await self.seeds.task(task_id)
        return [part.text for part in task.artifacts[0].parts]


def until(condition: Callable[[], Awaitable[bool]]) -> Awaitable[bool]:
    """Returns when the condition holds."""
    return eventually_async(condition)
