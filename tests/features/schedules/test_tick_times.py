"""Time of a schedule's tick, for crontabs and intervals, in each process that sends or receives the tick."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from a2a_celery import ConfigError
from a2a_celery.features.schedules.celery_task import DEFAULT_WINDOW, last_time, tick_time, window_of


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def cron(timezone: str = "UTC", **fields: Any) -> crontab:
    app = Celery("times", set_as_current=False)
    app.conf.timezone = timezone
    return crontab(app=app, **fields)


@pytest.mark.parametrize(
    ("rule", "now", "last"),
    [
        (cron(), "2030-05-05T10:00:00.2", "2030-05-05T10:00:00"),
        (cron(), "2030-05-05T10:00:59.9", "2030-05-05T10:00:00"),
        (cron(hour=2, minute=0), "2030-05-05T02:00:00", "2030-05-05T02:00:00"),
        (cron(hour=2, minute=0), "2030-05-05T02:00:01", "2030-05-05T02:00:00"),
        (cron(hour=2, minute=0), "2030-05-05T01:59:59", "2030-05-04T02:00:00"),
        (cron(hour=2, minute=0), "2030-05-05T17:31:00", "2030-05-05T02:00:00"),
        (cron(hour=2), "2030-05-05T17:31:00", "2030-05-05T02:59:00"),
        (cron(minute="*/15"), "2030-05-05T10:44:59", "2030-05-05T10:30:00"),
        (cron(hour=6, minute=30, day_of_week="mon"), "2030-05-05T10:00:00", "2030-04-29T06:30:00"),
        (cron(hour=0, minute=0, day_of_month=1, month_of_year=1), "2030-05-05T10:00:00", "2030-01-01T00:00:00"),
        (cron(hour=0, minute=0, day_of_month=29, month_of_year=2), "2031-05-05T10:00:00", "2028-02-29T00:00:00"),
        (cron("Europe/Madrid", hour=2, minute=0), "2030-07-05T10:00:00", "2030-07-05T00:00:00"),
        (cron("Europe/Madrid", hour=2, minute=0), "2030-01-05T10:00:00", "2030-01-05T01:00:00"),
    ],
)
def test_the_last_time_of_a_crontab(rule: crontab, now: str, last: str) -> None:
    assert last_time(rule, at(now)) == at(last)


def test_a_tick_of_a_crontab_has_one_time_in_all_processes() -> None:
    app = Celery("times", set_as_current=False)
    app.conf.beat_schedule = {"nightly": {"task": "x", "schedule": crontab(hour=2, minute=0)}}
    times = [at("2030-05-05T02:00:00.1"), at("2030-05-05T02:00:04"), at("2030-05-06T01:59:59")]

    assert {tick_time(app, "nightly", now) for now in times} == {round(at("2030-05-05T02:00:00").timestamp() * 1e6)}


def test_the_tick_of_another_schedule_is_the_time_of_its_message() -> None:
    app = Celery("times", set_as_current=False)
    app.conf.beat_schedule = {"often": {"task": "x", "schedule": 10.0}}
    now = at("2030-05-05T02:00:00.123456")

    assert {tick_time(app, name, now) for name in ("often", "unknown")} == {round(now.timestamp() * 1e6)}


@pytest.mark.parametrize(
    ("rule", "window"),
    [
        (crontab(), 0.0),
        (10, 9.0),
        (0.5, 0.45),
        (timedelta(minutes=1), 54.0),
        (schedule(timedelta(seconds=100)), 90.0),
    ],
)
def test_the_window_of_a_schedule(rule: Any, window: float) -> None:
    assert window_of(rule) == pytest.approx(window)


def test_another_schedule_of_celery_has_the_default_window() -> None:
    class MoonSchedule:
        def remaining_estimate(self, last_run_at: datetime) -> timedelta:
            return timedelta()

    assert window_of(MoonSchedule()) == DEFAULT_WINDOW


@pytest.mark.parametrize("rule", [0, -1, timedelta(0), "0 2 * * *", None, True, float("nan")])
def test_an_invalid_schedule_is_refused(rule: Any) -> None:
    with pytest.raises(ConfigError, match="schedule="):
        window_of(rule)
