"""Commands that publish runs: due runs, published runs, and runs that workers have prefetched or claimed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...clock import SYSTEM_CLOCK, Clock
from ...errors import StoreUnavailable
from ..client.connection import AsyncStore
from ..keys import Keys
from ..operation import Argument, Operation, script
from .commands import RunRef

logger = logging.getLogger(__name__)

RECORD_INTERVAL = 0.25
"""Seconds between two writes of a `PublicationRecorder`. The interval is much shorter than `FIRST_PUBLISH_GRACE_US`,
after which a watcher publishes an unrecorded run."""
MAX_REDISPATCH_WAIT_US = 3600 * 1_000_000
"""Maximum µs between two publications of a run that no worker claims."""
MAX_CLAIMED_OPTIONS = 1024
"""Maximum size, in bytes, of the options that `claimed_runs` returns. Runs with larger options are omitted."""


@dataclass(frozen=True, slots=True)
class DueRun:
    """Run to publish.

    Attributes:
        agent: Name of the agent.
        options: Stored options of the run.
        published_us: Time of the last publication, in µs, or None if the run must be published regardless of its queue.
        acquired_us: Time at which the run was acquired, in µs.
        was_published: The run was published before. False after a resumption, until the run is published.
    """

    ref: RunRef
    agent: str
    options: bytes
    published_us: int | None = None
    acquired_us: int = field(default=0, compare=False)
    was_published: bool = field(default=False, compare=False)

    @property
    def queued_us(self) -> int:
        """µs since the last publication, or 0 if `published_us` is None."""
        return self.acquired_us - (self.published_us or self.acquired_us)


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """Claimed run that was published once, at `published_us` by the store's clock."""

    agent: str
    options: bytes
    published_us: int


class Publication(NamedTuple):
    """Publication of a run.

    Attributes:
        delay_us: µs after which the run is due again unless a worker claims it.
        retries: Number of retries in the message of the run.
    """

    delay_us: int
    retries: int = 0


def mark_published(keys: Keys, ref: RunRef, *, delay_us: int, retries: int = 0) -> Operation[None]:
    """Record that the broker has the message of a run; see `Publication`.

    The operation has no effect if the run has been claimed, or has been retried more often than `retries`.
    """
    return mark_all_published(keys, {ref: Publication(delay_us, retries)})


def mark_all_published(keys: Keys, runs: Mapping[RunRef, Publication]) -> Operation[None]:
    """Record that the broker has the messages of several runs; see `mark_published`."""
    records = [keys.task(ref.task_id).record for ref in runs]
    arguments: list[Argument] = []
    for ref, publication in runs.items():
        arguments += [ref.name, *publication]
    return Operation(script("mark_published"), [keys.dispatch, *records], arguments, lambda _: None)


class PublicationRecorder:
    """Recorder of published runs on one event loop. One write records all runs that were published in an interval.

    If recording fails or this process ends first, a watcher publishes the run again, and the worker drops the
    duplicate.
    """

    def __init__(self, store: AsyncStore, keys: Keys, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._published: dict[RunRef, Publication] = {}
        self._recording: asyncio.Task[None] | None = None

    def add(self, ref: RunRef, delay_us: int, retries: int = 0) -> None:
        """Record later that the broker has the message of a run; see `mark_published`."""
        self._published[ref] = Publication(delay_us, retries)
        if self._recording is None:
            self._recording = asyncio.create_task(self._record_later(), name="a2a-published-runs")

    async def aclose(self) -> None:
        """Record the remaining published runs."""
        if self._recording is not None:
            self._recording.cancel()
            await asyncio.wait({self._recording})
        await self._record()

    async def _record_later(self) -> None:
        while self._published:
            await self._clock.sleep(RECORD_INTERVAL)
            await self._record()
        self._recording = None

    async def _record(self) -> None:
        published_runs, self._published = self._published, {}
        if not published_runs:
            return
        text = "could not record %d published runs; watchers will publish them again"
        try:
            await self._store.run(mark_all_published(self._keys, published_runs))
        except StoreUnavailable as e:
            logger.warning(f"{text}: %s", len(published_runs), e)
        except Exception:  # later runs must still be recorded
            logger.exception(text, len(published_runs))


def postpone_runs(keys: Keys, runs: Mapping[DueRun, int]) -> Operation[None]:
    """Undo `acquire_due_runs` for runs that were not published. `runs` maps each run to the µs until it is due
    again."""
    records = [keys.task(run.ref.task_id).record for run in runs]
    arguments: list[Argument] = []
    for run, delay_us in runs.items():
        published_us: int | str = 0 if run.was_published else ""
        arguments += [run.ref.name, delay_us, published_us if run.published_us is None else run.published_us]
    return Operation(script("postpone_runs"), [keys.dispatch, *records], arguments, lambda _: None)


def report_prefetched(keys: Keys, refs: Sequence[RunRef], *, silent_us: int, delay_us: int) -> Operation[None]:
    """Record that a worker has prefetched runs.

    Args:
        keys: Keys of the deployment.
        refs: Prefetched runs.
        silent_us: µs without a report after which the runs are published again.
        delay_us: µs after the first report after which the runs are published again in any case.
    """
    arguments: list[Argument] = [silent_us, delay_us]
    for ref in refs:
        arguments += [ref.task_id, ref.run]
    records = [keys.task(ref.task_id).record for ref in refs]
    return Operation(script("report_prefetched"), [keys.dispatch, *records], arguments, lambda _: None)


def acquire_due_runs(keys: Keys, *, limit: int, delay_us: int) -> Operation[list[DueRun]]:
    """Acquire up to `limit` runs to publish.

    An acquired run is due again after `delay_us`. Each further publication doubles this delay, up to
    `MAX_REDISPATCH_WAIT_US`. If the client has delayed the start of a run, the delay is added to the start time.
    """

    def parse(reply: Sequence[bytes]) -> list[DueRun]:
        acquired_us, runs = int(reply[0]), zip(*[iter(reply[1:])] * 6, strict=True)
        return [
            DueRun(
                RunRef(task_id.decode(), int(run)),
                agent.decode(),
                options,
                int(published_us) if published_us else None,
                acquired_us,
                was_published == b"1",
            )
            for task_id, run, agent, options, published_us, was_published in runs
        ]

    return Operation(
        script("acquire_due_runs"), [keys.dispatch], [keys.prefix, limit, delay_us, MAX_REDISPATCH_WAIT_US], parse
    )


def claimed_runs(keys: Keys, *, limit: int) -> Operation[list[ClaimedRun]]:
    """Read the runs of the `limit` newest leases, except runs that were published more than once."""

    def parse(reply: Sequence[bytes]) -> list[ClaimedRun]:
        runs = zip(*[iter(reply)] * 3, strict=True)
        return [ClaimedRun(agent.decode(), options, int(published)) for agent, options, published in runs]

    return Operation(script("claimed_runs"), [keys.leases], [keys.prefix, limit, MAX_CLAIMED_OPTIONS], parse)
