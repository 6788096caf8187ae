"""Posts that wait for a permit of a busy host.

A post waits briefly, unless the host is in a cooldown or many other posts wait.
"""

from __future__ import annotations

import asyncio

from a2a_celery.push import CircuitBreaker, Deferred, Delivered, Poster, PostRequest, PostResult
from a2a_celery.push.circuit_breaker import MAX_WAITERS, Permit
from tests.support.receivers import receiver as behaviour
from tests.support.receivers.receiver import receiver

from .fake_resolver import LOCAL

LONG = 30.0


async def places(hosts: CircuitBreaker, times: int) -> list[Permit]:
    permits = [await hosts.acquire("a") for _ in range(times)]
    assert all(isinstance(permit, Permit) for permit in permits)
    return [permit for permit in permits if isinstance(permit, Permit)]


async def waiting_task(hosts: CircuitBreaker, timeout: float = LONG) -> asyncio.Task[Permit | Deferred]:
    """Start a task that waits for a permit."""
    task = asyncio.create_task(hosts.acquire("a", timeout))
    await asyncio.sleep(0)
    return task


async def test_the_first_waiting_post_gets_the_released_permit() -> None:
    hosts = CircuitBreaker(max_per_host=2)
    permit, other = await places(hosts, 2)
    first, second = await waiting_task(hosts), await waiting_task(hosts)

    permit.release(True)
    next_permit = await first
    assert isinstance(next_permit, Permit)
    assert isinstance(await hosts.acquire("a"), Deferred)
    assert not second.done()
    other.release(True)
    second_permit = await second
    assert isinstance(second_permit, Permit)
    for place in (next_permit, second_permit):
        place.release(True)
    assert hosts.in_flight == 0


async def test_a_wait_is_limited_by_its_timeout() -> None:
    hosts = CircuitBreaker(max_per_host=1)
    (permit,) = await places(hosts, 1)

    assert isinstance(await hosts.acquire("a", 0.01), Deferred)
    assert isinstance(await hosts.acquire("a", 0.0), Deferred)
    permit.release(True)
    assert hosts.in_flight == 0


async def test_only_so_many_wait() -> None:
    hosts = CircuitBreaker(max_per_host=1)
    (permit,) = await places(hosts, 1)
    waiting = [await waiting_task(hosts) for _ in range(MAX_WAITERS)]

    assert hosts.deferral("a") is not None
    assert isinstance(await hosts.acquire("a", LONG), Deferred)
    permit.release(True)
    for task in waiting:
        next_permit = await task
        assert isinstance(next_permit, Permit)
        next_permit.release(True)


async def test_the_start_of_a_cooldown_ends_all_waits() -> None:
    hosts = CircuitBreaker(max_per_host=2, failure_threshold=1)
    permit, other = await places(hosts, 2)
    waiting = [await waiting_task(hosts) for _ in range(3)]

    permit.release(False)
    results = [await task for task in waiting]
    assert all(isinstance(result, Deferred) and result.is_host_unavailable for result in results)
    other.release(None)


async def test_a_cancelled_wait_leaves_its_permit_to_the_next() -> None:
    hosts = CircuitBreaker(max_per_host=1)
    (permit,) = await places(hosts, 1)
    first, second, third = [await waiting_task(hosts) for _ in range(3)]

    first.cancel()
    permit.release(True)
    second.cancel()  # at the moment when the task receives the permit
    next_permit = await asyncio.wait_for(third, LONG)
    assert isinstance(next_permit, Permit)
    next_permit.release(True)
    assert (first.cancelled(), second.cancelled(), hosts.in_flight) == (True, True, 0)


async def test_posts_to_one_host_are_made_one_after_the_other() -> None:
    with receiver() as hooks:
        hooks.plan("/hook", [], then=behaviour.slow(0.05))
        post_request = PostRequest(hooks.url(), {"Content-Type": "application/a2a+json"}, b"{}")
        async with Poster(LOCAL, circuit_breaker=CircuitBreaker(max_per_host=2)) as poster:

            async def post() -> PostResult:
                return await poster.post(post_request, await poster.acquire_route(post_request.url, timeout=LONG))

            results = await asyncio.gather(*(post() for _ in range(MAX_WAITERS)))

        assert results == [Delivered(200)] * MAX_WAITERS
        assert (hooks.most_at_once("/hook"), hooks.connections) == (2, 2)
