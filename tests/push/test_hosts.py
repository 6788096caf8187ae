"""No host takes the others' places."""

from __future__ import annotations

from typing import Any

from a2a_celery.push import Held, Hosts
from a2a_celery.push.hosts import LOOKS, Place
from tests.support.clocks import ManualClock


def hosts(clock: ManualClock | None = None, **options: Any) -> Hosts:
    return Hosts(clock=clock or ManualClock(), **{"random": lambda: 0.5, "open_after": 3, "first_rest": 8.0, **options})


def place(hosts: Hosts, name: str = "a") -> Place:
    found = hosts.enter(name)
    assert isinstance(found, Place), found
    return found


def held(hosts: Hosts, name: str = "a") -> Held:
    found = hosts.enter(name)
    assert isinstance(found, Held), found
    assert hosts.held(name) is not None
    return found


def fail(hosts: Hosts, times: int, name: str = "a") -> None:
    for _ in range(times):
        place(hosts, name).leave(False)


def test_a_host_gets_so_many_posts_at_once() -> None:
    some = hosts(per_host=2)
    first, _ = place(some), place(some)

    assert held(some).after > 0
    assert hosts(per_host=2).held("a") is None
    place(some, "b")
    first.leave(True)
    place(some)


def test_all_hosts_together_get_so_many() -> None:
    some = hosts(in_all=3)
    first, *_ = [place(some, name) for name in "abc"]

    assert "too many" in held(some, "d").reason
    first.leave(None)
    place(some, "d")


def test_a_host_that_does_not_answer_rests() -> None:
    some = hosts()
    fail(some, 2)
    assert some.held("a") is None
    fail(some, 1)

    assert "rests" in held(some).reason
    assert some.held("b") is None


def test_failures_count_in_a_row() -> None:
    some = hosts()
    for _ in range(5):
        fail(some, 2)
        place(some).leave(True)

    assert some.held("a") is None


def test_what_was_not_found_out_counts_neither_way() -> None:
    some = hosts()
    fail(some, 2)
    place(some).leave(None)
    fail(some, 1)

    held(some)


def test_after_a_rest_one_tries_and_its_answer_lets_all_go() -> None:
    clock = ManualClock()
    some = hosts(clock)
    fail(some, 3)
    clock.advance(6.0)  # 8, three quarters of it by the jitter

    one = place(some)
    assert "being tried" in held(some).reason
    one.leave(True)
    place(some).leave(True)
    assert some.remembered == 0


def test_a_rest_doubles_up_to_its_limit() -> None:
    clock = ManualClock()
    some = hosts(clock, longest_rest=30.0)
    fail(some, 3)
    rests = []
    for _ in range(4):
        before = clock.monotonic()
        while some.held("a") is not None:
            clock.advance(0.5)
        rests.append(clock.monotonic() - before)
        place(some).leave(False)

    assert rests == [6.0, 12.0, 22.5, 22.5]


def test_one_that_tries_and_is_cut_off_leaves_it_to_the_next() -> None:
    clock = ManualClock()
    some = hosts(clock)
    fail(some, 3)
    clock.advance(6.0)

    place(some).leave(None)
    place(some).leave(True)
    place(some)


def test_those_under_way_when_a_rest_begins_prolong_it_not() -> None:
    clock = ManualClock()
    some = hosts(clock)
    late = [place(some) for _ in range(5)]
    fail(some, 3)
    for one in late:
        one.leave(False)
    clock.advance(6.0)

    place(some)


def test_those_who_wait_come_back_one_after_the_other() -> None:
    numbers = iter([0.5, *(n / 100 for n in range(100))])
    some = hosts(random=lambda: next(numbers))
    fail(some, 3)
    waits = [(some.held("a") or Held(0, "")).after for _ in range(100)]

    assert len({round(wait, 3) for wait in waits}) == 100
    assert min(waits) >= 6.0


def test_ten_thousand_that_wait_for_a_dead_host_leave_the_others_alone() -> None:
    some = hosts()
    fail(some, 3, "dead")

    assert all(isinstance(some.enter("dead"), Held) for _ in range(10_000))
    for n in range(100):
        place(some, f"live{n}")


def test_the_more_wait_for_a_host_the_longer_each_waits() -> None:
    some = hosts(per_host=1)
    place(some)
    waits = [held(some).after for _ in range(10_000)]
    first_time = sorted(waits)

    assert all(later - earlier >= 0.99 for earlier, later in zip(first_time, first_time[2 * LOOKS :], strict=False))
    assert first_time[-1] < 1.1 * 2 * len(waits) / LOOKS


def test_what_is_remembered_is_bounded() -> None:
    some = hosts(most_hosts=10)
    under_way = place(some, "busy")
    for n in range(1000):
        fail(some, 1, f"dead{n}")

    assert some.remembered <= 11
    assert some.held("dead999") is None
    under_way.leave(True)


def test_who_was_posted_to_for_the_last_time_is_forgotten_first() -> None:
    some = hosts(most_hosts=2)
    fail(some, 3, "dead")
    fail(some, 1, "other")
    fail(some, 1, "third")
    assert some.held("dead") is None
    fail(some, 3, "dead")
    fail(some, 2, "third")
    fail(some, 1, "fourth")

    assert some.held("third") is not None
    assert some.remembered == 2


def test_hosts_that_answer_are_forgotten() -> None:
    some = hosts()
    for n in range(100):
        place(some, f"h{n}").leave(True)

    assert some.remembered == 0
