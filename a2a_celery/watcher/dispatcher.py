"""Publishing of suspended runs that continue, and of runs that were not published at first or whose message was lost.

A run is due a few seconds after its creation, unless it has been published. The delay grows with each further attempt.
A run is not published while the queue may still contain its message. Otherwise, a long queue would fill with copies. A
copy is harmless, because a run is claimed only once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from ..clock import SYSTEM_CLOCK, Clock
from ..dispatch import EPOCH, MICROSECOND, BrokerQueues, Publisher, RunOptions
from ..errors import BrokerUnavailable, RunNotAccepted, StoreUnavailable
from ..lifecycle import Refused, final_event
from ..lifecycle.outcomes import NOT_BEGUN_IN_TIME
from ..store import AsyncStore, Keys
from ..store.runs.commands import RunRef, end_run
from ..store.runs.publication import MAX_REDISPATCH_WAIT_US, DueRun, acquire_due_runs, claimed_runs, postpone_runs
from ..store.runs.suspension import resume_due_runs
from ..store.tasks.commands import read_task
from ..telemetry.logs import about
from ..telemetry.names import Action
from .celery.results import Results
from .metrics import WatcherMetrics
from .role_loop import MAX_ERROR, StoreClock

logger = logging.getLogger(__name__)

DISPATCH_BATCH = 100
RESUME_BATCH = 100
"""Maximum number of suspended runs that one call resumes."""
MIN_QUEUE_RECHECK_US = 1_000_000
"""Minimum µs before a run that may be in its queue is checked again. The time doubles with each check."""
MAX_QUEUES = 1000
"""Maximum number of remembered queues. The limit is needed because routes may select any number of queues."""
MAX_CLAIMS = 200
"""Maximum number of leases that a tick reads, beginning with the newest."""
BROKER_RETRY_US = 2_000_000
"""Delay after a failed attempt to publish, in µs."""
MAX_CLOCK_ERROR = timedelta(seconds=MAX_ERROR)
"""Tolerance for the lag of this machine's clock. A run that has expired by the store's clock is rejected only if it has
also expired by this machine's clock plus this time."""
RESULTS_TIMEOUT = 5.0
"""Seconds within which the result backend, and the worker that has the run according to the backend, must reply."""


class Backlog:
    """Estimate of the messages that are still in the broker's queues.

    An empty queue contains no message that was published before the check. Queues are first in, first out, so a queue
    contains no message that was published `overtaken_after` seconds before the message of a claimed run.
    """

    def __init__(self, store: AsyncStore, keys: Keys, queues: BrokerQueues, overtaken_after: float) -> None:
        self._store = store
        self._keys = keys
        self._queues = queues
        self._overtaken_us = int(overtaken_after * 1_000_000)
        self._queried_at: dict[str, int] = {}
        self._empty_at: dict[str, int] = {}
        self._claimed_us: dict[tuple[str, int | None], int] = {}
        self._claims_are_read = False
        self._acquired_us = 0

    def start_tick(self) -> None:
        """Invalidate the claimed runs, which are read again when a run of this tick needs them."""
        self._claims_are_read = False

    async def may_hold(self, run: DueRun, options: RunOptions) -> bool:
        """Return True if the queue of `run` may still contain the run's message. Each queue is queried at most once per
        batch.

        Raises:
            BrokerUnavailable: The broker did not reply.
        """
        if run.acquired_us < self._acquired_us:  # the store's clock was set back, so earlier times are invalid
            for times in (self._queried_at, self._empty_at, self._claimed_us):
                times.clear()
        self._acquired_us = run.acquired_us
        if run.published_us is None:
            return False
        queue = self._queue_of(run.agent, options)
        if queue is None:
            return False
        if self._queried_at.get(queue) != run.acquired_us and run.published_us >= self._empty_at.get(queue, 0):
            if len(self._queried_at) >= MAX_QUEUES:
                self._queried_at.clear()
                self._empty_at.clear()
            self._queried_at[queue] = run.acquired_us
            if await self._queues.is_empty(queue):
                self._empty_at[queue] = run.acquired_us
        if run.published_us < self._empty_at.get(queue, 0):
            return False
        if not self._claims_are_read:
            await self._read_claims()
        newest_us = self._claimed_us.get((queue, self._queues.priority_of(run.agent, options)), 0)
        return run.published_us + self._overtaken_us >= newest_us

    def _queue_of(self, agent: str, options: RunOptions) -> str | None:
        try:
            return self._queues.queue_of(agent, options)
        except Exception as e:  # a router failed, or the queue is unknown: publishing reports the cause
            logger.info("the queue of a run of agent %s is unknown: %r", agent, e)
            return None

    async def _read_claims(self) -> None:
        """Record the newest time at which a claimed run was published, for each queue and priority."""
        self._claims_are_read = True
        newest: dict[tuple[str, bytes], int] = {}
        for run in await self._store.run(claimed_runs(self._keys, limit=MAX_CLAIMS)):
            source = run.agent, run.options
            newest[source] = max(run.published_us, newest.get(source, 0))
        if len(self._claimed_us) >= MAX_QUEUES:
            self._claimed_us.clear()
        for (agent, content), published_us in newest.items():
            options = RunOptions.from_json(content)
            if queue := self._queue_of(agent, options):
                key = queue, self._queues.priority_of(agent, options)
                self._claimed_us[key] = max(published_us, self._claimed_us.get(key, 0))


