"""Circuit breaker for receiving hosts. No host takes the permits of other hosts."""

from __future__ import annotations

from typing import Any

from a2a_celery.push import CircuitBreaker, Deferred
from a2a_celery.push.circuit_breaker import MAX_RETRIES_PER_SECOND, Permit
from tests.support.clocks import ManualClock


def hosts(clock: ManualClock | None = None, **options: Any) -> CircuitBreaker:
    return CircuitBreaker(
        clock=clock or ManualClock(),
        **{"random": lambda: 0.5, "failure_threshold": 3, "first_cooldown": 8.0, **options},
    )


async def place(hosts: CircuitBreaker, name: str = "a", owner: str = "") -> Permit:
    permit = await hosts.acquire(name, owner=owner)
    assert isinstance(permit, Permit), permit
    return permit


async def deferral_of(hosts: CircuitBreaker, name: str = "a", owner: str = "") -> Deferred:
    result = await hosts.acquire(name, owner=owner)
    assert isinstance(result, Deferred), result
    assert hosts.deferral(name, owner=owner, can_wait=False) is not None
    return result


async def fail(hosts: CircuitBreaker, times: int, name: str = "a") -> None:
    for _ in range(times):
        (await place(hosts, name)).release(False)


async def test_a_host_gets_so_many_posts_at_once() -> None:
    breaker = hosts(max_per_host=2)
    first, _ = await place(breaker), await place(breaker)

    assert (await deferral_of(breaker)).retry_in > 0
    assert hosts(max_per_host=2).deferral("a") is None
    await place(breaker, "b")
    first.release(True)
    await place(breaker)


async def test_all_hosts_together_get_so_many() -> None:
    breaker = hosts(max_posts=3 + 1)
    first, *_ = [await place(breaker, name, owner=name) for name in "abc"]

    assert "too many" in (await deferral_of(breaker, "d", owner="d")).reason
    first.release(None)
    await place(breaker, "d", owner="d")


async def test_an_owner_gets_so_many() -> None:
    breaker = hosts(max_per_owner=2)
    first, _ = [await place(breaker, name, owner="ann") for name in "ab"]

    assert "the owner" in (await deferral_of(breaker, "c", owner="ann")).reason
    await place(breaker, "c", owner="bob")
    first.release(None)
    await place(breaker, "c", owner="ann")


async def test_permits_are_reserved_for_hosts_that_responded_last_time() -> None:
    breaker = hosts(max_posts=4)
    (await place(breaker, "known", owner="d")).release(True)
    for name in "abc":
        await place(breaker, name, owner=name)

    assert "too many" in (await deferral_of(breaker, "d", owner="d")).reason
    (await place(breaker, "known", owner="d")).release(False)
    assert "too many" in (await deferral_of(breaker, "known", owner="d")).reason


async def test_permits_of_an_owner_are_reserved_for_hosts_that_responded_last_time() -> None:
    breaker = hosts(max_per_owner=4)
    (await place(breaker, "known")).release(True)
    for name in "abc":
        await place(breaker, name)

    assert "the owner" in (await deferral_of(breaker, "d")).reason
    (await place(breaker, "known")).release(False)
    assert "the owner" in (await deferral_of(breaker, "known")).reason


async def test_a_host_that_does_not_respond_has_a_cooldown() -> None:
    breaker = hosts()
    await fail(breaker, 2)
    assert breaker.deferral("a") is None
    await fail(breaker, 1)

    assert "cooldown" in (await deferral_of(breaker)).reason
    assert breaker.deferral("b") is None


async def test_only_consecutive_failures_count() -> None:
    breaker = hosts()
    for _ in range(5):
        await fail(breaker, 2)
        (await place(breaker)).release(True)

    assert breaker.deferral("a") is None


async def test_an_unknown_result_counts_neither_way() -> None:
    breaker = hosts()
    await fail(breaker, 2)
    (await place(breaker)).release(None)
    await fail(breaker, 1)

    await deferral_of(breaker)


