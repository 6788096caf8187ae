"""Options of a run. They take precedence over the agent's options, contain absolute times, and are stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from a2a.types import AgentCard, SendMessageRequest
from a2a.utils.errors import InvalidParamsError

from a2a_celery.agents import Agent
from a2a_celery.caller import Caller
from a2a_celery.dispatch import RunOptions
from a2a_celery.dispatch.options import EXPIRY_GRACE, LONGEST_ETA
from a2a_celery.operations.requests import SCHEDULE
from a2a_celery.operations.requests import run_options as accepted_run_options

NOW = datetime(2030, 1, 1, 8, tzinfo=UTC)
HOUR = timedelta(hours=1)


def run_options(route: Any, not_before: datetime | None = None, not_after: datetime | None = None) -> RunOptions:
    return RunOptions.of(route, not_before, not_after, NOW)


@pytest.mark.parametrize(
    "options",
    [
        run_options({}),
        run_options({"queue": "far", "priority": 3, "exchange": "e", "routing_key": "k"}),
        run_options({"priority": 0}),
        run_options({"priority": 255}),
        run_options({"queue": "far"}, NOW + timedelta(microseconds=1), NOW + HOUR),
        run_options({"expires": 0.5}),
    ],
    ids=str,
)
def test_stored_options_are_read_unchanged(options: RunOptions) -> None:
    assert RunOptions.from_json(options.to_json()) == options


def test_empty_options_are_stored_as_nothing() -> None:
    assert run_options({}).to_json() == b""


@pytest.mark.parametrize(
    "route",
    [
        None,
        [],
        "queue",
        {"countdown": 5},
        {"queue": ""},
        {"queue": 5},
        {"routing_key": None},
        {"priority": "high"},
        {"priority": -1},
        {"priority": 256},
        {"priority": True},
        {"expires": 0},
        {"expires": "soon"},
        {"expires": float("nan")},
        {"expires": float("inf")},
    ],
    ids=str,
)
def test_a_route_that_is_no_mapping_is_refused(route: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        run_options(route)


def test_options_of_a_run_precede_those_of_its_agent() -> None:
    agent = {"queue": "near", "priority": 1, "expires": 60}

    assert run_options({"queue": "far"}).over(agent) == {"queue": "far", "priority": 1, "expires": 60}
    assert run_options({}).over(agent) == agent
    assert agent["queue"] == "near"


def test_an_expiry_does_not_move_when_a_run_is_published_again() -> None:
    options = RunOptions.from_json(run_options({"expires": 60}).to_json())

    assert options.over({"expires": 5}) == {"expires": NOW + timedelta(seconds=60)}


def test_an_expiry_counts_from_the_time_at_which_a_run_may_begin() -> None:
    start = NOW + HOUR

    assert run_options({"expires": 60}, start).over({}) == {"eta": start, "expires": start + timedelta(seconds=60)}
    assert run_options({}, start).over({"expires": 60}) == {"eta": start, "expires": start + timedelta(seconds=60)}
    assert run_options({}, start).over({}) == {"eta": start}


@pytest.mark.parametrize(("seconds", "wins"), [(60, timedelta(seconds=60)), (7200, HOUR)])
def test_the_earlier_expiry_wins(seconds: float, wins: timedelta) -> None:
    assert run_options({"expires": seconds}, None, NOW + HOUR).over({}) == {"expires": NOW + wins}


def test_a_run_goes_to_the_broker_shortly_before_its_time() -> None:
    assert run_options({}).publish_delay(NOW) == timedelta(0)
    assert run_options({}, NOW - HOUR).publish_delay(NOW) == timedelta(0)
    assert run_options({}, NOW + LONGEST_ETA).publish_delay(NOW) == timedelta(0)
    assert run_options({}, NOW + HOUR).publish_delay(NOW) == HOUR - LONGEST_ETA


def test_an_unclaimed_run_is_checked_after_its_start_time_or_expiry() -> None:
    wait = timedelta(seconds=60)

    assert run_options({}).next_check_in(NOW, wait) == wait
    assert run_options({}, NOW - HOUR).next_check_in(NOW, wait) == wait
    assert run_options({}, NOW + HOUR).next_check_in(NOW, wait) == HOUR + wait
    assert run_options({}, NOW + HOUR, NOW + 2 * HOUR).next_check_in(NOW, wait) == HOUR + wait
    assert (
        run_options({}, None, NOW + timedelta(seconds=5)).next_check_in(NOW, wait)
        == timedelta(seconds=5) + EXPIRY_GRACE
    )


def test_a_run_has_expired_when_a_worker_had_the_time_to_say_so() -> None:
    options = run_options({}, None, NOW)

    assert not options.has_expired(NOW)
    assert options.has_expired(NOW + EXPIRY_GRACE)
    assert not run_options({}).has_expired(NOW + 1000 * HOUR)


PAST = "2020-01-01T00:00:00Z"


def scheduled_agent(idempotency_window: float | None) -> Agent:
    options: Any = {"scheduling": True, "idempotency_window": idempotency_window}
    return Agent.with_options("a", AgentCard(name="a"), "function", print, None, options)


@pytest.mark.parametrize("times", [{"not_after": PAST}, {"not_before": "2019-01-01T00:00:00Z", "not_after": PAST}])
def test_a_repeated_message_may_have_past_times(times: dict[str, str]) -> None:
    request = SendMessageRequest()
    request.metadata.update({SCHEDULE: times})

    assert accepted_run_options(scheduled_agent(60), request, Caller()).not_after == datetime(2020, 1, 1, tzinfo=UTC)
    with pytest.raises(InvalidParamsError, match="not_after"):
        accepted_run_options(scheduled_agent(None), request, Caller())


@pytest.mark.parametrize("name", ["not_before", "not_after"])
def test_a_time_that_leaves_no_room_for_calculations_is_refused(name: str) -> None:
    """Otherwise, an OverflowError would stop watchers and workers."""
    request = SendMessageRequest()
    request.metadata.update({SCHEDULE: {name: "8999-12-31T23:59:59Z"}})
    options = accepted_run_options(scheduled_agent(None), request, Caller())
    assert not options.has_expired(NOW)
    assert options.next_check_in(NOW, HOUR) >= HOUR

    request.metadata.update({SCHEDULE: {name: "9999-12-31T23:59:59Z"}})
    with pytest.raises(InvalidParamsError, match=name):
        accepted_run_options(scheduled_agent(None), request, Caller())


def test_the_times_of_a_message_must_be_in_order() -> None:
    request = SendMessageRequest()
    request.metadata.update({SCHEDULE: {"not_before": PAST, "not_after": PAST}})

    with pytest.raises(InvalidParamsError, match="not_after"):
        accepted_run_options(scheduled_agent(60), request, Caller())
