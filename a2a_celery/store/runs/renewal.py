"""Renewal of the leases of claimed runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..keys import Keys
from ..operation import Argument, Operation, script
from .commands import RunRef


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


def renew_runs(keys: Keys, claims: Sequence[tuple[RunRef, str]], *, lease_us: int) -> Operation[Renewal]:
    """Renew the leases of claimed runs.

    Args:
        keys: Keys of the deployment.
        claims: Pairs of a run and the token of its claim.
        lease_us: Duration of the renewed leases in µs.
    """
    arguments: list[Argument] = [lease_us]
    for ref, token in claims:
        arguments += [ref.task_id, ref.run, token]

    def parse(reply: Sequence[Sequence[bytes]]) -> Renewal:
        return Renewal(*(frozenset(name.decode() for name in names) for names in reply))

    records = [keys.task(ref.task_id).record for ref, _ in claims]
    return Operation(script("renew_runs"), [keys.leases, *records], arguments, parse)