class Dispatcher:
    """Watcher role that publishes the due runs. Only one of the watchers publishes each run."""

    name = "dispatcher"
    every = 0.5

    def __init__(
        self,
        store: AsyncStore,
        keys: Keys,
        publisher: Publisher,
        redispatch_after: float,
        results: Results,
        metrics: WatcherMetrics | None = None,
        clock: Clock = SYSTEM_CLOCK,
        overtaken_after: float = 5.0,
        store_clock: StoreClock | None = None,
    ) -> None:
        self._clock = clock
        self._store_clock = store_clock
        self._metrics = metrics or WatcherMetrics()
        self._store = store
        self._keys = keys
        self._publisher = publisher
        self._redispatch_after_us = int(redispatch_after * 1_000_000)
        self._results = results
        self._results_reply = True
        self._backlog = Backlog(store, keys, publisher.queues, overtaken_after)

    async def tick(self) -> None:
        """Resume the suspended runs whose time has come, publish the due runs, and reject the expired runs.

        A run is postponed if the broker refuses its message, or if the queue may still contain the message. A run with
        a later start time is postponed until shortly before that time.
        """
        await self._resume_suspended()
        self._backlog.start_tick()
        while await self._publish_due():
            pass  # due runs may follow many runs that wait in a long queue

    async def _resume_suspended(self) -> None:
        """Resume the suspended runs whose time has come. The resumed runs are due at once, because they were not
        published before."""
        latest_us = None if self._store_clock is None else self._store_clock.latest_us
        resume = resume_due_runs(self._keys, limit=RESUME_BATCH, latest_us=latest_us)
        while await self._store.run(resume):
            self._metrics.record_progress(self.name)

    async def _publish_due(self) -> bool:
        """Publish a batch of due runs. Return True if the batch was full and all its runs still wait in their
        queues."""
        due = await self._acquire()
        self._results_reply = True
        delays = dict.fromkeys(due, BROKER_RETRY_US)
        try:
            queued_count = await self._publish(due, delays)
        except BaseException:  # without this, the store would count the remaining runs as published
            with suppress(StoreUnavailable):
                await self._store.run(postpone_runs(self._keys, delays))
            raise
        if delays:
            await self._store.run(postpone_runs(self._keys, delays))
        return queued_count == DISPATCH_BATCH

    async def _acquire(self) -> list[DueRun]:
        """Acquire a batch of due runs.

        The call is shielded from cancellation. Otherwise, the reply could be lost, and the store would count the runs
        as published.
        """
        acquire = acquire_due_runs(self._keys, limit=DISPATCH_BATCH, delay_us=self._redispatch_after_us)
        acquiring = asyncio.create_task(self._store.run(acquire), name="a2a-due-runs")
        try:
            return await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            with suppress(StoreUnavailable):
                await self._store.run(postpone_runs(self._keys, dict.fromkeys(await acquiring, 0)))
            raise

    async def _publish(self, due: Sequence[DueRun], delays: dict[DueRun, int]) -> int:
        """Publish runs, and return the number of runs that still wait in their queues.

        Args:
            due: Runs to publish.
            delays: µs until each run that was not published is due again. Published and rejected runs are removed.
        """
        queued_count = 0
        for number, run in enumerate(due):
            self._metrics.record_progress(self.name)
            try:
                queued_count += await self._publish_run(run, delays)
            except RunNotAccepted as e:  # the following runs may have another route
                log_fields = about(Action.RUN_NOT_PUBLISHED, run.ref.name, agent=run.agent)
                logger.warning("run %s not published, retrying: %s", run.ref.name, e, extra=log_fields)
            except BrokerUnavailable as e:
                log_fields = about(Action.RUN_NOT_PUBLISHED, runs=len(due) - number)
                logger.warning("%d runs not published, retrying: %s", len(due) - number, e, extra=log_fields)
                break
            except StoreUnavailable:
                raise
            except Exception:  # for example, unreadable options: the run must not block the following runs
                delays[run] = self._redispatch_after_us
                log_fields = about(Action.RUN_NOT_PUBLISHED, run.ref.name, agent=run.agent)
                logger.exception("run %s not published, retrying", run.ref.name, extra=log_fields)
        return queued_count

    async def _publish_run(self, run: DueRun, delays: dict[DueRun, int]) -> bool:
        """Publish, reject or postpone a run; see `_publish`. Return True if the run still waits in its queue.

        Raises:
            RunNotAccepted: The broker did not accept this run.
            BrokerUnavailable: The broker is unreachable.
            StoreUnavailable: The store is unavailable.
        """
        options, now = RunOptions.from_json(run.options), EPOCH + run.acquired_us * MICROSECOND
        if options.has_expired(min(now, self._clock.now() + MAX_CLOCK_ERROR)):
            await self._reject(run.ref)
            del delays[run]
            return False
        if delay := options.publish_delay(now):
            delays[run] = delay // timedelta(microseconds=1)
            return False
        if options.call is not None and not options.retries and await self._is_on_plain_worker(run.ref):
            delays[run] = self._redispatch_after_us  # the delay does not double, since the run was not published
            return False
        if await self._backlog.may_hold(run, options):
            delays[run] = min(max(run.queued_us, MIN_QUEUE_RECHECK_US), MAX_REDISPATCH_WAIT_US)
            return True
        options_json = options.without_past_times(now).to_json()
        await self._publisher.publish_async(run.agent, run.ref.task_id, run.ref.run, options_json)
        del delays[run]
        if run.was_published:
            self._metrics.count_redispatch()
            log_fields = about(Action.RUN_DISPATCHED_AGAIN, run.ref.name, agent=run.agent)
            logger.info("run %s published again", run.ref.name, extra=log_fields)
        else:
            logger.debug("run %s published", run.ref.name)
        return False

    async def _is_on_plain_worker(self, ref: RunRef) -> bool:
        """Return True if a worker without this package has the run of a plain Celery task.

        If the worker has ended the Celery task, this method also ends the run. A result backend that does not reply is
        queried only once per tick, so that other runs can be published.
        """
        if not self._results_reply:
            return False
        try:
            async with self._clock.timeout(RESULTS_TIMEOUT):
                return await self._results.reconcile(ref)
        except Exception as e:
            logger.warning("run %s: the result backend does not reply: %r", ref.name, e)
            self._results_reply = False
            return False

    async def _reject(self, ref: RunRef) -> None:
        head = read_task(self._keys, None, ref.task_id, history_length=0, artifacts=False, resolve_blobs=False)
        snapshot = await self._store.run(head)
        event = snapshot and final_event(Refused(NOT_BEGUN_IN_TIME), ref.task_id, snapshot[0].context_id)
        if event:
            reply = await self._store.run(end_run(self._keys, ref, runner=None, event=event))
            log_fields = about(Action.RUN_EXPIRED, ref.name)
            logger.info("run %s did not start before it expired: %s", ref.name, reply, extra=log_fields)
