"""Renewal of the leases of claimed runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from ...lifecycle.references import RunRef
from ..keys import Keys
from ..verbs import Digits, Reply, verb


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
        name: Name of the run; see `RunRef.name`.
        run: Number of the run.
        record: Record of its task.
        token: Token of the claim.
    """

    name: str
    run: Digits
    record: str
    token: str


def _leased_runs(keys: Keys, claims: Sequence[tuple[RunRef, str]]) -> Sequence[LeasedRun]:
    return [LeasedRun(ref.name, ref.run, keys.task(ref.task_id).record, token) for ref, token in claims]


@verb
def renew_runs(
    keys: Keys, claims: Annotated[Sequence[tuple[RunRef, str]], _leased_runs], *, lease_us: int
) -> Reply[Renewal]:
    """Renew the leases of claimed runs.

    Args:
        keys: Keys of the deployment.
        claims: Pairs of a run and the token of its claim.
        lease_us: Duration of the renewed leases in µs.
    """

    def parse(reply: Sequence[Sequence[bytes]]) -> Renewal:
        return Renewal(*(frozenset(name.decode() for name in names) for names in reply))

    return Reply(parse)
