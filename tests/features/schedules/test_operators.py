"""Reports of schedules for operators: a schedule's tasks and skipped ticks, and the schedules of the app."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from celery import Celery
from celery.schedules import crontab

from a2a_celery import A2A, Turn
from a2a_celery.features.schedules.celery_task import NAME
from a2a_celery.features.schedules.report import reports
from a2a_celery.features.schedules.section import HandledTick, Tick
from a2a_celery.gateway.operator.stored_tasks import stored_tasks
from a2a_celery.store import AsyncStore, Keys
from tests.support.clients.store_operator import Command, json_lines
from tests.support.store.replies import begins
from tests.support.store.seeds import ANN, BOB, Seeds

NIGHTLY = Tick("nightly", round(datetime(2026, 11, 25, 2, tzinfo=UTC).timestamp() * 1_000_000))
NEXT = replace(NIGHTLY, at_us=NIGHTLY.at_us + 86_400_000_000)


@pytest.fixture
async def task_id(seeds: Seeds) -> str:
    """Id of the task of the first tick. The second tick is skipped."""
    result = await seeds.create_scheduled_task(NIGHTLY, BOB)
    assert begins(result)
    assert await seeds.create_scheduled_task(NEXT, BOB) == HandledTick("skipped")
    return result.task.id


async def test_tasks_of_a_schedule_are_listed_with_its_skipped_ticks(
    store: AsyncStore, keys: Keys, task_id: str
) -> None:
    page = await stored_tasks(store, keys, [], {"schedule": "nightly"})

    assert [(task["id"], task["owner"]) for task in page["tasks"]] == [(task_id, "bob")]
    assert page["skippedTicks"] == ["2026-11-26T02:00:00.000Z"]
    empty_page = {"tasks": [], "next": None, "skippedTicks": []}
    assert await stored_tasks(store, keys, [], {"schedule": "other"}) == empty_page
    assert "skippedTicks" not in await stored_tasks(
        store, keys, [], {"schedule": "nightly", "state": "TASK_STATE_WORKING"}
    )


@pytest.mark.usefixtures("schema_record")
async def test_the_command_lists_the_tasks_and_skipped_ticks_of_a_schedule(
    seeds: Seeds, command: Command, task_id: str
) -> None:
    await seeds.create_task(ANN)
    skipped_tick = {"task": None, "schedule": "nightly", "skippedTick": "2026-11-26T02:00:00+00:00"}

    async def listed(*options: str) -> list[object]:
        result = await asyncio.to_thread(command, "list", "--schedule", "nightly", "--json", *options)
        return [row if row["task"] is None else row["task"] for row in json_lines(result)]

    assert await listed() == [task_id, skipped_tick]
    assert await listed("--owner", "bob") == [task_id]
    assert await listed("--until", "2026-11-26T01:59") == []
    table = await asyncio.to_thread(command, "list", "--schedule", "nightly")
    assert table.stdout.splitlines()[-1] == "skipped: the tick at 2026-11-26 02:00:00 (UTC)"
    refusal = await asyncio.to_thread(command, "list", "--schedule", "nightly", "--stuck", code=2)
    assert "--stuck and --schedule exclude each other" in refusal.output


async def reporter(turn: Turn) -> str:
    return turn.text


async def test_the_schedules_of_the_app_are_reported_with_what_became_of_their_ticks(
    store: AsyncStore, keys: Keys
) -> None:
    app = Celery("scheduled", broker="memory://", set_as_current=False)
    app.conf.beat_schedule = {
        "clean": {"task": "clean", "schedule": 60},
        "wrong": {"task": NAME, "schedule": 60, "kwargs": {"schedule": ["x"], "agent": "reporter"}},
    }
    a2a = A2A(app)
    a2a.agent("reporter")(reporter)
    a2a.schedule("nightly", crontab(hour=2, minute=0), "reporter", "make the report", owner="bob")
    a2a.schedule("poll", 30, "reporter", "look", overlap="allow")
    seeds = Seeds(store, keys)
    tick_result = await seeds.create_scheduled_task(NIGHTLY, BOB)
    await seeds.create_scheduled_task(NEXT, BOB)
    assert begins(tick_result)

    nightly, poll = await reports(app, store, keys)

    assert nightly["lastTask"]["id"] == tick_result.task.id
    assert nightly | {"lastTask": None} == {
        "name": "nightly", "agent": "reporter", "owner": "bob", "tenant": "", "overlap": "skip", "when": "0 2 * * *",
        "lastTask": None, "skippedTicks": 1, "lastSkippedTick": "2026-11-26T02:00:00.000Z",
    }  # fmt: skip
    assert poll == {
        "name": "poll", "agent": "reporter", "owner": "", "tenant": "", "overlap": "allow", "when": "every 30 s",
        "lastTask": None, "skippedTicks": 0, "lastSkippedTick": None,
    }  # fmt: skip
