"""Recovery of runs whose lease expired, and of tasks whose pause expired.

A worker that dies stops renewing its leases. When a lease expires, the worker loses the run. By default, an agent runs
at most once, so the task becomes FAILED. With `max_attempts`, the task gets another run on any worker. A worker that
was only suspended learns that it lost the run. Such a worker can no longer write, and cancels its agent.

The watcher also recovers a run that a worker returned at its shutdown but could not publish. For all other lost runs,
the watcher sends Celery's task events on behalf of the lost worker, so that monitors such as Flower show that the
run has ended.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import inf

from ..clock import SYSTEM_CLOCK, Clock
from ..dispatch import Publisher
from ..errors import StoreUnavailable
from ..store import AsyncStore, Keys, Operation
from ..store.runs.recovery import Lapsed, LapsedRuns, begin_next_attempt, lapsed_runs
from ..store.tasks.commands import end_pauses
from ..telemetry.logs import about
from ..telemetry.names import Action

logger = logging.getLogger(__name__)

LEASE_BATCH = 100
PAUSE_BATCH = 10
"""Number of pauses that one script ends. The end of a task with a long log takes up to 3 ms of Redis."""

FIRST_DELAY_US = 500_000
MAX_DELAY_US = 60_000_000

MAX_LEASE_FACTOR = 4
"""Maximum lease duration of a worker, as a multiple of the watcher's `lease_ttl`. While the setting is being changed,
workers and watchers may have different values."""

MAX_CLOCK_DRIFT = 1.0
"""Seconds by which the store's clock and this machine's clock may drift apart between two ticks. A greater difference
is a jump of the store's clock."""

RETRY_AFTER = 30.0
"""Seconds before the recovery of a run is retried, if the store is available but the task cannot be read or written."""


def delay_after(attempt: int) -> int:
    """Return the delay in µs between the lost attempt number `attempt`, from 1, and the next attempt.

    The delay doubles with each attempt, because the agent may kill its workers.
    """
    return min(FIRST_DELAY_US << (attempt - 1), MAX_DELAY_US)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Reading of the store's clock. The store read its clock between `asked_at` and `answered_at`.

    Attributes:
        time_us: Time of the store in µs.
        asked_at: Seconds of this machine's `Clock.boottime` before the call.
        answered_at: Seconds of this machine's `Clock.boottime` after the reply.
    """

    time_us: int
    asked_at: float
    answered_at: float

    def jump_since(self, earlier: ClockReading) -> float:
        """Return the seconds by which the store's clock has jumped since `earlier`, negative for a jump back."""
        shortest, longest = self.asked_at - earlier.answered_at, self.answered_at - earlier.asked_at
        elapsed = (self.time_us - earlier.time_us) / 1_000_000
        return elapsed - min(max(elapsed, shortest), longest)


