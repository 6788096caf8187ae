"""Keeping what is ours: the leases of all runs of this process, renewed in one call.

The answer says which runs were given away and which a client wants cancelled; the fast way for the latter is the
process's own channel, this one is the net below it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import AbstractContextManager
from math import inf
from typing import Protocol

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import StoreUnavailable
from ..store import AsyncStore, Keys
from ..store.leases import Renewal, renew_runs
from ..store.runs import RunRef

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3

EXPIRY_CHECK_INTERVAL = 1.0
"""Seconds between two checks of this process's own clock while the store has not answered."""


class Held(Protocol):
    """A run as the keeper sees it."""

    ref: RunRef
    token: str
    may_be_elsewhere: bool
    """Whether another worker may have been given the run when its lease is over."""

    def ask_to_cancel(self) -> None:
        """A client wants it cancelled."""

    def give_up(self) -> None:
        """It is no longer ours."""


class LeaseKeeper:
    """Holds leases of `lease_ttl` seconds for the runs of one process."""

    def __init__(self, store: AsyncStore, keys: Keys, lease_ttl: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._keys = keys
        self._lease_ttl = lease_ttl
        self._clock = clock
        self._held: dict[str, Held] = {}
        self._until: dict[str, float] = {}
        self._loop_task: asyncio.Task[None] | None = None

    @property
    def lease_us(self) -> int:
        """A lease in microseconds, as the store counts."""
        return int(self._lease_ttl * 1_000_000)

    def start(self) -> None:
        """Begins to renew, in the running loop."""
        self._loop_task = asyncio.create_task(self._renew_for_ever(), name="a2a-leases")

    def holding(self, run: Held) -> AbstractContextManager[None]:
        """Renews the lease of `run`, which was just claimed, until the block ends."""
        return _Holding(self, run)

    def _hold(self, run: Held) -> None:
        name = run.ref.name
        self._held[name] = run
        self._until[name] = self._clock.monotonic() + self._lease_ttl

    def _let_go(self, run: Held) -> None:
        name = run.ref.name
        if self._held.get(name) is run:
            del self._held[name], self._until[name]

    def asked_to_cancel(self, name: bytes) -> None:
        """A message on the process's channel: somebody wants this run cancelled."""
        run = self._held.get(name.decode())
        if run is not None:
            run.ask_to_cancel()

    async def tick(self) -> None:
        """Renews what is held.

        While the store is away, or does not answer, a run that somebody else may have by now is given up when its lease
        is over; one that runs at most once goes on, and the store says later whether it is still ours.
        """
        held = list(self._held.values())
        if not held:
            return
        asked_at = self._clock.monotonic()
        try:
            renewal = await self._renewed(held)
        except StoreUnavailable as e:
            logger.warning("leases not renewed: %s", e)
            self._give_up_expired(held)
            return
        for run in held:
            if run.ref.name in renewal.lost:
                run.give_up()
            elif run.ref.name in self._until:
                self._until[run.ref.name] = asked_at + self._lease_ttl
            if run.ref.name in renewal.cancel:
                run.ask_to_cancel()

    async def _renewed(self, held: list[Held]) -> Renewal:
        renewal = renew_runs(self._keys, [(run.ref, run.token) for run in held], lease_us=self.lease_us)
        renewing = asyncio.ensure_future(self._store.run(renewal))
        while not renewing.done():
            try:
                async with self._clock.timeout(EXPIRY_CHECK_INTERVAL):
                    await asyncio.wait({renewing})
            except TimeoutError:
                self._give_up_expired(held)
        return renewing.result()

    def _give_up_expired(self, held: Iterable[Held]) -> None:
        for run in held:
            if run.may_be_elsewhere and self._until.get(run.ref.name, inf) < self._clock.monotonic():
                self._until[run.ref.name] = inf
                run.give_up()

    async def _renew_for_ever(self) -> None:
        while True:
            await self._clock.sleep(self._lease_ttl / RENEWALS_PER_LEASE)
            try:
                await self.tick()
            except Exception:
                logger.exception("renewing leases failed; trying again")


class _Holding:
    """A block in which `keeper` renews the lease of `run`: a generator's takes four times as much for as long."""

    __slots__ = ("_keeper", "_run")

    def __init__(self, keeper: LeaseKeeper, run: Held) -> None:
        self._keeper = keeper
        self._run = run

    def __enter__(self) -> None:
        self._keeper._hold(self._run)

    def __exit__(self, *_: object) -> None:
        self._keeper._let_go(self._run)
