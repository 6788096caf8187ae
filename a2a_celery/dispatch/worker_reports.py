"""Reports of the workers that Celery's remote control reaches.

A command is a broadcast. A worker of the solo pool does not reply while it executes a task.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery import Celery

from ..clock import SYSTEM_CLOCK, Clock
from ..features import CELERY_TASKS

REPLY_TIMEOUT = 2.0
"""Seconds within which a worker must reply to a query."""

REMEMBERED = 600.0
"""Seconds for which a worker without this package is assumed to be alive although it does not reply."""


def worker_reports(app: Celery, timeout: float, nodes: Sequence[str] = ()) -> dict[str, Mapping[str, Any]]:
    """Return the reports of the workers that reply; see `ask_workers`.

    A worker whose app has no A2A object would log a traceback for an unknown command, so that it is not asked for a
    report. Its queues and the names of its Celery tasks are returned instead, with an "error".

    Args:
        app: Celery app.
        timeout: Seconds to wait for the workers, and then for the reports of the workers that have replied.
        nodes: Workers to ask, or () for all workers.
    """
    tasks = ask_workers(app, "registered", timeout, nodes)
    with_package = [node for node, names in tasks.items() if not CELERY_TASKS.keys().isdisjoint(names)]
    reports = ask_workers(app, "a2a_report", timeout, with_package) if with_package else {}
    others = [node for node in tasks if node not in with_package]
    queues = ask_workers(app, "active_queues", timeout, others) if others else {}
    for node, entries in queues.items():
        if isinstance(entries, list):  # otherwise an error
            queue_names = [queue["name"] for queue in entries]
            reports[node] = {"error": "its app has no A2A object", "queues": queue_names, "tasks": list(tasks[node])}
    return reports


def ask_workers(
    app: Celery, command: str, timeout: float, nodes: Sequence[str] = (), arguments: Mapping[str, Any] | None = None
) -> dict[str, Mapping[str, Any]]:
    """Send a remote control command, and return the replies that arrive within `timeout` seconds, by node name.

    Args:
        app: Celery app.
        command: Name of the command.
        timeout: Seconds to wait for replies.
        nodes: Workers to ask, or () for all workers. The call returns as soon as all `nodes` have replied.
        arguments: Arguments of the command.

    Raises:
        Exception: The broker is unavailable. Each transport raises its own exceptions.
    """
    target = {"destination": list(nodes), "limit": len(nodes)} if nodes else {}
    replies = app.control.broadcast(command, arguments=arguments, reply=True, timeout=timeout, **target) or []
    return {node: report for reply in replies for node, report in reply.items() if not nodes or node in nodes}


@dataclass(frozen=True, slots=True)
class Consumer:
    """Worker that may consume runs.

    Attributes:
        queues: Queues that the worker consumes, or None if they are unknown.
        claims: True if the worker has this package, so that it claims a run before it executes the run.
    """

    queues: frozenset[str] | None
    claims: bool

    def may_consume(self, queue: str | None) -> bool:
        """Return True if the worker may consume `queue`. None is an unknown queue."""
        return queue is None or self.queues is None or queue in self.queues


@dataclass(frozen=True, slots=True)
class RunReports:
    """Replies of the workers to a query for runs.

    Attributes:
        reported: Names of the runs that workers have fetched or execute.
        workers: Workers that replied, by node name.
        silent: Workers without this package that replied in the last ten minutes and do not reply now, by node name.
    """

    reported: frozenset[str] = frozenset()
    workers: Mapping[str, Consumer] = field(default_factory=dict)
    silent: Mapping[str, Consumer] = field(default_factory=dict)

    def has_consumers(self, queue: str | None) -> bool:
        """Return True if a worker that replied may consume `queue`."""
        return any(worker.may_consume(queue) for worker in self.workers.values())

    def are_claimed(self, queue: str | None) -> bool:
        """Return True if every run of `queue` is claimed before it is executed, so that a copy of its message is
        harmless."""
        workers = (*self.workers.values(), *self.silent.values())
        return self.has_consumers(queue) and all(worker.claims for worker in workers if worker.may_consume(queue))


class RunFinder:
    """Search for runs on the workers of `app`. The methods block."""

    def __init__(self, app: Celery, clock: Clock = SYSTEM_CLOCK) -> None:
        self._app = app
        self._clock = clock
        self._known: dict[str, tuple[Consumer, float]] = {}
        self._replies_count = 0

    def find(self, names: Collection[str]) -> RunReports:
        """Query all workers for the runs `names`.

        The query ends when as many workers have replied as in the last query. The query is repeated and waits for
        further workers if no worker reports one of the runs, or if only workers with this package have replied.

        Raises:
            Exception: The broker is unavailable. Each transport raises its own exceptions.
        """
        with self._app.connection_for_write(connect_timeout=REPLY_TIMEOUT) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0.1, timeout=REPLY_TIMEOUT)
            if not connection.supports_exchange_type("fanout"):
                return RunReports()
            reported, workers = self._query(connection, names, self._replies_count)
            is_decided = reported >= set(names) and not all(worker.claims for worker in workers.values())
            if self._replies_count and not is_decided:
                reported, workers = self._query(connection, names)
        self._replies_count = len(workers)
        now = self._clock.monotonic()
        self._known |= {node: (worker, now) for node, worker in workers.items() if worker.queues is not None}
        self._known = {node: (worker, at) for node, (worker, at) in self._known.items() if now - at < REMEMBERED}
        others = {node: worker for node, (worker, _) in self._known.items() if node not in workers}
        return RunReports(reported, workers, {node: worker for node, worker in others.items() if not worker.claims})

    def _query(
        self, connection: Any, names: Collection[str], limit: int = 0
    ) -> tuple[frozenset[str], dict[str, Consumer]]:
        """Return the names of the runs that workers report, and these workers. Wait for at most `limit` workers, or for
        all workers if `limit` is 0."""
        inspect = self._app.control.inspect(timeout=REPLY_TIMEOUT, connection=connection, limit=limit or None)
        replies = inspect.query_task(*names) or {}
        nodes = list(replies)
        reported = frozenset(name for reply in replies.values() if isinstance(reply, dict) for name in reply)
        inspect = self._app.control.inspect(nodes, REPLY_TIMEOUT, limit=len(nodes), connection=connection)
        return reported, _consumers(inspect, nodes)


def _consumers(inspect: Any, nodes: Sequence[str]) -> dict[str, Consumer]:
    """Return the queues and the kinds of the workers `nodes`, which `inspect` queries."""
    if not nodes:
        return {}
    queues, tasks = inspect.active_queues() or {}, inspect.registered() or {}
    consumers = {}
    for node in nodes:
        names = queues.get(node)
        if isinstance(names, list) and node in tasks:
            queue_names = frozenset(queue["name"] for queue in names)
            consumers[node] = Consumer(queue_names, not CELERY_TASKS.keys().isdisjoint(tasks[node] or ()))
        else:  # the worker stopped replying
            consumers[node] = Consumer(None, claims=False)
    return consumers
