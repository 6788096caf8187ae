"""Publishing of runs as Celery tasks.

The Celery task of an agent has the name ``a2a.<agent>`` and the id ``<task id>.<run>``. Its arguments are the task id
and the number of the run. The messages of clients stay in the store, so the broker, the result backend and Flower never
receive them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from celery import Celery, Task
from celery.exceptions import WorkerLostError
from kombu.exceptions import BatchPublishError

from ..agents import Agent
from ..clock import SYSTEM_CLOCK
from ..concurrency import DaemonThreads
from ..errors import BrokerUnavailable, PublicationFailed, RunNotAccepted
from ..integrations.kombu import broker_error_text, is_raised_by_broker
from ..lifecycle.outcomes import WORKER_LOST
from ..lifecycle.references import RunRef
from ..telemetry.logs import about
from ..telemetry.names import Action
from ..telemetry.tracing import tracing
from .connection import PublishingPool, PublishingThreads
from .options import DEFAULT_OPTIONS, Call, RunOptions
from .plain_tasks.canvases import Canvas
from .queues import DEFAULT_FLEET, BrokerQueues, entry_name, fleet_headers, version_queue

logger = logging.getLogger(__name__)

MAX_BACKLOG = 1000
"""Maximum number of publishes and broadcasts that are in progress in the background, and of ids that wait for the next
broadcast. The limit is reached only if the broker hangs. Further broadcasts are then dropped, and a watcher publishes
further runs."""

RETRY_POLICY = {"max_retries": 1, "interval_start": 0.1, "interval_step": 0.1, "interval_max": 0.2}
"""Policy with one retry, for a stale connection. If the retry fails, a watcher publishes the run."""


RUN_HEADER = "a2a_run"
"""Header of a message that calls a plain Celery task as the run of an agent."""

HIDDEN = {"argsrepr": "()", "kwargsrepr": "(stored in the A2A task)"}
"""Representation of the arguments of a plain Celery task in Celery's events and logs. It hides the client's text."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Run to publish. The target is a `version_queue` or the queue in the options."""

    agent: str
    ref: RunRef
    options: RunOptions
    version_queue: str = ""


