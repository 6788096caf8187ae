"""Fairness of permits. Unresponsive receivers of one owner take no permit that a different owner needs."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from statistics import median

import pytest

from a2a_celery.push import Backoff, CircuitBreaker, Deferred
from a2a_celery.push.circuit_breaker import BUSY_RETRY_INTERVAL, MAX_HOSTS, MAX_POSTS, RESERVED_DIVISOR, Permit
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
    network: str
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

    def run(self, seconds: float) -> None:
        until = self.clock.monotonic() + seconds
        while self._steps and self._steps[0][0] <= until:
            at, _, delivery, place = heapq.heappop(self._steps)
            self.clock.advance(max(0.0, at - self.clock.monotonic()))
            if place is None:
                self._begin(delivery)
            else:
                self._end(delivery, place)

    def _at(self, at: float, delivery: Delivery, place: Permit | None = None) -> None:
        heapq.heappush(self._steps, (at, next(self._number), delivery, place))

    def _begin(self, delivery: Delivery) -> None:
        now = self.clock.monotonic()
        place = self.hosts.try_acquire(delivery.host, owner=delivery.owner)
        deferral = place if isinstance(place, Deferred) else place.set_network(delivery.network)
        if isinstance(place, Permit) and deferral is None:
            if delivery.started_after is None:
                delivery.started_after = now - delivery.due_since
            self._at(now + (ANSWERS_AFTER if delivery.answers else POST_TIMEOUT), delivery, place)
            return
        assert deferral is not None
        if isinstance(place, Permit):
            place.release(None)
        self._at(round(now + deferral.retry_in, 6), delivery)

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


def delays(
    simulation: Simulation,
    victims: Iterator[Delivery],
) -> list[float]:
    """Return the seconds that each post of `victims` waited."""
    deliveries = [simulation.add(delivery) for delivery in islice(victims, POSTS)]
    simulation.run(POSTS * EVERY + BOUND)
    return [float("inf") if delivery.started_after is None else delivery.started_after for delivery in deliveries]


def victims(simulation: Simulation, *, new_hosts: bool = False) -> Iterator[Delivery]:
    start = simulation.clock.monotonic()
    for number in count(1):
        host = f"v{number}" if new_hosts else "v"
        yield Delivery(host, "victim", "10.9.9.0/24", True, start + number * EVERY)


def attack(simulation: Simulation, *, lines: int = LINES, owners: int = 1, networks: int = 1) -> None:
    start = simulation.clock.monotonic()
    for number in range(lines):
        owner, network = f"attacker{number % owners}", f"10.0.{number % networks}.0/24"
        simulation.add(Delivery(f"a:{number}", owner, network, False, start + round(simulation.chance.random(), 3)))


@pytest.mark.parametrize("new_hosts", [False, True], ids=["one-host", "new-hosts"])
@pytest.mark.parametrize(("owners", "networks"), [(1, 1), (1, 200), (200, 1), (10, 10)], ids=str)
def test_silent_servers_of_others_delay_no_post(owners: int, networks: int, new_hosts: bool) -> None:
    """An owner without active posts gets the first free permit. Within the maximum duration of a post, a permit becomes
    free."""
    simulation = Simulation()
    attack(simulation, owners=owners, networks=networks)

    waits = delays(simulation, victims(simulation, new_hosts=new_hosts))

    assert max(waits) <= BOUND
    assert median(waits) == 0.0


def test_one_owner_leaves_half_of_the_permits_for_new_hosts() -> None:
    simulation = Simulation()
    attack(simulation)
    simulation.run(POST_TIMEOUT - 1)

    assert 0 < MAX_POSTS - simulation.hosts.free <= (MAX_POSTS - MAX_POSTS // RESERVED_DIVISOR) / 2 + 1


def test_responsive_hosts_get_permits_although_other_owners_have_many_posts() -> None:
    simulation = Simulation()
    simulation.add(Delivery("v", "victim", "10.9.9.0/24", True, simulation.clock.monotonic()))
    simulation.run(1)
    attack(simulation, lines=1000, owners=1000, networks=1000)

    assert max(delays(simulation, victims(simulation))) == 0.0


def test_hosts_of_one_owner_push_no_host_of_another_out_of_memory() -> None:
    hosts = CircuitBreaker(clock=ManualClock(), failure_threshold=1)

    def post(name: str, owner: str, has_response: bool) -> None:
        place = hosts.try_acquire(name, owner=owner)
        assert isinstance(place, Permit)
        place.release(has_response)

    post("dead", "victim", False)
    for number in range(MAX_HOSTS + 100):
        post(f"a{number}", "attacker", bool(number % 2))

    deferral = hosts.deferral("dead", owner="victim")
    assert deferral is not None
    assert deferral.is_host_unavailable
    assert hosts.host_count == MAX_HOSTS
