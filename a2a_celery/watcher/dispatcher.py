"""Publishes runs that no worker claimed: whose first publish failed, or got lost on its way.

A run is due a few seconds after its creation unless its publish succeeded; then, and after each try of ours, later
and later. A run is not published while its queue may still hold the message, so that a queue that is merely long is not
filled with copies. A copy does no harm: a run is claimed once.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from ..clock import SYSTEM_CLOCK, Clock
from ..dispatch import BrokerQueues, Publisher, RunOptions
from ..errors import BrokerUnavailable, RunNotTaken
from ..lifecycle import Refused, final_event
from ..lifecycle.outcomes import NOT_BEGUN_IN_TIME
from ..store import AsyncStore, Keys
from ..store.dispatch import MAX_REDISPATCH_WAIT_US, DueRun, claimed_runs, postpone_runs, take_due_runs
from ..store.runs import RunRef, end_run
from ..store.tasks import read_task
from ..telemetry.logs import about
from ..telemetry.names import Action
from .figures import WatcherFigures
from .results import Results

logger = logging.getLogger(__name__)

BATCH = 100
LOOK_AGAIN_US = 1_000_000
"""A run that may be in its queue is looked at again when it has waited twice as long, and after this long at least."""
MAX_QUEUES = 1000
"""Queues that are remembered at once; routes may name any number of them."""
MAX_CLAIMS = 200
"""Leases that are read in a tick, the newest first."""
BROKER_BACK_US = 2_000_000
"""How long a broker that took nothing is left alone, and a run that it does not take."""
RESULTS_PATIENCE = 5.0
"""Seconds that the result backend, and a worker it names, have to say something of a run."""


class Backlog:
    """Messages that the broker's queues may still hold.

    A queue that was seen empty holds no message that was published before. A queue is first in, first out: it holds no
    message that was published well before the message of a run that a worker has claimed.
    """

    def __init__(self, store: AsyncStore, keys: Keys, queues: BrokerQueues, overtaken_after: float) -> None:
        self._store = store
        self._keys = keys
        self._queues = queues
        self._overtaken_us = int(overtaken_after * 1_000_000)
        self._asked_at: dict[str, int] = {}
        self._empty_at: dict[str, int] = {}
        self._claimed_us: dict[tuple[str, int | None], int] = {}
        self._claims_are_read = False

    def start_tick(self) -> None:
        """Read the claimed runs again when a run of this tick needs them."""
        self._claims_are_read = False

    async def may_hold(self, run: DueRun, options: RunOptions) -> bool:
        """Return whether the queue of `run` may still hold its message. A queue is asked once for runs taken together.

        Raises:
            BrokerUnavailable: the broker did not say so.
        """
        if run.published_us is None:
            return False
        queue = self._queue_of(run.agent, options)
        if queue is None:
            return False
        if self._asked_at.get(queue) != run.taken_us and run.published_us >= self._empty_at.get(queue, 0):
            if len(self._asked_at) >= MAX_QUEUES:
                self._asked_at.clear()
                self._empty_at.clear()
            self._asked_at[queue] = run.taken_us
            if await self._queues.is_empty(queue):
                self._empty_at[queue] = run.taken_us
        if run.published_us < self._empty_at.get(queue, 0):
            return False
        if not self._claims_are_read:
            await self._read_claims()
        newest_us = self._claimed_us.get((queue, self._queues.priority_of(run.agent, options)), 0)
        return run.published_us + self._overtaken_us >= newest_us

    def _queue_of(self, agent: str, options: RunOptions) -> str | None:
        try:
            return self._queues.queue_of(agent, options)
        except Exception as e:  # a router of the app, or a queue that it does not know: publishing says what is wrong
            logger.info("the queue of a run of agent %s is unknown: %r", agent, e)
            return None

    async def _read_claims(self) -> None:
        """Remember, for each queue and priority, the newest publish of a run that a worker has claimed."""
        self._claims_are_read = True
        newest: dict[tuple[str, bytes], int] = {}
        for run in await self._store.run(claimed_runs(self._keys, limit=MAX_CLAIMS)):
            source = run.agent, run.options
            newest[source] = max(run.published_us, newest.get(source, 0))
        if len(self._claimed_us) >= MAX_QUEUES:
            self._claimed_us.clear()
        for (agent, stored), published_us in newest.items():
            options = RunOptions.from_json(stored)
            if queue := self._queue_of(agent, options):
                key = queue, self._queues.priority_of(agent, options)
                self._claimed_us[key] = max(published_us, self._claimed_us.get(key, 0))


class Dispatcher:
    """One look at the runs that are due; several watchers never take the same one."""

    name = "dispatcher"
    every = 0.5

    def __init__(
        self,
        store: AsyncStore,
        keys: Keys,
        publisher: Publisher,
        redispatch_after: float,
        results: Results,
        figures: WatcherFigures | None = None,
        clock: Clock = SYSTEM_CLOCK,
        overtaken_after: float = 5.0,
    ) -> None:
        self._clock = clock
        self._tell = figures or WatcherFigures()
        self._store = store
        self._keys = keys
        self._publisher = publisher
        self._again_us = int(redispatch_after * 1_000_000)
        self._results = results
        self._results_answer = True
        self._backlog = Backlog(store, keys, publisher.queues, overtaken_after)

    async def tick(self) -> None:
        """Publishes what is due, and rejects what has expired. What the broker does not take, or still has, is due
        again, and what is not to begin soon is due shortly before its time."""
        self._backlog.start_tick()
        while await self._publish_due():
            pass  # runs behind many that wait in a long queue

    async def _publish_due(self) -> bool:
        """Publish a batch of due runs. Return whether it was full and all its runs still wait in their queues."""
        postponed: dict[DueRun, int] = {}
        queued = 0
        due = await self._store.run(take_due_runs(self._keys, limit=BATCH, again_us=self._again_us))
        self._results_answer = True
        for number, one in enumerate(due):
            self._tell.goes_on(self.name)
            options, now = RunOptions.from_json(one.options), self._clock.now()
            if options.has_expired(now):
                await self._reject(one.ref)
                continue
            if held := options.held_for(now):
                postponed[one] = held // timedelta(microseconds=1)
                continue
            if options.call is not None and not options.retries and await self._is_elsewhere(one.ref):
                continue
            try:
                if await self._backlog.may_hold(one, options):
                    postponed[one] = min(max(one.queued_us, LOOK_AGAIN_US), MAX_REDISPATCH_WAIT_US)
                    queued += 1
                    continue
                await self._publisher.publish_async(one.agent, one.ref.task_id, one.ref.run, one.options)
                self._tell.dispatched_again()
                said = about(Action.RUN_DISPATCHED_AGAIN, one.ref.name, agent=one.agent)
                logger.info("run %s dispatched again", one.ref.name, extra=said)
            except RunNotTaken as e:  # those behind it may go elsewhere
                said = about(Action.RUN_NOT_PUBLISHED, one.ref.name, agent=one.agent)
                logger.warning("run %s not dispatched, trying again: %s", one.ref.name, e, extra=said)
                postponed[one] = BROKER_BACK_US
            except BrokerUnavailable as e:
                said = about(Action.RUN_NOT_PUBLISHED, runs=len(due) - number)
                logger.warning("%d runs not dispatched, trying again: %s", len(due) - number, e, extra=said)
                postponed |= dict.fromkeys(due[number:], BROKER_BACK_US)
                break
        if postponed:
            await self._store.run(postpone_runs(self._keys, postponed))
        return queued == BATCH

    async def _is_elsewhere(self, ref: RunRef) -> bool:
        """Whether a worker without this package has the run, a plain Celery task; what it has done is ended here.

        A result backend that says nothing is asked once in a tick: other runs wait to be published.
        """
        if not self._results_answer:
            return False
        try:
            async with self._clock.timeout(RESULTS_PATIENCE):
                return await self._results.has(ref)
        except Exception as e:
            logger.warning("run %s: the result backend says nothing: %r", ref.name, e)
            self._results_answer = False
            return False

    async def _reject(self, ref: RunRef) -> None:
        head = read_task(self._keys, None, ref.task_id, history_length=0, artifacts=False, whole=False)
        found = await self._store.run(head)
        event = found and final_event(Refused(NOT_BEGUN_IN_TIME), ref.task_id, found[0].context_id)
        if event:
            answer = await self._store.run(end_run(self._keys, ref, runner=None, event=event))
            said = about(Action.RUN_EXPIRED, ref.name)
            logger.info("run %s was not begun in time: %s", ref.name, answer, extra=said)