async def test_after_a_cooldown_one_post_tries_and_its_success_releases_all() -> None:
    clock = ManualClock()
    breaker = hosts(clock)
    await fail(breaker, 3)
    clock.advance(6.0)  # the cooldown is 8 s, of which jitter leaves three quarters

    permit = await place(breaker)
    assert "being probed" in (await deferral_of(breaker)).reason
    permit.release(True)
    (await place(breaker)).release(True)
    assert breaker.deferral("a") is None


async def test_the_cooldown_doubles_up_to_its_limit() -> None:
    clock = ManualClock()
    breaker = hosts(clock, max_cooldown=30.0)
    await fail(breaker, 3)
    rests = []
    for _ in range(4):
        start = clock.monotonic()
        while breaker.deferral("a") is not None:
            clock.advance(0.5)
        rests.append(clock.monotonic() - start)
        (await place(breaker)).release(False)

    assert rests == [6.0, 12.0, 22.5, 22.5]


async def test_a_cancelled_trial_leaves_the_next_post_to_try() -> None:
    clock = ManualClock()
    breaker = hosts(clock)
    await fail(breaker, 3)
    clock.advance(6.0)

    (await place(breaker)).release(None)
    (await place(breaker)).release(True)
    await place(breaker)


async def test_posts_started_before_a_cooldown_do_not_prolong_it() -> None:
    clock = ManualClock()
    breaker = hosts(clock)
    late_places = [await place(breaker) for _ in range(5)]
    await fail(breaker, 3)
    for permit in late_places:
        permit.release(False)
    clock.advance(6.0)

    await place(breaker)


async def test_waiting_posts_return_one_after_the_other() -> None:
    numbers = iter([0.5, *(n / 100 for n in range(100))])
    breaker = hosts(random=lambda: next(numbers))
    await fail(breaker, 3)
    waits = [(breaker.deferral("a") or Deferred(0, "")).retry_in for _ in range(100)]

    assert len({round(wait, 3) for wait in waits}) == 100
    assert min(waits) >= 6.0


async def test_ten_thousand_that_wait_for_a_dead_host_leave_the_others_alone() -> None:
    breaker = hosts()
    await fail(breaker, 3, "dead")

    assert all([isinstance(await breaker.acquire("dead"), Deferred) for _ in range(10_000)])
    for n in range(100):
        await place(breaker, f"live{n}", owner=f"owner{n % 10}")


async def test_the_more_wait_for_a_host_the_longer_each_waits() -> None:
    breaker = hosts(max_per_host=1)
    await place(breaker)
    waits = [(await deferral_of(breaker)).retry_in for _ in range(10_000)]
    first_time = sorted(waits)

    assert all(
        second - first >= 0.99
        for first, second in zip(first_time, first_time[2 * MAX_RETRIES_PER_SECOND :], strict=False)
    )
    assert first_time[-1] < 1.1 * 2 * len(waits) / MAX_RETRIES_PER_SECOND


async def test_the_state_of_hosts_is_bounded() -> None:
    breaker = hosts(max_hosts=10)
    under_way = await place(breaker, "busy")
    for n in range(1000):
        await fail(breaker, 1, f"dead{n}")

    assert breaker.host_count <= 11
    assert breaker.deferral("dead999") is None
    under_way.release(True)


async def test_the_least_recently_used_host_is_removed_first() -> None:
    breaker = hosts(max_hosts=2)
    await fail(breaker, 3, "dead")
    await fail(breaker, 1, "other")
    await fail(breaker, 1, "third")
    assert breaker.deferral("dead") is None
    await fail(breaker, 3, "dead")
    await fail(breaker, 2, "third")
    await fail(breaker, 1, "fourth")

    assert breaker.deferral("third") is not None
    assert breaker.host_count == 2


async def test_hosts_of_which_nothing_was_found_out_are_forgotten() -> None:
    breaker = hosts()
    for n in range(100):
        (await place(breaker, f"h{n}")).release(None)

    assert breaker.host_count == 0
