"""Limits of permits. Unresponsive receivers of one owner take no permit that a different owner needs."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

import pytest

from a2a_celery.push import Backoff, CircuitBreaker
from a2a_celery.push.circuit_breaker import (
    BUSY_RETRY_INTERVAL,
    MAX_POSTS,
    MAX_POSTS_PER_OWNER,
    RESERVED_DIVISOR,
    Permit,
)
from a2a_celery.push.poster import POST_TIMEOUT
from tests.support.clocks import ManualClock

LINES = 2_000
POSTS = 20
EVERY = 14
"""Seconds between two posts of one client."""
ANSWERS_AFTER = 0.1
BOUND = POST_TIMEOUT + 2 * BUSY_RETRY_INTERVAL
"""Maximum wait, in seconds, of a new owner's post to a new host: the duration of another post and one poll interval."""


@dataclass
class Delivery:
    """Simulated delivery of one event, with the state that a deliverer stores for it."""

    host: str
    owner: str
    answers: bool
    due_since: float
    failures: int = 0
    first_failed: float | None = None
    started_after: float | None = None


class Simulation:
    """Simulation of deliveries with the real `CircuitBreaker` and `Backoff`, in simulated time."""

    def __init__(self) -> None:
        chance = random.Random(1)
        self.clock = ManualClock()
        self.hosts = CircuitBreaker(clock=self.clock, random=chance.random)
        self.backoff = Backoff(random=chance.random)
        self.chance = chance
        self._number = count()
        self._steps: list[tuple[float, int, Delivery, Permit | None]] = []

    def add(self, delivery: Delivery) -> Delivery:
        self._at(delivery.due_since, delivery)
        return delivery

    async def run(self, seconds: float) -> None:
        until = self.clock.monotonic() + seconds
        while self._steps and self._steps[0][0] <= until:
            at, _, delivery, place = heapq.heappop(self._steps)
            self.clock.advance(max(0.0, at - self.clock.monotonic()))
            if place is None:
                await self._begin(delivery)
            else:
                self._end(delivery, place)

    def _at(self, at: float, delivery: Delivery, place: Permit | None = None) -> None:
        heapq.heappush(self._steps, (at, next(self._number), delivery, place))

    async def _begin(self, delivery: Delivery) -> None:
        now = self.clock.monotonic()
        place = await self.hosts.acquire(delivery.host, owner=delivery.owner)
        if isinstance(place, Permit):
            if delivery.started_after is None:
                delivery.started_after = now - delivery.due_since
            self._at(now + (ANSWERS_AFTER if delivery.answers else POST_TIMEOUT), delivery, place)
            return
        self._at(round(now + place.retry_in, 6), delivery)

    def _end(self, delivery: Delivery, place: Permit) -> None:
        now = self.clock.monotonic()
        place.release(delivery.answers)
        if delivery.answers:
            return
        delivery.failures += 1
        delivery.first_failed = now if delivery.first_failed is None else delivery.first_failed
        delay = self.backoff.delay(delivery.failures, now - delivery.first_failed)
        if delay is not None:
            self._at(round(now + delay, 6), delivery)


async def delays(simulation: Simulation, victims: Iterator[Delivery]) -> list[float]:
    """Return the seconds that each post of `victims` waited."""
    deliveries = [simulation.add(delivery) for delivery in islice(victims, POSTS)]
    await simulation.run(POSTS * EVERY + BOUND)
    return [float("inf") if delivery.started_after is None else delivery.started_after for delivery in deliveries]


def victims(simulation: Simulation, *, new_hosts: bool = False) -> Iterator[Delivery]:
    start = simulation.clock.monotonic()
    for number in count(1):
        yield Delivery(f"v{number}" if new_hosts else "v", "victim", True, start + number * EVERY)


def attack(simulation: Simulation, *, lines: int = LINES, owners: int = 1) -> None:
    start = simulation.clock.monotonic()
    for number in range(lines):
        due = start + round(simulation.chance.random(), 3)
        simulation.add(Delivery(f"a:{number}", f"attacker{number % owners}", False, due))


@pytest.mark.parametrize("new_hosts", [False, True], ids=["one-host", "new-hosts"])
async def test_silent_servers_of_another_owner_delay_no_post(new_hosts: bool) -> None:
    simulation = Simulation()
    attack(simulation)

    assert max(await delays(simulation, victims(simulation, new_hosts=new_hosts))) == 0.0


async def test_an_owner_with_silent_servers_reaches_its_limit() -> None:
    simulation = Simulation()
    attack(simulation)
    await simulation.run(POST_TIMEOUT - 1)

    assert simulation.hosts.in_flight == MAX_POSTS_PER_OWNER - MAX_POSTS_PER_OWNER // RESERVED_DIVISOR


@pytest.mark.parametrize("owners", [10, 1000])
async def test_responsive_hosts_get_permits_although_other_owners_have_many_posts(owners: int) -> None:
    simulation = Simulation()
    simulation.add(Delivery("v", "victim", True, simulation.clock.monotonic()))
    await simulation.run(1)
    attack(simulation, owners=owners)

    assert max(await delays(simulation, victims(simulation))) == 0.0
    assert simulation.hosts.in_flight <= MAX_POSTS - MAX_POSTS // RESERVED_DIVISOR


async def test_silent_servers_of_an_owner_leave_permits_for_its_other_hosts() -> None:
    simulation = Simulation()
    simulation.add(Delivery("v", "attacker0", True, simulation.clock.monotonic()))
    await simulation.run(1)
    attack(simulation)
    start = simulation.clock.monotonic()
    own = (Delivery("v", "attacker0", True, start + number * EVERY) for number in count(1))

    assert max(await delays(simulation, own)) == 0.0