class Publisher:
    """Publisher for the runs of a fleet. Its asynchronous methods publish in threads.

    Args:
        app: App that publishes.
        options: Options for ``apply_async``, by agent.
        fleet: Name of the fleet.
        max_backlog: Maximum number of messages that are being sent in the background, and of ids that wait to be
            revoked. Further messages and ids are not sent.
    """

    def __init__(
        self,
        app: Celery,
        options: Mapping[str, Mapping[str, Any]],
        fleet: str = DEFAULT_FLEET,
        *,
        max_backlog: int = MAX_BACKLOG,
    ) -> None:
        self._fleet_headers = fleet_headers(fleet)
        self._max_backlog = max_backlog
        self.app = app
        self._options = options
        self.pool = PublishingPool(app)
        self.queues = BrokerQueues(app, options, self.pool)
        self._publishing = PublishingThreads(self._publish_all, lambda: self.pool.batches)
        # A separate thread, because Celery retries a broadcast for as long as the broker is unavailable.
        self._broadcasting = DaemonThreads(1, "a2a-broadcast")
        self._background: set[asyncio.Future[None]] = set()
        self._to_revoke: dict[bool, list[str] | None] = {False: None, True: None}
        self.revoke_error = ""
        """Reason why the newest failed revoke was not sent, or ""."""

    @classmethod
    def of(cls, app: Celery, agents: Mapping[str, Agent], fleet: str) -> Publisher:
        """Return a publisher for the runs of `agents`, with the options of each."""
        return cls(app, {name: agent.options for name, agent in agents.items()}, fleet)

    def publish(self, agent: str, ref: RunRef, options: RunOptions = DEFAULT_OPTIONS) -> None:
        """Publish a run, and wait until the broker has the message.

        Raises:
            PublicationFailed: The app, such as a router or the task's ``apply_async``, raised an exception.
            RunNotAccepted: The broker did not accept this run, but may accept other runs.
            BrokerUnavailable: The broker is unreachable.
        """
        (error,) = self._publish_all([_Run(agent, ref, options)])
        if error is not None:
            raise error

    def publish_with(self, producer: Any, *, agent: str, ref: RunRef, options: RunOptions) -> None:
        """Publish a run with a producer of the caller, which may record the message instead of sending it."""
        self._publish(_Run(agent, ref, options), producer, ExitStack(), retry=False)

    def _publish_all(self, runs: Sequence[_Run]) -> list[Exception | None]:
        """Publish `runs`, in one round trip if the transport supports it. Return an exception or None for each run.

        A failed batch is sent once more, because the connection may have been stale. The broker may then have two
        messages for a run, but the run can be claimed only once.
        """
        try:
            try:
                return self._publish_batch(runs)
            except BatchPublishError:
                return self._publish_batch(runs)
        except Exception as e:
            return [self._refusal(run, e) for run in runs]

    def _publish_batch(self, runs: Sequence[_Run]) -> list[Exception | None]:
        errors: list[Exception | None] = []
        # kombu's batch ends before the spans of its messages.
        with self.pool.acquire() as producer, ExitStack() as spans, producer.batch():
            for run in runs:
                try:
                    with ExitStack() as span:  # an exception ends the span of this run only
                        self._publish(run, producer, span)
                        spans.push(span.pop_all())
                    errors.append(None)
                except Exception as e:  # each transport raises its own exceptions
                    if not is_raised_by_broker(e):
                        errors.append(_failure(run, e))
                        continue
                    if self.pool.is_dead(e):  # do not wait for the timeout of each further run
                        return errors + [self._refusal(other, e) for other in runs[len(errors) :]]
                    errors.append(self._refusal(run, e))
        return errors

    def _refusal(self, run: _Run, error: Exception) -> BrokerUnavailable:
        kind = BrokerUnavailable if self.pool.is_dead(error) else RunNotAccepted
        refusal = kind(f"the broker did not accept run {run.ref.name}: {broker_error_text(error)}")
        refusal.__cause__ = error
        return refusal

    def _publish(self, run: _Run, producer: Any, span: ExitStack, *, retry: bool = True) -> None:
        run_options = run.options
        options = {
            "task_id": run.ref.name,
            "producer": producer,
            # The result is not used. Ignoring the result saves the publisher a channel for every task, and saves the
            # worker of an agent a write.
            "ignore_result": True,
            "retry": retry,
            "retry_policy": RETRY_POLICY,
            **run_options.over(self._options.get(run.agent, {})),
        }
        if run.version_queue:
            options |= {"queue": version_queue(self.app, run.version_queue), "exchange": "", "routing_key": ""}
        span.enter_context(_trace_publish(run.agent, options, run_options))
        if self._fleet_headers:
            options["headers"] = {**options.get("headers", {}), **self._fleet_headers}
        if run_options.call is None:
            # Send by name, because a watcher may publish runs of agents that its version of the app does not have. Use
            # the app's current serializer, because a task keeps the serializer of its first access.
            options["serializer"] = self.app.conf.task_serializer
            arguments = (run.ref.task_id, run.ref.run)
            # Celery's repr is made for large arguments, and costs more than encoding the message
            representations = {"argsrepr": repr(arguments), "kwargsrepr": "{}"}
            options = _expiring_in_a_worker(options)
            self.app.send_task(
                entry_name(run.agent), args=arguments, retries=run_options.retries, **representations, **options
            )
        else:
            self._call(run_options.call, run_options.retries, options)

    def _call(self, call: Call, retries: int, options: dict[str, Any]) -> None:
        """Publish a plain Celery task as its other callers do, with the header that makes the call a run.

        With `task_always_eager`, ``apply_async`` would call the task in this process, so the run is published by name.
        """
        task: Task | None = self.app.tasks.get(call.task)
        options = _expiring_in_a_worker({"expires": getattr(task, "expires", None), **options})
        options["headers"] = {
            **options.get("headers", {}),
            RUN_HEADER: True,
            "ignore_result": getattr(task, "ignore_result", False),  # for the worker, not for the publisher
        }
        if task is None or self.app.conf.task_always_eager:
            self.app.send_task(call.task, kwargs=dict(call.kwargs), retries=retries, **HIDDEN, **options)
        else:
            task.apply_async(kwargs=dict(call.kwargs), retries=retries, expires=None, **HIDDEN, **options)

    async def publish_async(
        self, agent: str, ref: RunRef, options: RunOptions = DEFAULT_OPTIONS, *, version_queue: str = ""
    ) -> None:
        """Publish a run in a thread; see `publish`. With a `version_queue`, the run is published to that queue."""
        await self._publishing.publish(_Run(agent, ref, options, version_queue))

    def publish_soon(self, agent: str, ref: RunRef, options: RunOptions, callback: Callable[[], None]) -> None:
        """Publish a run in the background, and call `callback` when the broker has the message.

        If the broker is unavailable or too slow, a warning is logged. The run stays due in the store, and a watcher
        publishes it.
        """
        if self._is_too_slow(self._background, "a watcher will publish run %s", ref.name):
            return
        run = _Run(agent, ref, options)
        self._keep(self._publishing.publish(run)).add_done_callback(partial(_complete_publish, run, callback))

    async def finish(self, limit: float) -> None:
        """Wait until what is under way in the background is sent or has failed, for at most `limit` seconds."""
        if self._background:
            await asyncio.wait(self._background, timeout=limit)

    def revoke_soon(self, celery_ids: list[str], *, terminate: bool = False) -> None:
        """Revoke Celery tasks in the background, together with others that wait for the broker. With `terminate`,
        running tasks are also terminated.

        If the broadcast is lost, the run begins, but cannot be claimed because its task has ended.
        """
        waiting = self._to_revoke[terminate]
        backlog = self._background if waiting is None else waiting
        if self._is_too_slow(backlog, "no revoke was sent for %s", ", ".join(celery_ids)):
            return
        if waiting is not None:  # until an earlier broadcast has been sent
            waiting += celery_ids
        else:
            self._to_revoke[terminate] = []
            self._keep(asyncio.create_task(self._revoke(celery_ids, terminate)))

    async def _revoke(self, celery_ids: list[str], terminate: bool) -> None:
        # the store has ended the tasks, so that workers drop the runs on receipt
        while celery_ids:
            broadcast = partial(self._broadcast_revoke, celery_ids, terminate)
            try:
                await self._broadcasting.call(broadcast)
            except Exception as e:
                self.revoke_error = broker_error_text(e)
                logger.info("could not revoke %s: %s", ", ".join(celery_ids), self.revoke_error)
            celery_ids, self._to_revoke[terminate] = self._to_revoke[terminate] or [], []
        self._to_revoke[terminate] = None

    def revoke_canceled_soon(self, task_id: str, run: int | None, canvas: bytes) -> None:
        """Revoke the Celery tasks of an A2A task that was cancelled before a worker claimed its run; see `revoke_soon`.

        Args:
            run: Number of the queued run, or None.
            canvas: Canvas that the task waits for, as JSON, or b"". The tasks of the canvas are terminated.
        """
        if run is not None:
            self.revoke_soon([f"{task_id}.{run}"])
        if canvas:
            self.revoke_soon(Canvas.from_json(canvas).ids(), terminate=True)

    def lost_soon(self, agent: str, task_id: str, run: int, worker: str, *, canceled: bool, call: str = "") -> None:
        """Send the final Celery event, task-failed or task-revoked, of a run whose worker was lost.

        Delivery is best effort and at most once, as for Celery's own events.

        Args:
            agent: Name of the agent.
            task_id: Id of the A2A task.
            run: Number of the run.
            worker: Node name of the lost worker.
            canceled: True to send task-revoked, or False to send task-failed.
            call: Name of the plain Celery task that the run calls, or "" for a run of an agent.
        """
        celery_id = f"{task_id}.{run}"
        # all fields, because the earlier events may have been lost with the worker
        fields = {"uuid": celery_id, "name": call or entry_name(agent)} | (
            {"args": HIDDEN["argsrepr"], "kwargs": HIDDEN["kwargsrepr"]}
            if call
            else {"args": repr((task_id, run)), "kwargs": "{}"}
        )

        async def send() -> None:
            try:
                await self._broadcasting.call(lambda: self._send_loss_event(fields, worker, canceled))
            except Exception as e:
                logger.info("no Celery event was sent for the lost run %s: %s", celery_id, broker_error_text(e))

        self._in_background(send(), "no Celery event was sent for the lost run %s", celery_id)

    def _send_loss_event(self, fields: Mapping[str, str], worker: str, canceled: bool) -> None:
        with self.pool.acquire() as producer:
            # in the worker's name, because Flower takes each sender of task events for a worker
            events = self.app.events.Dispatcher(
                producer.connection, hostname=worker, channel=producer.channel, buffer_while_offline=False
            )
            if canceled:
                events.send("task-revoked", terminated=False, signum=None, expired=False, **fields)
            else:
                error = repr(WorkerLostError(WORKER_LOST))
                events.send("task-failed", exception=error, traceback="", **fields)

    def _broadcast_revoke(self, celery_ids: list[str], terminate: bool) -> None:
        with self.pool.acquire() as producer:
            mailbox = self.app.control.mailbox(producer.connection)
            mailbox.producer_pool = None  # the app's pool has no timeouts
            mailbox.abcast("revoke", {"task_id": celery_ids, "terminate": terminate, "signal": "SIGTERM"})

    def _in_background(self, work: Coroutine[Any, Any, None], warning: str, *args: object) -> None:
        if self._is_too_slow(self._background, warning, *args):
            work.close()
        else:
            self._keep(asyncio.create_task(work))

    def _is_too_slow(self, backlog: Sized, warning: str, *args: object) -> bool:
        """Return True if `backlog` is full. In this case, log `warning`, formatted with `args`, which says what is not
        sent."""
        if len(backlog) < self._max_backlog:
            return False
        logger.warning(f"the broker is too slow: {warning}", *args)
        return True

    def _keep(self, under_way: asyncio.Future[None]) -> asyncio.Future[None]:
        self._background.add(under_way)  # asyncio may otherwise garbage-collect a waiting task
        under_way.add_done_callback(self._background.discard)
        return under_way


