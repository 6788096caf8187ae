"""Publishing runs as Celery tasks.

The Celery task of an agent is ``a2a.<agent>``, its id ``<task id>.<run>``, its arguments just these two: what the
client said stays in the store, so broker, result backend and Flower carry none of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from celery import Celery, Task
from celery.exceptions import WorkerLostError
from kombu.exceptions import BatchPublishError

from ..clock import SYSTEM_CLOCK
from ..errors import BrokerUnavailable, RunNotTaken
from ..lifecycle.outcomes import WORKER_LOST
from ..telemetry.logs import about
from ..telemetry.names import Action
from ..telemetry.tracing import tracing
from ..threads import DaemonThreads
from .connection import PublishingPool
from .fleets import DEFAULT_FLEET, fleet_headers
from .options import Call, RunOptions
from .publishing import PublishingThreads
from .queues import BrokerQueues, entry_name

logger = logging.getLogger(__name__)

MAX_BACKLOG = 1000
"""More than this many waiting publishes mean a broker that hangs: the rest is left to the watcher."""

RETRY_POLICY = {"max_retries": 1, "interval_start": 0.1, "interval_step": 0.1, "interval_max": 0.2}
"""One more try, for a connection that had gone stale; beyond that the store remembers and the watcher publishes."""


RUN_HEADER = "a2a_run"
"""The header of a message that calls a plain Celery task as the run of an agent."""

HIDDEN = {"argsrepr": "()", "kwargsrepr": "(those of its A2A task)"}
"""What Celery's events and logs show of such a call: nothing that a client said."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A run to be published, and the options it was stored with, see `RunOptions`."""

    agent: str
    task_id: str
    number: int
    options: bytes

    @property
    def name(self) -> str:
        return f"{self.task_id}.{self.number}"


