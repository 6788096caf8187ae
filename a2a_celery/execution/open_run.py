"""Run that this worker has claimed: its claim, its access to the store, and the end that the agent's code requests.

Store operations of a run are retried while the store is unavailable, until the run is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from a2a.types import Part, Task

from ..agents import Agent
from ..clock import SYSTEM_CLOCK, Clock
from ..concurrency import LeanEvent
from ..errors import BlobsUnavailable, StoreUnavailable
from ..features.feature import RunFeature
from ..lifecycle.journal import JournalEntry
from ..operations.submitter import TaskSubmitter
from ..settings import Settings
from ..store import AsyncStore, Keys, Operation
from ..store.client.connection import RETRY_INTERVAL
from ..store.log.follower import LogFollower
from ..store.runs.commands import Claim, NotClaimed, RunLost
from ..store.runs.journal import read_journal
from ..store.runs.suspension import Wait
from ..store.tasks.commands import read_task
from ..store.verbs import Section
from .limits import IdleClock

logger = logging.getLogger(__name__)

T = TypeVar("T")
F = TypeVar("F", bound=RunFeature)

BLOB_TIMEOUT = 30.0
"""Seconds for which a run retries an unavailable object store. The run cannot continue without its large parts."""


class TaskAccess(NamedTuple):
    """Access of the runs of a worker process to other tasks of the app."""

    submitter: TaskSubmitter
    follower: LogFollower


class AskedQuestion(NamedTuple):
    """Question of the `Turn` that ends the run: its parts, and the section of ``settle_run`` that stores it, or
    None."""

    parts: Sequence[Part]
    section: Section[Any] | None


@dataclass(frozen=True, slots=True)
class PendingWait:
    """Wait for which the run is suspended.

    Attributes:
        wait: The wait. Its duration is not set yet if there is a `deadline`.
        deadline: Monotonic time at which the wait times out, or None if the wait has no limit or ends at a given time.
        ends_at: End of the wait as shown to clients, by the clock of this machine, or None for a wait without a limit
            or for another task.
    """

    wait: Wait
    deadline: float | None
    ends_at: datetime | None

    def remaining(self, now: float) -> Wait:
        """Return the wait with the duration that remains at the monotonic time `now`."""
        if self.deadline is None:
            return self.wait
        return replace(self.wait, wait_us=max(0, int((self.deadline - now) * 1_000_000)))


@dataclass(slots=True, eq=False)  # each waiting run has an instance
class OpenRun:
    """Run that this worker has claimed. Its event queue, its `Turn`, its journal and its features share the object.

    Attributes:
        store: Client of the store; see `execute`.
        claim: Claim of the run, complete after `complete_claim`.
        agent: Agent of the run.
        tasks: Access to other tasks of the app, or None for a plain Celery task.
        idle_clock: Time of the agent's last activity.
        message_arrived: Event that is set when a message of the client may have arrived.
        features: Opened features. Methods of the `Turn` may add features.
        is_lost: True if the run is lost for this process.
        is_stopping: True if the run must stop.
        question: Question that ends the run, or None.
        refuses_answer: True if the agent has refused the last answer to `Turn.ask`, so the next message answers the
            question.
        read_count: Number of waiting messages that the agent has read. The first unread message begins a turn.
        wait: Wait of `Turn.sleep`, `Turn.wait_for` or `Turn.call` that ends the run, or None.
        error: Error with which the run must fail, or None.
    """

    store: AsyncStore
    keys: Keys
    claim: Claim
    settings: Settings
    agent: Agent
    clock: Clock = SYSTEM_CLOCK
    tasks: TaskAccess | None = None
    idle_clock: IdleClock = field(init=False)
    message_arrived: LeanEvent = field(init=False, default_factory=LeanEvent)
    features: tuple[RunFeature, ...] = field(init=False, default=())
    is_lost: bool = field(init=False, default=False)
    is_stopping: bool = field(init=False, default=False)
    question: AskedQuestion | None = field(init=False, default=None)
    refuses_answer: bool = field(init=False, default=False)
    read_count: int = field(init=False, default=0)
    wait: PendingWait | None = field(init=False, default=None)
    error: BaseException | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.idle_clock = IdleClock(self.clock)

    def add_feature(self, feature: RunFeature) -> None:
        """Add an opened feature."""
        self.features += (feature,)

    def feature(self, kind: type[F]) -> F | None:
        """Return the feature of the class `kind`, or None if the agent does not use the feature."""
        return next((feature for feature in self.features if isinstance(feature, kind)), None)

    def close_features(self) -> None:
        """Forget the features of a run that has ended, because the run may be part of a reference cycle."""
        self.features = ()

    def agent_returned(self) -> None:
        """Check that the agent may return; see `RunFeature.agent_returned`."""
        for feature in self.features:
            feature.agent_returned()

    def mark_lost(self) -> None:
        """Record that the run is lost, on behalf of its event queue. Operations that wait for the store are abandoned.
        Other code calls `RunEventQueue.mark_lost`."""
        self.is_lost = True

    def stop(self) -> None:
        """Record that the run must stop."""
        self.is_stopping = True

    def ask(self, parts: Sequence[Part], section: Section[Any] | None = None) -> None:
        """End the run with a question. The next run receives the answer."""
        self.question = AskedQuestion(parts, section)

    def refuse_answer(self) -> None:
        """Let the next message answer the question whose last answer the agent has refused, if all features can discard
        the effects of this answer."""
        self.refuses_answer = all(feature.forget_answer() for feature in self.features)

    def count_read(self, read_count: int) -> None:
        """Record how many waiting messages the agent has read."""
        self.read_count = read_count

    def suspend(self, wait: PendingWait) -> None:
        """End the run until `wait` ends. Only the first wait of the run takes effect."""
        self.wait = self.wait or wait

    def fail(self, error: BaseException) -> None:
        """Fail the run with `error`, even if the agent catches the error. The task can be resubmitted, and keeps its
        journal, and the work of the run continues. Only the first error takes effect."""
        self.error = self.error or error

    async def execute(self, operation: Operation[T]) -> T | RunLost:
        """Execute an operation of the store, and retry it until the store is available.

        Returns:
            The result of the operation, or RunLost if the run was lost while the operation waited for the store.

        Raises:
            BlobsUnavailable: The object store is unavailable for `BLOB_TIMEOUT` seconds.
        """
        until: float | None = None
        while True:
            try:
                reply = await self.store.run(operation)
                if isinstance(reply, RunLost) and reply.missing:
                    text = "run %s is lost: the store lost %d confirmed events, perhaps by a restore from older data"
                    logger.error(text, self.claim.ref.name, reply.missing)
                return reply
            except StoreUnavailable as e:
                if self.is_lost:
                    return RunLost()
                if isinstance(e, BlobsUnavailable):
                    until = until or self.clock.monotonic() + BLOB_TIMEOUT
                    if self.clock.monotonic() > until:
                        raise
                logger.warning("run %s: a write waits for the store: %s", self.claim.ref.name, e)
                await self.clock.sleep(RETRY_INTERVAL)

    async def complete_claim(self, make_claim: Callable[[], Operation[Claim | NotClaimed]] | None = None) -> None:
        """Read the parts of the claim from the object store, and a journal that does not fit into the claim.

        Args:
            make_claim: Function that builds the operation that repeats the claim. None for a claim without unresolved
                references.

        Raises:
            CancelledError: Another worker has the run.
            BlobsUnavailable: See `execute`.
        """
        if make_claim is not None:
            claim = await self.execute(make_claim())
            if not isinstance(claim, Claim):
                raise asyncio.CancelledError
            self.claim = claim
        if self.claim.journal.entries is None:
            journal = replace(self.claim.journal, entries=await self._read_journal())
            self.claim = replace(self.claim, journal=journal)

    async def _read_journal(self) -> dict[str, JournalEntry]:
        entries: dict[str, JournalEntry] = {}
        cursor = "0"
        while True:
            page = await self.execute(read_journal(self.keys, self.claim.ref, token=self.claim.token, cursor=cursor))
            if isinstance(page, RunLost):
                raise asyncio.CancelledError
            entries.update(page.entries)
            cursor = page.cursor
            if cursor == "0":
                return entries

    async def own_tasks(self, task_ids: Sequence[str]) -> list[Task]:
        """Read the tasks `task_ids`. Tasks of another agent, tenant or owner are left out."""
        if not task_ids:  # the usual case
            return []

        async def read(task_id: str) -> Task | None:
            snapshot = await self.execute(read_task(self.keys, self.claim.scope, task_id))
            return snapshot[0] if isinstance(snapshot, tuple) else None

        tasks = await asyncio.gather(*(read(task_id) for task_id in dict.fromkeys(task_ids)))
        return [task for task in tasks if task is not None]
