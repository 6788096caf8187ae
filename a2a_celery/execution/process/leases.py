"""Lease renewal for all runs of a worker process, in a single call to the store.

The reply lists the runs whose lease was lost, the runs to cancel or to interrupt, and the runs with waiting messages.
Except for lost leases, a pub/sub channel of the process delivers the same information faster. The renewal covers lost
notifications.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Protocol

from ...clock import SYSTEM_CLOCK, Clock
from ...errors import StoreUnavailable
from ...lifecycle.references import RunRef
from ...store import AsyncStore, Keys
from ...store.runs.renewal import Renewal, renew_runs

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3

MAX_EARLY_CANCELS = 1000
"""Maximum number of early requests to cancel that are remembered. The renewal of leases finds the others."""

EXPIRY_CHECK_INTERVAL = 1.0
"""Seconds between two checks for expired leases while the store does not reply."""


class LeasedRun(Protocol):
    """Run whose lease a `LeaseKeeper` renews.

    Attributes:
        may_be_elsewhere: True if another worker may get the run when its lease expires.
    """

    ref: RunRef
    token: str
    may_be_elsewhere: bool

    def ask_to_cancel(self) -> None:
        """Cancel the run at the request of a client."""

    def ask_to_interrupt(self) -> None:
        """Stop the run for a further message of its client."""

    def message_arrived(self) -> None:
        """Let the run read a message of its client."""

    def give_up(self) -> None:
        """Stop the run because its lease is lost."""


class LeaseKeeper:
    """Renewer of the leases of all runs in one process. Each renewal extends a lease to `lease_ttl` seconds."""

    def __init__(self, store: AsyncStore, keys: Keys, lease_ttl: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._keys = keys
        self._lease_ttl = lease_ttl
        self._clock = clock
        self._leased: dict[str, LeasedRun] = {}
        self._until: dict[str, float] = {}
        self._early_cancels: dict[str, None] = {}
        """Names of runs to cancel whose claims this process has not read yet, oldest first."""
        self._loop_task: asyncio.Task[None] | None = None

    @property
    def lease_us(self) -> int:
        """Duration of a lease in microseconds."""
        return int(self._lease_ttl * 1_000_000)

    @property
    def is_empty(self) -> bool:
        """True if no run of the process holds a lease."""
        return not self._leased

    def start(self) -> None:
        """Start renewing leases on the running event loop."""
        self._loop_task = asyncio.create_task(self._renew_forever(), name="a2a-leases")

    async def stop(self) -> None:
        """Stop renewing leases."""
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.wait({self._loop_task})

    @contextmanager
    def renewing(self, run: LeasedRun) -> Iterator[None]:
        """Renew the lease of `run`, which was just claimed, during the ``with`` block."""
        name = run.ref.name
        self._leased[name] = run
        self._until[name] = self._clock.monotonic() + self._lease_ttl
        if name in self._early_cancels:
            del self._early_cancels[name]
            run.ask_to_cancel()
        try:
            yield
        finally:
            if self._leased.get(name) is run:
                del self._leased[name], self._until[name]

    def notified(self, notification: bytes) -> None:
        """Handle a notification on the channel of this process. The notification contains the name of a run to cancel,
        or the name of a run and the effect of a message on the run."""
        name, _, effect = notification.decode().partition(" ")
        run = self._leased.get(name)
        if run is None:
            if not effect:
                self._early_cancels[name] = None
                if len(self._early_cancels) > MAX_EARLY_CANCELS:
                    del self._early_cancels[next(iter(self._early_cancels))]
            return
        match effect:
            case "":
                run.ask_to_cancel()
            case "interrupt":
                run.ask_to_interrupt()
            case "steer":
                run.message_arrived()

    async def tick(self) -> None:
        """Renew all leases once.

        While the store is unavailable, a run that may have another attempt is stopped when its lease expires, because
        another worker may acquire it. A run with a single attempt continues. When the store is available again, the
        store decides whether this worker still holds the lease.
        """
        runs = list(self._leased.values())
        if not runs:
            return
        asked_at = self._clock.monotonic()
        try:
            renewal = await self._renew_leases(runs)
        except StoreUnavailable as e:
            logger.warning("leases not renewed: %s", e)
            self._give_up_expired(runs)
            return
        for run in runs:
            if run.ref.name in renewal.lost:
                run.give_up()
            elif run.ref.name in self._until:
                self._until[run.ref.name] = asked_at + self._lease_ttl
            if run.ref.name in renewal.cancel:
                run.ask_to_cancel()
            elif run.ref.name in renewal.interrupt:
                run.ask_to_interrupt()
            elif run.ref.name in renewal.messages:
                run.message_arrived()

    async def _renew_leases(self, runs: list[LeasedRun]) -> Renewal:
        renewal = renew_runs(self._keys, [(run.ref, run.token) for run in runs], lease_us=self.lease_us)
        renewing = asyncio.ensure_future(self._store.run(renewal))
        while not renewing.done():
            try:
                async with self._clock.timeout(EXPIRY_CHECK_INTERVAL):
                    await asyncio.wait({renewing})
            except TimeoutError:
                self._give_up_expired(runs)
        return renewing.result()

    def _give_up_expired(self, runs: Iterable[LeasedRun]) -> None:
        for run in runs:
            if run.may_be_elsewhere and self._until.get(run.ref.name, inf) < self._clock.monotonic():
                self._until[run.ref.name] = inf
                run.give_up()

    async def _renew_forever(self) -> None:
        while True:
            await self._clock.sleep(self._lease_ttl / RENEWALS_PER_LEASE)
            try:
                await self.tick()
            except Exception:
                logger.exception("renewing leases failed; trying again")
