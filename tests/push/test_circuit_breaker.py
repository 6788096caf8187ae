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


def place(hosts: CircuitBreaker, name: str = "a", owner: str = "") -> Permit:
    permit = hosts.try_acquire(name, owner=owner)
    assert isinstance(permit, Permit), permit
    return permit


def deferral_of(hosts: CircuitBreaker, name: str = "a", owner: str = "") -> Deferred:
    result = hosts.try_acquire(name, owner=owner)
    assert isinstance(result, Deferred), result
    assert hosts.deferral(name, owner=owner) is not None
    return result


def fail(hosts: CircuitBreaker, times: int, name: str = "a") -> None:
    for _ in range(times):
        place(hosts, name).release(False)


def test_a_host_gets_so_many_posts_at_once() -> None:
    breaker = hosts(max_per_host=2)
    first, _ = place(breaker), place(breaker)

    assert deferral_of(breaker).retry_in > 0
    assert hosts(max_per_host=2).deferral("a") is None
    place(breaker, "b")
    first.release(True)
    place(breaker)


def test_all_hosts_together_get_so_many() -> None:
    breaker = hosts(max_posts=3)
    first, *_ = [place(breaker, name, owner=name) for name in "abc"]

    assert "too many" in deferral_of(breaker, "d", owner="d").reason
    first.release(None)
    place(breaker, "d", owner="d")


def test_an_owner_gets_a_permit_while_more_are_free_than_it_has() -> None:
    breaker = hosts(max_posts=4, reserved=0)
    first, _ = [place(breaker, name) for name in "ab"]

    assert "the owner" in deferral_of(breaker, "c").reason
    place(breaker, "c", owner="other")
    assert "the owner" in deferral_of(breaker, "c", owner="other").reason
    place(breaker, "c", owner="third")
    first.release(None)
    assert "the owner" in deferral_of(breaker, "c").reason


def test_a_network_gets_a_permit_while_more_are_free_than_it_has() -> None:
    breaker = hosts(max_posts=5, reserved=0)
    first, second, third = [place(breaker, name, owner=name) for name in "abc"]

    assert [first.set_network("10.0.0.0/24"), second.set_network("10.0.0.0/24")] == [None, None]
    deferral = third.set_network("10.0.0.0/24")
    assert deferral is not None
    assert "the network" in deferral.reason
    first.release(True)
    assert third.set_network("10.0.0.0/24") is None


def test_the_network_of_a_host_is_remembered() -> None:
    breaker = hosts(max_posts=4, reserved=0)
    place(breaker, "a").set_network("10.0.0.0/24")
    permit = place(breaker, "b", owner="other")
    assert permit.set_network("10.0.0.0/24") is None
    permit.release(True)

    assert place(breaker, "b", owner="third").network == "10.0.0.0/24"
    assert "the network" in deferral_of(breaker, "b", owner="fourth").reason


def test_permits_are_reserved_for_hosts_that_responded_last_time() -> None:
    breaker = hosts(max_posts=4, reserved=2)
    place(breaker, "known", owner="d").release(True)
    for name in "ab":
        place(breaker, name, owner=name)

    assert "too many" in deferral_of(breaker, "c", owner="c").reason
    place(breaker, "known", owner="c").release(False)
    assert "too many" in deferral_of(breaker, "known", owner="c").reason


def test_a_host_that_does_not_respond_has_a_cooldown() -> None:
    breaker = hosts()
    fail(breaker, 2)
    assert breaker.deferral("a") is None
    fail(breaker, 1)

    assert "cooldown" in deferral_of(breaker).reason
    assert breaker.deferral("b") is None


def test_only_consecutive_failures_count() -> None:
    breaker = hosts()
    for _ in range(5):
        fail(breaker, 2)
        place(breaker).release(True)

    assert breaker.deferral("a") is None


def test_an_unknown_result_counts_neither_way() -> None:
    breaker = hosts()
    fail(breaker, 2)
    place(breaker).release(None)
    fail(breaker, 1)

    deferral_of(breaker)


