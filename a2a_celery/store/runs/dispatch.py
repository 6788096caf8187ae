"""Commands on queued runs: find those to publish, and record what was published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..keys import Keys
from ..operation import Argument, Operation, script
from .commands import RunRef

MAX_REDISPATCH_WAIT_US = 3600 * 1_000_000
"""The longest time between two publishes of a run that no worker claims."""
MAX_CLAIMED_OPTIONS = 1024
"""Largest size in bytes of the options that `claimed_runs` returns; arguments of a plain Celery task can be large."""


@dataclass(frozen=True, slots=True)
class DueRun:
    """Run to publish.

    Attributes:
        agent: name of its agent.
        options: its stored options.
        published_us: time of its last publish, if its queue may still hold the message.
        acquired_us: time at which it was acquired.
    """

    ref: RunRef
    agent: str
    options: bytes
    published_us: int | None = None
    acquired_us: int = field(default=0, compare=False)

    @property
    def queued_us(self) -> int:
        """µs since its last publish."""
        return self.acquired_us - (self.published_us or self.acquired_us)


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """Claimed run that was published once, at `published_us` (time of the store, in µs)."""

    agent: str
    options: bytes
    published_us: int


def mark_published(keys: Keys, ref: RunRef, *, again_us: int) -> Operation[None]:
    """Record that the broker has the run. A watcher publishes it again if no worker claims it within `again_us`."""
    return mark_all_published(keys, {ref: again_us})


def mark_all_published(keys: Keys, runs: Mapping[RunRef, int]) -> Operation[None]:
    """Call `mark_published` for several `runs`, each with its own time in µs."""
    records = [keys.task(ref.task_id).record for ref in runs]
    arguments: list[Argument] = []
    for ref, again_us in runs.items():
        arguments += [ref.name, again_us]
    return Operation(script("mark_published"), [keys.dispatch, *records], arguments, lambda _: None)


def postpone_runs(keys: Keys, runs: Mapping[DueRun, int]) -> Operation[None]:
    """Undo `acquire_due_runs` for runs that were not published. Each is due again after its time in µs."""
    records = [keys.task(run.ref.task_id).record for run in runs]
    arguments: list[Argument] = []
    for run, again_us in runs.items():
        arguments += [run.ref.name, again_us, "" if run.published_us is None else run.published_us]
    return Operation(script("postpone_runs"), [keys.dispatch, *records], arguments, lambda _: None)


def report_prefetched(keys: Keys, refs: Sequence[RunRef], *, silent_us: int, again_us: int) -> Operation[None]:
    """Record that a worker has prefetched these runs.

    Args:
        silent_us: µs after the last report until the runs are published again.
        again_us: µs after the first report until the runs are published again in any case.
    """
    arguments: list[Argument] = [silent_us, again_us]
    for ref in refs:
        arguments += [ref.task_id, ref.run]
    records = [keys.task(ref.task_id).record for ref in refs]
    return Operation(script("report_prefetched"), [keys.dispatch, *records], arguments, lambda _: None)


def acquire_due_runs(keys: Keys, *, limit: int, again_us: int) -> Operation[list[DueRun]]:
    """Acquire up to `limit` runs to publish.

    A run is due again after `again_us`, then after twice that, and so on. If the client delays the begin of a run,
    these times start at the begin.
    """

    def parse(reply: Sequence[bytes]) -> list[DueRun]:
        acquired_us, runs = int(reply[0]), zip(*[iter(reply[1:])] * 5, strict=True)
        return [
            DueRun(
                RunRef(task_id.decode(), int(run)),
                agent.decode(),
                options,
                int(published) if published else None,
                acquired_us,
            )
            for task_id, run, agent, options, published in runs
        ]

    return Operation(
        script("acquire_due_runs"), [keys.dispatch], [keys.prefix, limit, again_us, MAX_REDISPATCH_WAIT_US], parse
    )


def claimed_runs(keys: Keys, *, limit: int) -> Operation[list[ClaimedRun]]:
    """Return the runs of the `limit` newest leases. Runs that were published again are left out."""

    def parse(reply: Sequence[bytes]) -> list[ClaimedRun]:
        runs = zip(*[iter(reply)] * 3, strict=True)
        return [ClaimedRun(agent.decode(), options, int(published)) for agent, options, published in runs]

    return Operation(script("claimed_runs"), [keys.leases], [keys.prefix, limit, MAX_CLAIMED_OPTIONS], parse)
