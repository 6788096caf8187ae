"""Reminders of `Turn.ask`: the arguments, and the times that are stored with the question."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest
from a2a.types import Part
from celery import Celery

from a2a_celery import A2A, ConfigError, Question, Turn
from a2a_celery.features.questions.question_section import section_of_pause
from a2a_celery.features.questions.reminder_poster import reminder_index
from a2a_celery.features.questions.reminders import MAX_REMINDERS, Reminders
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import INPUT_REQUIRED
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from tests.execution.scene import TurnByTurn

app = Celery("test", broker="memory://", set_as_current=False)
a2a = A2A(app)
SETTINGS = Settings(secret_key="s" * 32)
HOUR = 3600.0


@a2a.agent("asks", description="Asks.")
async def asks(turn: Turn) -> str:
    return await turn.ask("Go on?", remind_after=HOUR)


@a2a.agent("asks-in-a-form", description="Asks.")
async def asks_in_a_form(turn: Turn) -> str:
    return f"{await turn.ask('How many?', schema=int, remind_after=[HOUR, 2 * HOUR])}"


@a2a.agent("asks-all", description="Asks.")
async def asks_all(turn: Turn) -> str:
    return f"{await turn.ask_all({'many': Question('How many?', int)}, remind_after=HOUR)}"


@a2a.agent("threaded", description="Asks.")
def ask_in_thread(turn: Turn) -> str:
    turn.blocking.ask("Go on?", remind_after=HOUR)
    return f"{turn.blocking.ask_all({'many': Question('How many?', int)}, remind_after=HOUR)}"


@a2a.agent("never-reminds", description="Asks.")
async def never_reminds(turn: Turn) -> str:
    return await turn.ask("Go on?")


async def seconds_left(store: AsyncStore, keys: Keys) -> float | None:
    """Return the seconds until the next reminder of the task, or None if the task has no reminder."""
    due_us = await store.redis.zscore(reminder_index(keys), "t")
    seconds, micros = await store.redis.time()
    return None if due_us is None else due_us / 1_000_000 - seconds - micros / 1_000_000


@pytest.mark.parametrize("agent", ["asks", "asks-in-a-form", "asks-all", "threaded"])
async def test_a_question_is_stored_with_the_time_of_its_reminder(
    turns: TurnByTurn, store: AsyncStore, keys: Keys, agent: str
) -> None:
    assert (await turns.begin(agent))[0] == INPUT_REQUIRED

    assert await seconds_left(store, keys) == pytest.approx(HOUR, abs=60)


@pytest.mark.parametrize(("remind_after", "has_section"), [(None, False), (HOUR, True)])
def test_a_question_without_schema_and_reminders_has_no_section(remind_after: float | None, has_section: bool) -> None:
    asked = Reminders.of(remind_after, None, SETTINGS).section("t", Keys(), SETTINGS)

    assert (section_of_pause(RunRef("t", 1), [Part(text="Go on?")], asked) is not None) is has_section


async def test_a_question_without_reminders_has_none(turns: TurnByTurn, store: AsyncStore, keys: Keys) -> None:
    assert (await turns.begin("never-reminds"))[0] == INPUT_REQUIRED

    assert await seconds_left(store, keys) is None


async def test_the_answer_of_a_question_cancels_its_reminder(turns: TurnByTurn, store: AsyncStore, keys: Keys) -> None:
    await turns.begin("asks")

    await turns.answer("asks", "yes")

    assert await seconds_left(store, keys) is None


@pytest.mark.parametrize(
    "remind_after", [0, -1, True, "60", float("inf"), [], [2, 1], [1, 1], [1.0] * 2, range(1, MAX_REMINDERS + 2)]
)
def test_times_that_are_none_are_refused(remind_after: Any) -> None:
    with pytest.raises(ValueError, match="remind_after = "):
        Reminders.of(remind_after, None, SETTINGS)


@pytest.mark.parametrize("remind_after", [1, 0.5, (1, 2.5), range(1, MAX_REMINDERS + 1)])
def test_times_are_seconds_in_ascending_order(remind_after: Any) -> None:
    assert Reminders.of(remind_after, None, SETTINGS).after


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("", "is required"),
        ("ops", "https"),
        ("http://hooks.example.com/", "https"),
        ("https://10.0.0.1/", "public host"),
        ("https://user@hooks.example.com/", "no user"),
        (5, "the URL of a webhook"),
    ],
)
def test_a_webhook_to_which_clients_could_not_post_is_refused(url: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        Reminders.of(HOUR, url, SETTINGS)


def test_a_webhook_in_an_allowed_network_is_accepted() -> None:
    allowing = Settings(secret_key="s" * 32, allow_networks=("10.0.0.0/8",))
    assert allowing.push_networks == (ip_network("10.0.0.0/8"),)

    assert Reminders.of(HOUR, "http://10.0.0.1/hook", allowing).escalate_to == "http://10.0.0.1/hook"


def test_an_escalation_needs_a_reminder_and_a_secret_key() -> None:
    with pytest.raises(ValueError, match="needs remind_after"):
        Reminders.of(None, "https://hooks.example.com/", SETTINGS)
    with pytest.raises(ConfigError, match="a2a_secret_key"):
        Reminders.of(HOUR, "https://hooks.example.com/", Settings())