def test_after_a_cooldown_one_post_tries_and_its_success_releases_all() -> None:
    clock = ManualClock()
    breaker = hosts(clock)
    fail(breaker, 3)
    clock.advance(6.0)  # the cooldown is 8 s, of which jitter leaves three quarters

    permit = place(breaker)
    assert "being probed" in deferral_of(breaker).reason
    permit.release(True)
    place(breaker).release(True)
    assert breaker.deferral("a") is None


def test_the_cooldown_doubles_up_to_its_limit() -> None:
    clock = ManualClock()
    breaker = hosts(clock, max_cooldown=30.0)
    fail(breaker, 3)
    rests = []
    for _ in range(4):
        start = clock.monotonic()
        while breaker.deferral("a") is not None:
            clock.advance(0.5)
        rests.append(clock.monotonic() - start)
        place(breaker).release(False)

    assert rests == [6.0, 12.0, 22.5, 22.5]


def test_a_cancelled_trial_leaves_the_next_post_to_try() -> None:
    clock = ManualClock()
    breaker = hosts(clock)
    fail(breaker, 3)
    clock.advance(6.0)

    place(breaker).release(None)
    place(breaker).release(True)
    place(breaker)


def test_posts_started_before_a_cooldown_do_not_prolong_it() -> None:
    clock = ManualClock()
    breaker = hosts(clock)
    late_places = [place(breaker) for _ in range(5)]
    fail(breaker, 3)
    for permit in late_places:
        permit.release(False)
    clock.advance(6.0)

    place(breaker)


def test_waiting_posts_return_one_after_the_other() -> None:
    numbers = iter([0.5, *(n / 100 for n in range(100))])
    breaker = hosts(random=lambda: next(numbers))
    fail(breaker, 3)
    waits = [(breaker.deferral("a") or Deferred(0, "")).retry_in for _ in range(100)]

    assert len({round(wait, 3) for wait in waits}) == 100
    assert min(waits) >= 6.0


def test_ten_thousand_that_wait_for_a_dead_host_leave_the_others_alone() -> None:
    breaker = hosts()
    fail(breaker, 3, "dead")

    assert all(isinstance(breaker.try_acquire("dead"), Deferred) for _ in range(10_000))
    for n in range(100):
        place(breaker, f"live{n}", owner=f"owner{n % 10}")


def test_the_more_wait_for_a_host_the_longer_each_waits() -> None:
    breaker = hosts(max_per_host=1)
    place(breaker)
    waits = [deferral_of(breaker).retry_in for _ in range(10_000)]
    first_time = sorted(waits)

    assert all(
        second - first >= 0.99
        for first, second in zip(first_time, first_time[2 * MAX_RETRIES_PER_SECOND :], strict=False)
    )
    assert first_time[-1] < 1.1 * 2 * len(waits) / MAX_RETRIES_PER_SECOND


def test_the_state_of_hosts_is_bounded() -> None:
    breaker = hosts(max_hosts=10)
    under_way = place(breaker, "busy")
    for n in range(1000):
        fail(breaker, 1, f"dead{n}")

    assert breaker.host_count <= 11
    assert breaker.deferral("dead999") is None
    under_way.release(True)


def test_the_least_recently_used_host_is_removed_first() -> None:
    breaker = hosts(max_hosts=2)
    fail(breaker, 3, "dead")
    fail(breaker, 1, "other")
    fail(breaker, 1, "third")
    assert breaker.deferral("dead") is None
    fail(breaker, 3, "dead")
    fail(breaker, 2, "third")
    fail(breaker, 1, "fourth")

    assert breaker.deferral("third") is not None
    assert breaker.host_count == 2


def test_hosts_of_which_nothing_was_found_out_are_forgotten() -> None:
    breaker = hosts()
    for n in range(100):
        place(breaker, f"h{n}").release(None)

    assert breaker.host_count == 0
