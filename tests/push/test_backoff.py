"""Backoff of failed webhook deliveries."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from a2a_celery.push import Backoff
from a2a_celery.push.circuit_breaker import DAY, HOUR

LATEST = Backoff(random=lambda: 0.999999)
EARLIEST = Backoff(random=lambda: 0.0)


def test_the_limit_doubles_up_to_hours() -> None:
    limits = [round(LATEST.delay(n, 0) or 0) for n in range(1, 20)]

    assert limits[:6] == [1, 2, 4, 8, 16, 32]
    assert limits[-1] == 3 * HOUR
    assert all(b in (2 * a, 3 * HOUR) for a, b in pairwise(limits))


def test_jitter_is_full() -> None:
    backoff = Backoff(random=random.Random(1).random)
    delays = [backoff.delay(10, 0) or 0 for _ in range(1000)]

    assert 0 <= min(delays) < 5
    assert 507 < max(delays) <= 512
    assert 230 < sum(delays) / 1000 < 282


def test_a_delivery_is_given_up_after_a_day_and_posted_at_its_end() -> None:
    assert LATEST.delay(20, DAY - 60) == 60
    assert LATEST.delay(20, DAY) is None
    assert LATEST.delay(1, DAY + 1) is None


@pytest.mark.parametrize("seed", range(20))
def test_a_day_has_some_thirty_posts(seed: int) -> None:
    backoff = Backoff(random=random.Random(seed).random)
    age, failures = 0.0, 1
    while (delay := backoff.delay(failures, age)) is not None:
        age, failures = age + delay, failures + 1

    assert age == pytest.approx(DAY)
    assert 18 <= failures <= 50


def test_a_receiver_that_asks_for_time_gets_it_and_not_all_come_at_once() -> None:
    assert EARLIEST.delay(1, 0, retry_after=120) == 120
    assert LATEST.delay(1, 0, retry_after=120) == pytest.approx(132, abs=0.1)
    assert LATEST.delay(1, 0, retry_after=3000) == pytest.approx(3060, abs=0.1)


@pytest.mark.parametrize("retry_after", [0.0, -5.0, None])
def test_a_receiver_that_asks_for_none_changes_nothing(retry_after: float | None) -> None:
    assert LATEST.delay(5, 0, retry_after) == LATEST.delay(5, 0)


def test_no_receiver_can_ask_for_ever() -> None:
    assert EARLIEST.delay(1, 0, retry_after=1e12) == 3 * HOUR
    assert EARLIEST.delay(1, DAY - 100, retry_after=1e12) == 100


def test_odd_numbers_do_no_harm() -> None:
    """The arguments stand for a clock that was set back, and for more failures than a float can represent."""
    assert LATEST.delay(1, -500) == pytest.approx(1, abs=0.01)
    assert (LATEST.delay(10**9, 0) or 0) <= 3 * HOUR
    assert (LATEST.delay(0, 0) or 0) <= 1
