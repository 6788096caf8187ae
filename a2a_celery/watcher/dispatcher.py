"""Publishing of suspended runs that continue, and of runs that were not published at first or whose message was lost.

A run is due a few seconds after its creation, unless it has been published. The delay grows with each further attempt.
A run is not published while the queue may still contain its message. Otherwise, a long queue would fill with copies. A
copy is harmless, because a run is claimed only once.

A worker without this package claims no runs, so it would execute each copy. A run of a plain task is therefore
published again only if all workers of its queue have this package. Otherwise, the run waits while a worker reports it,
or while the queue may contain its message, and ends as lost if no worker has reported it for some time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import uuid4

from ..clock import SYSTEM_CLOCK, Clock
from ..dispatch import BrokerQueues, Publisher, RunOptions, RunReports
from ..errors import BrokerUnavailable, PublicationFailed, RunNotAccepted, StoreUnavailable
from ..lifecycle import Failure, Outcome, Refused, final_event
from ..lifecycle.events import EPOCH, MICROSECOND
from ..lifecycle.outcomes import NOT_BEGUN_IN_TIME, NOT_PUBLISHED
from ..lifecycle.references import RunRef
from ..store import AsyncStore, Keys
from ..store.runs.commands import Over, Unchanged, end_run
from ..store.runs.publication import MAX_REDISPATCH_WAIT_US, DueRun, acquire_due_runs, claimed_runs, postpone_runs
from ..store.runs.suspension import resume_due_runs
from ..store.tasks.commands import read_task
from ..telemetry.logs import RepeatedErrors, about
from ..telemetry.names import Action
from .metrics import WatcherMetrics
from .plain_tasks.results import Observation, Progress, Results

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
MAX_FAILED_PUBLICATIONS = 6
"""Maximum number of attempts to publish a run if the app raises an exception each time. The attempts take a minute."""
MAX_COUNTED_RUNS = 10_000
"""Maximum number of runs whose failed attempts are counted."""
MAX_CLOCK_ERROR = timedelta(seconds=1)
"""Tolerance for the lag of this machine's clock. A run that has expired by the store's clock is rejected only if it has
also expired by this machine's clock plus this time."""
RESULTS_TIMEOUT = 5.0
"""Seconds within which the result backend must reply."""
FIND_TIMEOUT = 15.0
"""Seconds within which a query of the workers must end. The query consists of up to four broadcasts."""
UNREPORTED_WAITS = 5
"""Number of waits of `redispatch_after` after which a run that no worker reports counts as lost. A worker of the solo
pool does not reply while it executes a task, and a busy worker may reply too late."""


@dataclass(frozen=True, slots=True)
class PublishedCall:
    """Published run of a plain task that no worker has claimed.

    Attributes:
        options: Options of the run.
        observation: Progress of the run in the result backend.
        is_queued: The queue may contain the message of the run.
        is_readable: The result backend replied, or there is no result backend that watchers can read.
    """

    run: DueRun
    options: RunOptions
    observation: Observation
    is_queued: bool
    is_readable: bool


class Backlog:
    """Estimate of the messages that are still in the broker's queues.

    An empty queue contains no message that was published before the check. Queues are first in, first out, so a queue
    contains no message that was published `overtaken_after` seconds before the message of a claimed run.

    Attributes:
        overtaken_us: `overtaken_after` in µs.
    """

    def __init__(self, store: AsyncStore, keys: Keys, queues: BrokerQueues, overtaken_after: float) -> None:
        self._store = store
        self._keys = keys
        self._queues = queues
        self.overtaken_us = int(overtaken_after * 1_000_000)
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
        queue = self.queue_of(run.agent, options)
        if queue is None:
            return False
        if run.published_us >= self._empty_at.get(queue, 0):
            await self._query(queue, run.acquired_us)
        if run.published_us < self._empty_at.get(queue, 0):
            return False
        if not self._claims_are_read:
            await self._read_claims()
        newest_us = self._claimed_us.get((queue, self._queues.priority_of(run.agent, options)), 0)
        return run.published_us + self.overtaken_us >= newest_us

    async def is_empty(self, run: DueRun, options: RunOptions) -> bool:
        """Return True if the queue of `run` is known and empty now; see `may_hold`."""
        queue = self.queue_of(run.agent, options)
        if queue is None:
            return False
        await self._query(queue, run.acquired_us)
        return self._empty_at.get(queue) == run.acquired_us

    async def _query(self, queue: str, acquired_us: int) -> None:
        if self._queried_at.get(queue) == acquired_us:
            return
        if len(self._queried_at) >= MAX_QUEUES:
            self._queried_at.clear()
            self._empty_at.clear()
        self._queried_at[queue] = acquired_us
        if await self._queues.is_empty(queue):
            self._empty_at[queue] = acquired_us

    def queue_of(self, agent: str, options: RunOptions) -> str | None:
        """Return the queue of a run, or None if the queue is unknown."""
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
            if queue := self.queue_of(agent, options):
                key = queue, self._queues.priority_of(agent, options)
                self._claimed_us[key] = max(published_us, self._claimed_us.get(key, 0))


