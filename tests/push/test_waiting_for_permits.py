"""Who finds a fast host busy waits a moment for a place; who finds it resting, or many who wait, does not."""

from __future__ import annotations

import asyncio

from a2a_celery.push import CircuitBreaker, Deferred, Delivered, Poster, PostRequest, PostResult
from a2a_celery.push.circuit_breaker import MAX_WAITERS, Permit
from tests.support import receiver as behaviour
from tests.support.receiver import receiver

from .fake_resolver import LOCAL

LONG = 30.0


def places(hosts: CircuitBreaker, times: int) -> list[Permit]:
    found = [hosts.try_acquire("a") for _ in range(times)]
    assert all(isinstance(one, Permit) for one in found)
    return [one for one in found if isinstance(one, Permit)]


async def asking(hosts: CircuitBreaker, timeout: float = LONG) -> asyncio.Task[Permit | Deferred]:
    """Somebody who asks for a place, and has been heard."""
    asked = asyncio.create_task(hosts.acquire("a", timeout))
    await asyncio.sleep(0)
    return asked


async def test_the_first_who_waits_gets_the_place_that_is_left() -> None:
    hosts = CircuitBreaker(max_per_host=2)
    one, other = places(hosts, 2)
    first, second = await asking(hosts), await asking(hosts)

    one.release(True)
    got = await first
    assert isinstance(got, Permit)
    assert isinstance(hosts.try_acquire("a"), Deferred)
    assert not second.done()
    other.release(True)
    also = await second
    assert isinstance(also, Permit)
    for place in (got, also):
        place.release(True)
    assert hosts.free == hosts.max_posts


async def test_nobody_waits_longer_than_he_may() -> None:
    hosts = CircuitBreaker(max_per_host=1)
    (one,) = places(hosts, 1)

    assert isinstance(await hosts.acquire("a", 0.01), Deferred)
    assert isinstance(await hosts.acquire("a", 0.0), Deferred)
    one.release(True)
    assert hosts.free == hosts.max_posts


async def test_only_so_many_wait() -> None:
    hosts = CircuitBreaker(max_per_host=1)
    (one,) = places(hosts, 1)
    waiting = [await asking(hosts) for _ in range(MAX_WAITERS)]

    assert hosts.deferral("a", can_wait=True) is not None
    assert isinstance(await hosts.acquire("a", LONG), Deferred)
    one.release(True)
    for task in waiting:
        got = await task
        assert isinstance(got, Permit)
        got.release(True)


async def test_when_the_host_begins_to_rest_all_are_told() -> None:
    hosts = CircuitBreaker(max_per_host=2, failure_threshold=1)
    one, other = places(hosts, 2)
    waiting = [await asking(hosts) for _ in range(3)]

    one.release(False)
    found = [await task for task in waiting]
    assert all(isinstance(held, Deferred) and held.is_host_unavailable for held in found)
    other.release(None)


async def test_who_is_cancelled_leaves_his_turn_and_his_place_to_the_next() -> None:
    hosts = CircuitBreaker(max_per_host=1)
    (one,) = places(hosts, 1)
    first, second, third = [await asking(hosts) for _ in range(3)]

    first.cancel()
    one.release(True)
    second.cancel()  # in the moment in which it gets the place
    got = await asyncio.wait_for(third, LONG)
    assert isinstance(got, Permit)
    got.release(True)
    assert (first.cancelled(), second.cancelled(), hosts.free) == (True, True, hosts.max_posts)


async def test_many_posts_to_one_host_come_one_behind_the_other() -> None:
    with receiver() as hooks:
        hooks.plan("/hook", [], then=behaviour.slow(0.05))
        said = PostRequest(hooks.url(), {"Content-Type": "application/a2a+json"}, b"{}")
        async with Poster(LOCAL, circuit_breaker=CircuitBreaker(max_per_host=2)) as poster:

            async def post() -> PostResult:
                return await poster.post(said, await poster.acquire_route(said.url, timeout=LONG))

            results = await asyncio.gather(*(post() for _ in range(MAX_WAITERS)))

        assert results == [Delivered(200)] * MAX_WAITERS
        assert (hooks.most_at_once("/hook"), hooks.connections) == (2, 2)
