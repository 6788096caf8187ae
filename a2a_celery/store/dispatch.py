"""The verbs about runs that wait for a worker: the broker has one, and which of them want to be published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .keys import Keys
from .operation import Argument, Operation, script
from .runs import RunRef

MAX_REDISPATCH_WAIT_US = 3600 * 1_000_000
"""The longest time between two publishes of a run that no worker claims."""


@dataclass(frozen=True, slots=True)
class DueRun:
    """A run to publish, of the agent of that name; `options` are those that it was stored with."""

    ref: RunRef
    agent: str
    options: bytes


def mark_published(keys: Keys, ref: RunRef, *, again_us: int) -> Operation[None]:
    """The broker has the run: a watcher publishes it again only if no worker claims it within `again_us`."""
    return mark_all_published(keys, {ref: again_us})


def mark_all_published(keys: Keys, runs: Mapping[RunRef, int]) -> Operation[None]:
    """`mark_published` for several `runs`, each with its own time in µs."""
    records = [keys.task(ref.task_id).record for ref in runs]
    arguments: list[Argument] = []
    for ref, again_us in runs.items():
        arguments += [ref.name, again_us]
    return Operation(script("mark_published"), [keys.dispatch, *records], arguments, lambda _: None)


def mark_refused(keys: Keys, ref: RunRef, *, again_us: int) -> Operation[None]:
    """The broker was not given a run that `take_due_runs` gave, or refused it: due again in `again_us`, and this time
    doesn't count."""
    record = keys.task(ref.task_id).record
    return Operation(script("mark_refused"), [keys.dispatch, record], [ref.name, again_us], lambda _: None)


def hold_runs(keys: Keys, refs: Sequence[RunRef], *, silent_us: int) -> Operation[None]:
    """A worker has these runs in hand and has not begun them: they are due `silent_us` after it last said so.

    One that is due before that stays so, also if it is held.
    """
    arguments: list[Argument] = [silent_us]
    for ref in refs:
        arguments += [ref.task_id, ref.run]
    records = [keys.task(ref.task_id).record for ref in refs]
    return Operation(script("hold_runs"), [keys.dispatch, *records], arguments, lambda _: None)


def take_due_runs(keys: Keys, *, limit: int, again_us: int) -> Operation[list[DueRun]]:
    """Up to `limit` runs that want to be published; the caller publishes them.

    Each is due again after `again_us`, then after twice that, and so on; one that shall not begin before a certain time
    that long after it.
    """

    def parse(answer: Sequence[bytes]) -> list[DueRun]:
        rows = zip(*[iter(answer)] * 4, strict=True)
        return [
            DueRun(RunRef(task_id.decode(), int(run)), agent.decode(), options) for task_id, run, agent, options in rows
        ]

    return Operation(
        script("take_due_runs"), [keys.dispatch], [keys.prefix, limit, again_us, MAX_REDISPATCH_WAIT_US], parse
    )