class Dispatcher:
    """Watcher role that publishes the due runs. Only one of the watchers publishes each run.

    Attributes:
        redispatch_after_us: µs after which a run that no worker has claimed may be published again.
        backlog: Estimate of the messages in the broker's queues.
    """

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
    ) -> None:
        self._clock = clock
        self._metrics = metrics or WatcherMetrics()
        self._store = store
        self._keys = keys
        self._publisher = publisher
        self.redispatch_after_us = int(redispatch_after * 1_000_000)
        self._absence_wait_us = int(min(overtaken_after, redispatch_after) * 1_000_000)
        self._results = results
        self._results_reply = True
        self._errors = RepeatedErrors(clock)
        self.backlog = Backlog(store, keys, publisher.queues, overtaken_after)
        self._failed_publications: dict[RunRef, int] = {}

    async def tick(self) -> None:
        """Resume the suspended runs whose time has come, publish the due runs, and reject the expired runs.

        A run is postponed if the broker refuses its message, or if the queue may still contain the message. A run with
        a later start time is postponed until shortly before that time.
        """
        await self._resume_suspended()
        self.backlog.start_tick()
        while await self._publish_due():
            pass  # due runs may follow many runs that wait in a long queue

    async def _resume_suspended(self) -> None:
        """Resume the suspended runs whose time has come. The resumed runs are due at once, because they were not
        published before."""
        resume = resume_due_runs(self._keys, limit=RESUME_BATCH)
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
        acquire = acquire_due_runs(self._keys, limit=DISPATCH_BATCH, delay_us=self.redispatch_after_us)
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
        calls: dict[DueRun, PublishedCall] = {}
        queued_count = await self._for_each(due, lambda run: self._publish_run(run, delays, calls), delays)
        if calls:
            reports = await self._find([run.ref.name for run in calls])
            queued_count += await self._for_each(
                list(calls), lambda run: self._publish_call(calls[run], reports, delays), delays
            )
        return queued_count

    async def _for_each(
        self, runs: Sequence[DueRun], publish: Callable[[DueRun], Awaitable[bool]], delays: dict[DueRun, int]
    ) -> int:
        """Call `publish` for each run until the broker is unavailable, and return the number of results that are
        True."""
        count = 0
        for number, run in enumerate(runs):
            self._metrics.record_progress(self.name)
            try:
                count += await publish(run)
            except PublicationFailed as e:
                delays[run] = await self._retry_publication(run, e)
            except RunNotAccepted as e:  # the following runs may have another route
                log_fields = about(Action.RUN_NOT_PUBLISHED, run.ref.name, agent=run.agent)
                logger.warning("run %s not published, retrying: %s", run.ref.name, e, extra=log_fields)
            except BrokerUnavailable as e:
                log_fields = about(Action.RUN_NOT_PUBLISHED, runs=len(runs) - number)
                logger.warning("%d runs not published, retrying: %s", len(runs) - number, e, extra=log_fields)
                break
            except StoreUnavailable:
                raise
            except Exception:  # for example, unreadable options: the run must not block the following runs
                delays[run] = self.redispatch_after_us
                log_fields = about(Action.RUN_NOT_PUBLISHED, run.ref.name, agent=run.agent)
                logger.exception("run %s not published, retrying", run.ref.name, extra=log_fields)
        return count

    async def _publish_run(self, run: DueRun, delays: dict[DueRun, int], calls: dict[DueRun, PublishedCall]) -> bool:
        """Publish, reject or postpone a run; see `_publish`. Return True if the run still waits in its queue.

        A published run of a plain task is added to `calls` if a worker may have fetched its message.

        Raises:
            PublicationFailed: The app raised an exception.
            RunNotAccepted: The broker did not accept this run.
            BrokerUnavailable: The broker is unreachable.
            StoreUnavailable: The store is unavailable.
        """
        options, now = RunOptions.from_json(run.options), EPOCH + run.acquired_us * MICROSECOND
        if options.has_expired(min(now, self._clock.now() + MAX_CLOCK_ERROR)):
            reply = await self._end(run.ref, Refused(NOT_BEGUN_IN_TIME))
            log_fields = about(Action.RUN_EXPIRED, run.ref.name)
            logger.info("run %s did not start before it expired: %s", run.ref.name, reply, extra=log_fields)
            del delays[run]
            return False
        if delay := options.publish_delay(now):
            delays[run] = delay // timedelta(microseconds=1)
            return False
        if options.call is not None:
            observation = await self._observe(run.ref, is_retry=bool(options.retries))
            progress = Progress.UNKNOWN if observation is None else observation.progress
            if progress in (Progress.ENDED, Progress.RETRIED):
                self._postpone(run, self._wait_us(run, options), delays)
                return False
            if run.was_published or progress is Progress.STARTED:
                call = await self._published_call(run, options, observation)
                if not call.is_queued or run.published_us is None:
                    calls[run] = call
                    return False
                self._postpone(run, _queue_wait_us(run), delays)
                return True
        elif await self.backlog.may_hold(run, options):
            delays[run] = _queue_wait_us(run)
            return True
        await self._publish_now(run, options, delays)
        return False

    async def _published_call(self, run: DueRun, options: RunOptions, observation: Observation | None) -> PublishedCall:
        is_readable, observation = observation is not None, observation or Observation(Progress.UNKNOWN)
        # The queue cannot have been seen empty since an unknown time, so it must be empty now.
        published_us = min(run.last_published_us or run.acquired_us, run.acquired_us - 1)
        is_queued = observation.progress is not Progress.STARTED and await self.backlog.may_hold(
            replace(run, published_us=published_us), options
        )
        return PublishedCall(run, options, observation, is_queued, is_readable)

    async def _publish_call(self, call: PublishedCall, reports: RunReports | None, delays: dict[DueRun, int]) -> bool:
        """Publish a run of a plain task again, end it as lost, or postpone it. Return True if the run still waits in
        its queue.

        Args:
            call: Published run.
            reports: Replies of the workers, or None if the workers could not be queried.
            delays: See `_publish`.
        """
        run, options = call.run, call.options
        if reports is None:
            self._postpone(run, self._wait_us(run, options), delays, run.unreported_us)
            return False
        is_started = call.observation.progress is Progress.STARTED
        queue = self.backlog.queue_of(run.agent, options)
        if not is_started and reports.are_claimed(queue):
            if run.published_us is not None and _age_us(run) < _poll_limit_us(options, self.redispatch_after_us):
                self._postpone(run, self._wait_us(run, options), delays)
            else:
                await self._publish_now(run, options, delays)
            return False
        if run.ref.name in reports.reported:
            self._postpone(run, self._wait_us(run, options), delays)
            return False
        # A worker that stops returns its messages to the queue.
        may_be_returned = not is_started and not await self.backlog.is_empty(run, options)
        if call.is_queued or (may_be_returned and not reports.has_consumers(queue)):
            self._postpone(run, max(_queue_wait_us(run), self._absence_wait_us), delays)
            return True
        unreported_us = run.acquired_us if run.unreported_us is None else run.unreported_us
        limit_us = UNREPORTED_WAITS * self.redispatch_after_us
        if may_be_returned or _was_fetched(run) or not call.is_readable:
            limit_us = max(limit_us, MAX_REDISPATCH_WAIT_US)
        if call.observation.worker in reports.workers or run.acquired_us - unreported_us >= limit_us:
            await self._results.give_up(run.ref)
            self._publisher.revoke_soon([run.ref.name])  # its message may be redelivered
        wait_us = self._wait_us(run, options) if reports.has_consumers(queue) else self._absence_wait_us
        self._postpone(run, wait_us, delays, unreported_us)
        return False

    async def _publish_now(self, run: DueRun, options: RunOptions, delays: dict[DueRun, int]) -> None:
        now = EPOCH + run.acquired_us * MICROSECOND
        await self._publisher.publish_async(run.agent, run.ref, options.without_past_times(now))
        del delays[run]
        self._failed_publications.pop(run.ref, None)
        if run.was_published:
            self._metrics.count_redispatch()
            log_fields = about(Action.RUN_DISPATCHED_AGAIN, run.ref.name, agent=run.agent)
            logger.info("run %s published again", run.ref.name, extra=log_fields)
        else:
            logger.debug("run %s published", run.ref.name)

    def _postpone(
        self, run: DueRun, delay_us: int, delays: dict[DueRun, int], unreported_us: int | None = None
    ) -> None:
        """Postpone a run of a plain task that was not published, without a change of its publication."""
        del delays[run]
        published_us = None if _was_fetched(run) else run.last_published_us
        delays[replace(run, published_us=published_us, unreported_us=unreported_us)] = delay_us

    def _wait_us(self, run: DueRun, options: RunOptions) -> int:
        """Return the µs until a run of a plain task is observed again.

        The wait does not double, since the run was not published. If the result must be polled, the waits are as long
        as the run is old, up to `redispatch_after`.
        """
        if options.call is None or not options.call.polled:
            return self.redispatch_after_us
        return min(max(_age_us(run), MIN_QUEUE_RECHECK_US), self.redispatch_after_us)

    async def _observe(self, ref: RunRef, *, is_retry: bool) -> Observation | None:
        """Return the progress of a run of a plain task in the result backend, or None if the backend does not reply.

        If a worker without this package has ended the Celery task, this method also ends the run. A result backend that
        does not reply is queried only once per tick, so that other runs can be published.
        """
        if not self._results_reply:
            return None
        try:
            async with self._clock.timeout(RESULTS_TIMEOUT):
                return await self._results.reconcile(ref, is_retry=is_retry)
        except Exception as e:
            if self._errors.is_new(e):
                logger.warning("run %s: the result backend does not reply: %r", ref.name, e)
            self._results_reply = False
            return None

    async def _find(self, names: Sequence[str]) -> RunReports | None:
        """Query the workers for runs of plain tasks. Return None if the query fails, for example because the broker is
        unavailable."""
        try:
            async with self._clock.timeout(FIND_TIMEOUT):
                return await self._results.find(names)
        except Exception as e:
            if self._errors.is_new(e):
                logger.warning("%d runs: could not query the workers: %r", len(names), e)
            return None

    async def _retry_publication(self, run: DueRun, error: PublicationFailed) -> int:
        """Return the delay of the next attempt to publish `run`, in µs. After the last attempt, end the run.

        The exception may be temporary, for example because a lock of the app expires, so that the delay doubles. A run
        that was published before is not ended, because its message may wait in the queue, and may hold the lock.
        """
        count = self._failed_publications.pop(run.ref, 0) + 1
        log_fields = about(Action.RUN_NOT_PUBLISHED, run.ref.name, agent=run.agent)
        if run.was_published:
            logger.warning("run %s not published again, retrying: %s", run.ref.name, error, extra=log_fields)
            return min(max(_age_us(run), self.redispatch_after_us), MAX_REDISPATCH_WAIT_US)
        if count < MAX_FAILED_PUBLICATIONS:
            if len(self._failed_publications) >= MAX_COUNTED_RUNS:
                del self._failed_publications[next(iter(self._failed_publications))]
            self._failed_publications[run.ref] = count
            logger.warning("run %s not published, retrying: %s", run.ref.name, error, extra=log_fields)
        else:
            reference = uuid4().hex[:12]
            await self._end(run.ref, Failure(NOT_PUBLISHED, reference))
            logger.error("run %s failed: %s [reference %s]", run.ref.name, error, reference, extra=log_fields)
        return BROKER_RETRY_US << count - 1

    async def _end(self, ref: RunRef, outcome: Outcome) -> Over | Unchanged | None:
        head = read_task(self._keys, None, ref.task_id, history_length=0, artifacts=False, resolve_blobs=False)
        snapshot = await self._store.run(head)
        event = snapshot and final_event(outcome, ref.task_id, snapshot[0].context_id)
        if not event:
            return None
        return await self._store.run(end_run(self._keys, ref, runner=None, event=event))


def _was_fetched(run: DueRun) -> bool:
    """Return True if a lost worker with this package had fetched the message of a run. A Redis broker redelivers the
    message after the visibility timeout."""
    return run.was_published and run.published_us is None and _age_us(run) < MAX_REDISPATCH_WAIT_US


def _age_us(run: DueRun) -> int:
    """Return the µs since the last publication of a run, or 0 if the time is unknown."""
    return run.acquired_us - (run.last_published_us or run.acquired_us)


def _queue_wait_us(run: DueRun) -> int:
    """Return the µs until a run that may be in its queue is checked again. The time doubles with each check."""
    return min(max(_age_us(run), MIN_QUEUE_RECHECK_US), MAX_REDISPATCH_WAIT_US)


def _poll_limit_us(options: RunOptions, redispatch_after_us: int) -> int:
    """Return the µs after its publication during which a run is only polled and not published again."""
    return redispatch_after_us if options.call is not None and options.call.polled else 0