def _failure(run: _Run, error: Exception) -> PublicationFailed:
    failure = PublicationFailed(f"the publication of run {run.ref.name} raised {error!r}")
    failure.__cause__ = error
    return failure


def _complete_publish(run: _Run, callback: Callable[[], None], completion: asyncio.Future[None]) -> None:
    if completion.cancelled():
        return
    try:
        completion.result()
    except BrokerUnavailable as e:
        log_fields = about(Action.RUN_NOT_PUBLISHED, run.ref.name, agent=run.agent)
        logger.warning("run %s will be published by the watcher: %s", run.ref.name, e, extra=log_fields)
    else:
        callback()


def _expiring_in_a_worker(options: dict[str, Any]) -> dict[str, Any]:
    """Move ``expires`` in `options` to the headers.

    If ``expires`` were a message property, RabbitMQ would drop the message, and no worker would report the expiry.
    """
    expires = options.pop("expires", None)
    if isinstance(expires, int | float):
        expires = SYSTEM_CLOCK.now() + timedelta(seconds=expires)
    if isinstance(expires, datetime):
        expires = expires.isoformat()
    return {**options, "headers": {**options.get("headers", {}), "expires": expires}} if expires else options


@contextmanager
def _trace_publish(agent: str, options: dict[str, Any], run_options: RunOptions) -> Iterator[None]:
    """Trace the publishing of a run in the ``with`` block, and set the trace headers if there is a trace."""
    spans = tracing()
    if spans is None:
        options |= {"headers": dict(run_options.trace)} if run_options.trace else {}
        yield
        return
    with spans.publishing(agent, options["task_id"], run_options.trace) as headers:
        options["headers"] = headers
        yield
