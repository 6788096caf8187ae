"""Retry options of agents: invalid options, retried exceptions, and the length of delays."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from celery import Celery
from celery.exceptions import Ignore, Reject
from hypothesis import given
from hypothesis import strategies as st

from a2a_celery import A2A, ConfigError, Failed, InputRequired
from a2a_celery.delays import MAX_DELAY
from a2a_celery.features.retries import RetryPolicy

NOW = 1_234_567_880.0


def throttling_error(retry_after: str) -> httpx.HTTPStatusError:
    """Return the error of a provider that responds with 429 and `Retry-After`."""
    request = httpx.Request("POST", "http://provider.example")
    return httpx.HTTPStatusError(
        "429", request=request, response=httpx.Response(429, headers={"Retry-After": retry_after})
    )


def test_the_defaults_are_those_of_a_celery_task() -> None:
    task = Celery("test").Task

    policy = RetryPolicy()

    assert (policy.max_retries, policy.default_retry_delay) == (task.max_retries, task.default_retry_delay)
    assert (policy.retry_backoff, policy.retry_backoff_max, policy.retry_jitter) == (False, 600, True)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"autoretry_for": ConnectionError}, r"a tuple of exception classes, such as \(ConnectionError,\)"),
        ({"autoretry_for": (KeyboardInterrupt,)}, "is not a subclass of Exception"),
        ({"dont_autoretry_for": ("ValueError",)}, "'ValueError' is not a subclass of Exception"),
        ({"autoretry_for": (InputRequired,)}, "InputRequired ends a run on purpose and is never retried"),
        ({"max_retries": -1}, "max_retries = -1: a whole number, 0 or more, or None for no limit"),
        ({"max_retries": True}, "max_retries = True: a whole number"),
        ({"retry_backoff": 0.5}, "retry_backoff = 0.5: True, False or a whole number of seconds"),
        ({"retry_backoff_max": 0}, "retry_backoff_max = 0: a whole number of seconds from 1"),
        ({"retry_jitter": 1}, "retry_jitter = 1: True or False"),
        ({"default_retry_delay": float("inf")}, "default_retry_delay = inf: a number of seconds from 0"),
        ({"default_retry_delay": "10"}, "default_retry_delay = '10': a number of seconds from 0"),
    ],
    ids=str,
)
def test_an_option_that_cannot_be_honoured_is_refused_when_the_agent_is_defined(
    option: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=rf"agent 'flaky': .*{sentence}"):
        A2A(Celery("test")).agent("flaky", **option)(print)


def test_a_celery_task_has_its_own_retry_options() -> None:
    app = Celery("test")
    a2a = A2A(app)

    @app.task
    def add(first: int, second: int) -> int:
        return first + second

    with pytest.raises(ConfigError, match=r"agent 'add': max_retries: set it at the Celery task: @app.task\("):
        a2a.expose(add, max_retries=5)


def test_options_make_the_policy_of_the_agent() -> None:
    a2a = A2A(Celery("test"))
    a2a.agent("flaky", autoretry_for=[OSError], max_retries=None, retry_backoff=2, queue="slow")(print)

    agent = a2a.agents["flaky"]

    assert agent.features == (RetryPolicy(autoretry_for=(OSError,), max_retries=None, retry_backoff=2),)
    assert agent.options == {"queue": "slow"}


@pytest.mark.parametrize(
    ("error", "is_retried"),
    [
        (ConnectionError(), True),
        (ConnectionResetError(), False),
        (ValueError(), False),
        (Failed("No such city."), False),
        (Ignore(), False),
        (Reject(), False),
        (KeyboardInterrupt(), False),
    ],
    ids=repr,
)
def test_these_exceptions_are_retried(error: BaseException, is_retried: bool) -> None:
    policy = RetryPolicy(autoretry_for=(ConnectionError, Ignore, Reject), dont_autoretry_for=(ConnectionResetError,))

    assert policy.is_retried(error) is is_retried
    assert RetryPolicy(autoretry_for=(Exception,)).is_retried(error) is isinstance(error, ConnectionError | ValueError)


def test_without_backoff_each_delay_is_the_default() -> None:
    assert [RetryPolicy(default_retry_delay=2.5).backoff(retries) for retries in range(3)] == [2.5] * 3


@pytest.mark.parametrize(("factor", "delays"), [(True, [1, 2, 4, 8, 10, 10]), (3, [3, 6, 10, 10, 10, 10])])
def test_a_delay_doubles_up_to_its_maximum(factor: int, delays: list[int]) -> None:
    policy = RetryPolicy(retry_backoff=factor, retry_backoff_max=10, retry_jitter=False)

    assert [policy.backoff(retries) for retries in (0, 1, 2, 3, 4, 10_000_000)] == delays


@given(st.integers(0, 10_000), st.integers(1, 100), st.integers(1, 10_000))
def test_jitter_shortens_a_delay(retries: int, factor: int, maximum: int) -> None:
    policy = RetryPolicy(retry_backoff=factor, retry_backoff_max=maximum)

    assert 0 <= policy.backoff(retries) <= min(maximum, factor * 2 ** min(retries, 20))


class AwkwardError(Exception):
    """Error with a response that cannot be read."""

    @property
    def response(self) -> Any:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "delay"),
    [
        (throttling_error("7"), 7.0),
        (throttling_error("Fri, 13 Feb 2009 23:31:30 GMT"), 10.0),
        (throttling_error("86400"), 600.0),
        (throttling_error("soon"), None),
        (AwkwardError(), None),
        (ValueError(), None),
        (None, None),
    ],
    ids=str,
)
def test_the_response_of_a_provider_sets_the_delay(error: BaseException | None, delay: float | None) -> None:
    assert RetryPolicy().requested_delay(error, NOW) == delay


def test_the_longest_delay_is_refused_when_it_is_exceeded() -> None:
    with pytest.raises(ConfigError, match=f"up to {MAX_DELAY}"):
        RetryPolicy.from_options("flaky", {"retry_backoff": MAX_DELAY + 1})