class Publisher:
    """Hands runs of `fleet` to the broker, off the event loop. `options` per agent go to ``apply_async``."""

    def __init__(self, app: Celery, options: Mapping[str, Mapping[str, Any]], fleet: str = DEFAULT_FLEET) -> None:
        self._fleet_headers = fleet_headers(fleet)
        self._app = app
        self._options = options
        self._pool = PublishingPool(app)
        self.queues = BrokerQueues(app, options, self._pool)
        self._publishing = PublishingThreads(self._publish_all, lambda: self._pool.batches)
        # Celery's broadcasts are tried for as long as the broker is away: not in the threads that publish.
        self._broadcasting = DaemonThreads(1, "a2a-broadcast")
        self._background: set[asyncio.Future[None]] = set()

    def publish(self, agent: str, task_id: str, run: int, options: bytes = b"") -> None:
        """Returns when the broker has the run; `options` are those it was stored with, see `RunOptions`.

        Raises:
            RunNotTaken: it did not take this run; it may take others.
            BrokerUnavailable: it could not be reached.
        """
        (error,) = self._publish_all([_Run(agent, task_id, run, options)])
        if error is not None:
            raise error

    def _publish_all(self, runs: Sequence[_Run]) -> list[Exception | None]:
        """Publishes several runs, in one round trip if the transport can; for each why the broker does not have it.

        A batch that fails is given a second time, for a connection that had gone stale. The broker may have taken it
        the first time: a run that comes twice is claimed once.
        """
        try:
            try:
                return self._publish_batch(runs)
            except BatchPublishError:
                return self._publish_batch(runs)
        except Exception as e:
            return [self._refused(run, e) for run in runs]

    def _publish_batch(self, runs: Sequence[_Run]) -> list[Exception | None]:
        errors: list[Exception | None] = []
        # A batch of kombu's ends before the spans that are about it.
        with self._pool.acquire() as producer, ExitStack() as spans, producer.batch():
            for run in runs:
                try:
                    self._publish(run, producer, spans)
                    errors.append(None)
                except Exception as e:  # each transport raises its own
                    if self._pool.is_dead(e):  # nobody shall wait for that again
                        return errors + [self._refused(left, e) for left in runs[len(errors) :]]
                    errors.append(self._refused(run, e))
        return errors

    def _refused(self, run: _Run, error: Exception) -> BrokerUnavailable:
        kind = BrokerUnavailable if self._pool.is_dead(error) else RunNotTaken
        said = kind(f"the broker did not take run {run.name}: {type(error).__name__}: {error}")
        said.__cause__ = error
        return said

    def _publish(self, run: _Run, producer: Any, spans: ExitStack) -> None:
        chosen = RunOptions.from_json(run.options)
        how = {
            "task_id": run.name,
            "producer": producer,
            # Nobody waits for the result: not subscribing to it saves the publisher a channel for every task, and the
            # worker of an agent a write.
            "ignore_result": True,
            "retry": True,
            "retry_policy": RETRY_POLICY,
            **chosen.over(self._options.get(run.agent, {})),
        }
        spans.enter_context(_traced(run.agent, how, chosen))
        if self._fleet_headers:
            how["headers"] = {**how.get("headers", {}), **self._fleet_headers}
        if chosen.call is None:
            # by name: a watcher may serve agents that its own version of the app doesn't know; and written as the app
            # says now: a task keeps the serializer that it was first looked at with.
            how["serializer"] = self._app.conf.task_serializer
            arguments = (run.task_id, run.number)
            # Celery's own look at arguments is made for large ones, and costs more than writing the message
            shown = {"argsrepr": repr(arguments), "kwargsrepr": "{}"}
            how = _expiring_in_a_worker(how)
            self._app.send_task(entry_name(run.agent), args=arguments, retries=chosen.retries, **shown, **how)
        else:
            self._call(chosen.call, chosen.retries, how)

    def _call(self, call: Call, retries: int, how: dict[str, Any]) -> None:
        """Publishes a plain Celery task as its own callers do, but for the header that makes it a run."""
        task: Task | None = self._app.tasks.get(call.task)
        how = _expiring_in_a_worker({"expires": getattr(task, "expires", None), **how})
        how["headers"] = {
            **how.get("headers", {}),
            RUN_HEADER: True,
            "ignore_result": getattr(task, "ignore_result", False),  # the worker's to know, not the publisher's
        }
        if task is None:
            self._app.send_task(call.task, kwargs=dict(call.kwargs), retries=retries, **HIDDEN, **how)
        else:
            task.apply_async(kwargs=dict(call.kwargs), retries=retries, expires=None, **HIDDEN, **how)

    async def publish_async(self, agent: str, task_id: str, run: int, options: bytes = b"") -> None:
        """`publish`, in a thread."""
        await self._publishing.publish(_Run(agent, task_id, run, options))

    def publish_soon(self, agent: str, task_id: str, run: int, options: bytes, then: Callable[[], None]) -> None:
        """Publishes in the background and calls `then()` when the broker has it.

        A broker that is down is logged: the run stays due in the store, and a watcher publishes it.
        """
        if self._is_too_slow():
            return
        run_of = _Run(agent, task_id, run, options)
        self._keep(self._publishing.publish(run_of)).add_done_callback(partial(_published, run_of, then))

    def revoke_soon(self, celery_ids: list[str], *, terminate: bool = False) -> None:
        """Tells workers to drop Celery tasks, also those that are running if they shall `terminate`. A hint: a run that
        starts all the same finds its task ended."""

        async def revoke() -> None:
            try:
                await self._broadcasting.call(lambda: self._broadcast_revoke(celery_ids, terminate))
            except Exception as e:
                logger.info("not revoked: %s: %s", ", ".join(celery_ids), e)

        self._in_background(revoke())

    def revoke(self, celery_ids: list[str], *, terminate: bool = False) -> None:
        """`revoke_soon`, at once.

        Raises:
            BrokerUnavailable: it could not be reached, or did not take it.
        """
        try:
            self._broadcast_revoke(celery_ids, terminate)
        except Exception as e:  # each transport raises its own
            raise BrokerUnavailable(f"the broker did not take a revoke: {type(e).__name__}: {e}") from e

    def lost_soon(self, agent: str, task_id: str, run: int, worker: str, *, canceled: bool, call: str = "") -> None:
        """Tells Celery's listeners what became of a run whose `worker` is gone, and can't: it failed, or was revoked.
        `call` is the plain Celery task that it calls, "" for one of an agent.

        As good as Celery's own events: nobody waits for it, and it comes once at most.
        """
        celery_id = f"{task_id}.{run}"
        # a listener may hear of the run for the first time: the worker's own events can be lost with it
        fields = {"uuid": celery_id, "name": call or entry_name(agent)} | (
            {"args": HIDDEN["argsrepr"], "kwargs": HIDDEN["kwargsrepr"]}
            if call
            else {"args": repr((task_id, run)), "kwargs": "{}"}
        )

        async def tell() -> None:
            try:
                await self._broadcasting.call(lambda: self._tell_of_loss(fields, worker, canceled))
            except Exception as e:
                logger.info("Celery's listeners don't hear that %s was lost: %s", celery_id, e)

        self._in_background(tell())

    def _tell_of_loss(self, fields: Mapping[str, str], worker: str, canceled: bool) -> None:
        with self._pool.acquire() as producer:
            # in the worker's name: whoever else sends of a task is a worker to Flower
            events = self._app.events.Dispatcher(
                producer.connection, hostname=worker, channel=producer.channel, buffer_while_offline=False
            )
            if canceled:
                events.send("task-revoked", terminated=False, signum=None, expired=False, **fields)
            else:
                error = repr(WorkerLostError(WORKER_LOST))
                events.send("task-failed", exception=error, traceback="", **fields)

    def _broadcast_revoke(self, celery_ids: list[str], terminate: bool) -> None:
        with self._pool.acquire() as producer:
            mailbox = self._app.control.mailbox(producer.connection)
            mailbox.producer_pool = None  # app's, whose connections may wait for ever
            mailbox.abcast("revoke", {"task_id": celery_ids, "terminate": terminate, "signal": "SIGTERM"})

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        if self._is_too_slow():
            work.close()
        else:
            self._keep(asyncio.create_task(work))

    def _is_too_slow(self) -> bool:
        if len(self._background) < MAX_BACKLOG:
            return False
        logger.warning("the broker is too slow: leaving a publish to the watcher")
        return True

    def _keep(self, under_way: asyncio.Future[None]) -> asyncio.Future[None]:
        self._background.add(under_way)  # an unreferenced task may be collected while it waits
        under_way.add_done_callback(self._background.discard)
        return under_way


