"""Dispatcher with an in-memory broker, and store operations that create runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from a2a.types import Message, Part, Role, SendMessageRequest
from celery import Celery

from a2a_celery.clock import SYSTEM_CLOCK, Clock
from a2a_celery.dispatch import Consumer, RunOptions, RunReports
from a2a_celery.errors import BrokerUnavailable, PublicationFailed, RunNotAccepted
from a2a_celery.lifecycle.references import RunRef, Scope
from a2a_celery.store import AsyncStore, Keys, Operation
from a2a_celery.store.tasks.commands import create_task
from a2a_celery.watcher.dispatcher import Dispatcher
from a2a_celery.watcher.metrics import WatcherMetrics
from a2a_celery.watcher.plain_tasks.results import Results

DUE_NOW_US = -1_000_000


class Broker:
    """In-memory broker that can be unavailable or reject the runs of certain tasks.

    Attributes:
        taken: Agent, task and number of each published run.
        options: Options of the last published run of each task.
        down: Raise `BrokerUnavailable`.
        refuses: Ids of the tasks whose runs are rejected.
        raises: Ids of the tasks whose publication raises an exception of the app.
        queues: The broker itself, which also implements the queues.
        waiting: The queue "celery" contains messages.
        asked: Names of the queues that `is_empty` was called with.
        revoked: Celery ids that were revoked.
    """

    def __init__(self) -> None:
        self.taken: list[tuple[str, str, int]] = []
        self.options: dict[str, RunOptions] = {}
        self.down = False
        self.refuses: set[str] = set()
        self.raises: set[str] = set()
        self.queues = self
        self.waiting = False
        self.asked: list[str] = []
        self.revoked: list[str] = []

    def queue_of(self, agent: str, options: RunOptions) -> str | None:
        return options.celery.get("queue", None if "exchange" in options.celery else "celery")

    def priority_of(self, agent: str, options: RunOptions) -> int | None:
        return options.celery.get("priority")

    async def is_empty(self, queue: str) -> bool:
        if self.down:
            raise BrokerUnavailable("down")
        self.asked.append(queue)
        return not (self.waiting and queue == "celery")

    def revoke_soon(self, celery_ids: list[str]) -> None:
        self.revoked += celery_ids

    async def publish_async(self, agent: str, ref: RunRef, options: RunOptions) -> None:
        if self.down:
            raise BrokerUnavailable("down")
        if ref.task_id in self.refuses:
            raise RunNotAccepted("its queue is full")
        if ref.task_id in self.raises:
            raise PublicationFailed("the publication of a run raised AlreadyQueued()")
        self.taken.append((agent, ref.task_id, ref.run))
        self.options[ref.task_id] = options


STOCK, OWN = Consumer(frozenset({"celery"}), claims=False), Consumer(frozenset({"celery"}), claims=True)
"""Workers of the queue "celery", without and with this package."""


class ResultsOfWorkers(Results):
    """Reader of a result backend whose workers reply with `reports`. None is a broker that is down."""

    reports: RunReports | None = RunReports()

    async def find(self, names: Collection[str]) -> RunReports:
        if self.reports is None:
            raise BrokerUnavailable("down")
        return self.reports


def create_operation(keys: Keys, task_id: str, options: bytes = b"") -> Operation[Any]:
    """Return the store operation that creates a task."""
    message = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="x")])
    request = SendMessageRequest(message=message)
    return create_task(keys, Scope("echo"), task_id, "c", request, caller=b"{}", retention=60, options=options)


def dispatcher(
    store: AsyncStore,
    keys: Keys,
    broker: Broker,
    redispatch_after: float = 60,
    clock: Clock = SYSTEM_CLOCK,
    metrics: WatcherMetrics | None = None,
) -> Dispatcher:
    results = Results(store, keys, Celery(set_as_current=False))
    return Dispatcher(store, keys, broker, redispatch_after, results, metrics, clock)  # type: ignore[arg-type]
