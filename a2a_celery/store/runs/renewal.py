"""Renewal of the leases of claimed runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...lifecycle.references import RunRef
from ..keys import Keys
from ..operation import Operation
from ..verbs import Digits, Key, verb


@dataclass(frozen=True, slots=True)
class Renewal:
    """Names of the renewed runs that require an action of the worker.

    Attributes:
        lost: Runs whose claims are no longer valid.
        cancel: Runs to cancel.
        interrupt: Runs that a client's message interrupts.
        messages: Other runs with waiting messages.
    """

    lost: frozenset[str]
    cancel: frozenset[str]
    interrupt: frozenset[str] = frozenset()
    messages: frozenset[str] = frozenset()


class LeasedRun(NamedTuple):
    """Run under a lease, as the script receives it.

    Attributes:
        token: Token of the claim.
    """

    task_id: str
    run: Digits
    token: str


@verb
def _renew_runs(leases: Key, records: Sequence[Key], lease_us: int, runs: Sequence[LeasedRun]) -> None:
    """`records` are the records of the tasks of `runs`."""


def renew_runs(keys: Keys, claims: Sequence[tuple[RunRef, str]], *, lease_us: int) -> Operation[Renewal]:
    """Renew the leases of claimed runs.

    Args:
        keys: Keys of the deployment.
        claims: Pairs of a run and the token of its claim.
        lease_us: Duration of the renewed leases in µs.
    """

    def parse(reply: Sequence[Sequence[bytes]]) -> Renewal:
        return Renewal(*(frozenset(name.decode() for name in names) for names in reply))

    records = [keys.task(ref.task_id).record for ref, _ in claims]
    runs = [LeasedRun(ref.task_id, ref.run, token) for ref, token in claims]
    return Operation(*_renew_runs(keys.leases, records, lease_us, runs), parse)