def _published(run: _Run, then: Callable[[], None], done: asyncio.Future[None]) -> None:
    if done.cancelled():
        return
    try:
        done.result()
    except BrokerUnavailable as e:
        said = about(Action.RUN_NOT_PUBLISHED, run.name, agent=run.agent)
        logger.warning("run %s will be published by the watcher: %s", run.name, e, extra=said)
    else:
        then()


def _expiring_in_a_worker(options: dict[str, Any]) -> dict[str, Any]:
    """`options` with ``expires`` where workers look for it and RabbitMQ does not: that would drop the message itself,
    and no worker would hear that the run is not to begin."""
    expires = options.pop("expires", None)
    if isinstance(expires, int | float):
        expires = SYSTEM_CLOCK.now() + timedelta(seconds=expires)
    if isinstance(expires, datetime):
        expires = expires.isoformat()
    return {**options, "headers": {**options.get("headers", {}), "expires": expires}} if expires else options


@contextmanager
def _traced(agent: str, how: dict[str, Any], chosen: RunOptions) -> Iterator[None]:
    """A block that publishes; the message's headers name the trace that the run belongs to, if there is one."""
    spans = tracing()
    if spans is None:
        how |= {"headers": dict(chosen.trace)} if chosen.trace else {}
        yield
        return
    with spans.publishing(agent, how["task_id"], chosen.trace) as headers:
        how["headers"] = headers
        yield
