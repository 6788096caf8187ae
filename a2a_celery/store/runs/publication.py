"""Commands that publish runs: due runs, published runs, and runs that workers have prefetched or claimed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from ...clock import SYSTEM_CLOCK, Clock
from ...errors import StoreUnavailable
from ...lifecycle.references import RunRef
from ..client.connection import AsyncStore
from ..keys import Keys
from ..operation import Operation
from ..verbs import Digits, Reply, no_result, verb

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
        published_us: Time of the last publication, in µs, or None if a run that its worker claims must be published
            regardless of its queue.
        acquired_us: Time at which the run was acquired, in µs.
        last_published_us: Time of the last publication, in µs, 0 if the time is unknown, or None if the run was not
            published. None after a resumption, until the run is published.
        unreported_us: Time since which no worker reports the run, in µs, or None.
    """

    ref: RunRef
    agent: str
    options: bytes
    published_us: int | None = None
    acquired_us: int = field(default=0, compare=False)
    last_published_us: int | None = field(default=None, compare=False)
    unreported_us: int | None = field(default=None, compare=False)

    @property
    def was_published(self) -> bool:
        return self.last_published_us is not None


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


class PublishedRun(NamedTuple):
    """Published run, as the script receives it.

    Attributes:
        name: Name of the run; see `RunRef.name`.
        delay_us: See `Publication`.
        retries: See `Publication`.
    """

    name: str
    delay_us: int
    retries: int


def mark_published(keys: Keys, ref: RunRef, *, delay_us: int, retries: int = 0) -> Operation[None]:
    """Record that the broker has the message of a run; see `Publication`.

    The operation has no effect if the run has been claimed, or has been retried more often than `retries`.
    """
    return mark_all_published(keys, {ref: Publication(delay_us, retries)})


def mark_all_published(keys: Keys, runs: Mapping[RunRef, Publication]) -> Operation[None]:
    """Record that the broker has the messages of several runs; see `mark_published`."""
    return _mark_published(keys, [PublishedRun(ref.name, *publication) for ref, publication in runs.items()])


@verb
def _mark_published(keys: Keys, runs: Sequence[PublishedRun]) -> Reply[None]:
    return Reply(no_result)


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
        self._closing = asyncio.Event()

    def add(self, ref: RunRef, delay_us: int, retries: int = 0) -> None:
        """Record later that the broker has the message of a run; see `mark_published`."""
        self._published[ref] = Publication(delay_us, retries)
        if self._recording is None:
            self._recording = asyncio.create_task(self._record_later(), name="a2a-published-runs")

    async def aclose(self) -> None:
        """Record the remaining published runs."""
        self._closing.set()  # a write that is under way must not be cancelled, because its runs would be lost
        if self._recording is not None:
            await self._recording

    async def _record_later(self) -> None:
        while self._published:
            with suppress(TimeoutError):
                async with self._clock.timeout(RECORD_INTERVAL):
                    await self._closing.wait()
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


class PostponedRun(NamedTuple):
    """Run that is not published, as the script receives it.

    Attributes:
        name: Name of the run; see `RunRef.name`.
        delay_us: µs until the run is due again.
        published_us: Time of the last publication, in µs, 0 if the time is unknown, or None if the run was not
            published.
        unreported_us: See `DueRun`.
    """

    name: str
    delay_us: int
    published_us: Digits | None
    unreported_us: Digits | None


def _postponed_runs(runs: Mapping[DueRun, int]) -> Sequence[PostponedRun]:
    postponed_runs: list[PostponedRun] = []
    for run, delay_us in runs.items():
        published_us = 0 if run.published_us is None and run.was_published else run.published_us
        postponed_runs.append(PostponedRun(run.ref.name, delay_us, published_us, run.unreported_us))
    return postponed_runs


@verb
def postpone_runs(keys: Keys, runs: Annotated[Mapping[DueRun, int], _postponed_runs]) -> Reply[None]:
    """Undo `acquire_due_runs` for runs that were not published. `runs` maps each run to the µs until it is due
    again."""
    return Reply(no_result)


def _names(refs: Sequence[RunRef]) -> Sequence[str]:
    return [ref.name for ref in refs]


@verb
def report_prefetched(
    keys: Keys, runs: Annotated[Sequence[RunRef], _names], *, silent_us: int, delay_us: int
) -> Reply[None]:
    """Record that a worker has prefetched runs.

    Args:
        keys: Keys of the deployment.
        runs: Prefetched runs.
        silent_us: µs without a report after which the runs are published again.
        delay_us: µs after the first report after which the runs are published again in any case.
    """
    return Reply(no_result)


@verb
def acquire_due_runs(keys: Keys, *, limit: int, delay_us: int) -> Reply[list[DueRun]]:
    """Acquire up to `limit` runs to publish.

    An acquired run is due again after `delay_us`. Each further publication doubles this delay, up to
    `MAX_REDISPATCH_WAIT_US`. If the client has delayed the start of a run, the delay is added to the start time.
    """

    def parse(reply: Sequence[bytes]) -> list[DueRun]:
        acquired_us, runs = int(reply[0]), zip(*[iter(reply[1:])] * 7, strict=True)
        return [
            DueRun(
                RunRef(task_id.decode(), int(run)),
                agent.decode(),
                options,
                int(published_us) if published_us else None,
                acquired_us,
                int(last_published_us) if last_published_us else None,
                int(unreported_us) if unreported_us else None,
            )
            for task_id, run, agent, options, published_us, last_published_us, unreported_us in runs
        ]

    return Reply(parse)


@verb
def claimed_runs(keys: Keys, *, limit: int) -> Reply[list[ClaimedRun]]:
    """Read the runs of the `limit` newest leases, except runs that were published more than once."""

    def parse(reply: Sequence[bytes]) -> list[ClaimedRun]:
        runs = zip(*[iter(reply)] * 3, strict=True)
        return [ClaimedRun(agent.decode(), options, int(published)) for agent, options, published in runs]

    return Reply(parse)
