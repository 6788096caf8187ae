"""The verb about leases: one worker process renews those of all its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .keys import Keys
from .operation import Argument, Operation, script
from .runs import RunRef


@dataclass(frozen=True, slots=True)
class Renewal:
    """Names of the runs that are no longer ours, and of those a client wants cancelled."""

    lost: frozenset[str]
    cancel: frozenset[str]


def renew_runs(keys: Keys, held: Sequence[tuple[RunRef, str]], *, lease_us: int) -> Operation[Renewal]:
    """Renews the leases of `held` runs, each with the token of its claim."""
    arguments: list[Argument] = [lease_us]
    for ref, token in held:
        arguments += [ref.task_id, ref.run, token]

    def parse(answer: Sequence[Sequence[bytes]]) -> Renewal:
        lost, cancel = (frozenset(name.decode() for name in names) for names in answer)
        return Renewal(lost, cancel)

    records = [keys.task(ref.task_id).record for ref, _ in held]
    return Operation(script("renew_runs"), [keys.leases, *records], arguments, parse)