class Recoverer:
    """Watcher role that recovers runs whose leases have expired. Each run is recovered by only one watcher.

    Attributes:
        lease_ttl: Duration of a lease in seconds. None to recover each run as soon as its lease has expired, also after
            a start, an outage or a jump of the store's clock.
    """

    name = "recoverer"
    every = 0.5

    def __init__(
        self,
        store: AsyncStore,
        keys: Keys,
        lease_ttl: float | None = None,
        publisher: Publisher | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._keys = keys
        self.lease_ttl = lease_ttl
        self._publisher = publisher
        self._clock = clock
        self._reading: ClockReading | None = None
        self._retry_at: dict[str, float] = {}
        self._not_before = -inf

    async def tick(self) -> None:
        """Recover all runs whose lease expired.

        No run is recovered for half of `lease_ttl` after the watcher started, after the store was unavailable or slow,
        or after the host of the watcher was suspended, and for `lease_ttl` after a jump of the store's clock. During
        this time, workers can renew expired leases.
        """
        try:
            asked_at = self._clock.boottime()
            reply = await self._store.run(self._lapsed_runs())
            self._compare_clocks(ClockReading(reply.time_us, asked_at, self._clock.boottime()))
            if self._clock.boottime() < self._not_before:
                return
            for run in reply.runs:
                if self._retry_at.get(run.ref.name, -inf) <= self._clock.boottime():
                    await self._recover(run)
            names = {run.ref.name for run in reply.runs}
            self._retry_at = {name: at for name, at in self._retry_at.items() if name in names}
        except StoreUnavailable:
            self._wait_for_workers(0.5)
            raise

    def _compare_clocks(self, reading: ClockReading) -> None:
        last, self._reading = self._reading, reading
        if self.lease_ttl is None:
            return
        if last is None or reading.answered_at - last.answered_at > self.lease_ttl / 2 + self.every:
            self._wait_for_workers(0.5)
        jump = 0.0 if last is None else reading.jump_since(last)
        if abs(jump) > MAX_CLOCK_DRIFT:
            self._wait_for_workers(1)
            logger.warning(
                "the store's clock jumped %.1f s %s; no run is recovered for %g s, so that workers can renew leases",
                abs(jump),
                "forward" if jump > 0 else "backward",
                self.lease_ttl,
                extra=about(Action.STORE_CLOCK_JUMPED, seconds=round(jump, 1)),
            )

    def _wait_for_workers(self, leases: float) -> None:
        """Recover no run for `leases` times `lease_ttl`, so that workers can renew expired leases."""
        until = self._clock.boottime() + leases * (self.lease_ttl or 0)
        self._not_before = max(self._not_before, until)

    def _lapsed_runs(self) -> Operation[LapsedRuns]:
        longest_us = None if self.lease_ttl is None else int(MAX_LEASE_FACTOR * self.lease_ttl * 1_000_000)
        limit = LEASE_BATCH + len(self._retry_at)
        return lapsed_runs(self._keys, limit=limit, longest_lease_us=longest_us)

    async def _recover(self, lapsed_run: Lapsed) -> None:
        """Recover a run. A failure is raised only if the store is unavailable or refuses writes."""
        name = lapsed_run.ref.name
        try:
            await self._start_next_attempt(lapsed_run)
            self._retry_at.pop(name, None)
        except Exception as e:
            await self._store.run(self._lapsed_runs())  # raises if the store is unavailable, or refuses writes
            self._retry_at[name] = self._clock.boottime() + RETRY_AFTER
            text = "run %s of %s was %s and its task could not be written, retrying in %g s: %s"
            log_fields = about(Action.RUN_LOST, name, agent=lapsed_run.agent, outcome="postponed")
            reason = e or type(e).__name__
            logger.warning(text, name, lapsed_run.agent, _end_text(lapsed_run), RETRY_AFTER, reason, extra=log_fields)

    async def _start_next_attempt(self, lapsed_run: Lapsed) -> None:
        delay_us = 0 if lapsed_run.returned else delay_after(lapsed_run.attempt)
        lapse = await begin_next_attempt(self._store, self._keys, lapsed_run, delay_us=delay_us)
        outcome: str = lapse.outcome
        match lapse.outcome:
            case "again":
                outcome = "returned" if lapsed_run.returned else "again"
                consequence = f"run {lapse.next_run} follows"
            case "failed":
                consequence = f"its task failed: a2a requeue {lapsed_run.ref.task_id} runs it again"
            case "canceled":
                consequence = "its task is canceled"
            case _:
                return  # another watcher recovered the run, or the next tick does
        level = logging.INFO if lapsed_run.returned else logging.WARNING
        log_fields = about(Action.RUN_LOST, lapsed_run.ref.name, agent=lapsed_run.agent, outcome=outcome)
        arguments = (lapsed_run.ref.name, lapsed_run.agent, _end_text(lapsed_run), consequence)
        logger.log(level, "run %s of %s was %s; %s", *arguments, extra=log_fields)
        if lapsed_run.worker and not lapsed_run.returned and self._publisher is not None:
            run = (lapsed_run.agent, lapsed_run.ref.task_id, lapsed_run.ref.run)
            self._publisher.lost_soon(
                *run, lapsed_run.worker, canceled=lapse.outcome == "canceled", call=lapsed_run.call
            )


def _end_text(lapsed_run: Lapsed) -> str:
    return "returned by its worker at shutdown" if lapsed_run.returned else "lost"


class PauseExpirer:
    """Watcher role that fails tasks whose clients have not answered in time. Each task is failed by only one
    watcher."""

    name = "pause expirer"
    every = 1.0

    def __init__(self, store: AsyncStore, keys: Keys) -> None:
        self._store = store
        self._keys = keys

    async def tick(self) -> None:
        """Fail all tasks whose pause expired."""
        while ended_count := await self._store.run(end_pauses(self._keys, limit=PAUSE_BATCH)):
            log_fields = about(Action.PAUSES_ENDED, tasks=ended_count)
            logger.info("%d tasks failed because they waited too long for their clients", ended_count, extra=log_fields)
