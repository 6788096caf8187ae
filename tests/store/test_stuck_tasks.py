"""``a2a list --stuck``: waits of tasks that entered their state long before they began to wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from a2a_celery.lifecycle.states import INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys
from tests.support.clients.store_operator import Command, json_lines
from tests.support.store.seeds import Seeds, status
from tests.support.store.suspensions import Suspensions, wait_for

pytestmark = pytest.mark.usefixtures("schema_record")

HOUR_US = 3_600_000_000


@pytest.fixture
def suspensions(seeds: Seeds) -> Suspensions:
    return Suspensions(seeds)


async def make_older(store: AsyncStore, keys: Keys, task_id: str) -> None:
    """Move the times of the task's status, its newest claim and its creation an hour into the past."""
    record = keys.task(task_id).record
    for name in ("at", "entered_at", "claimed_at"):
        if await store.redis.hexists(record, name):
            await store.redis.hincrby(record, name, -HOUR_US)


@pytest.fixture
async def long_run(store: AsyncStore, keys: Keys, seeds: Seeds) -> Any:
    """Claim of a run that has been WORKING for an hour."""
    claim = await seeds.claim_run(task_id=await seeds.create_task(task_id="works"), max_attempts=3)
    await make_older(store, keys, "works")
    return claim


async def stuck(command: Command, *older_than: str) -> dict[str, str]:
    """Return the reason of each stuck task that has waited for a minute."""
    result = await asyncio.to_thread(command, "list", "--stuck", "--json", "--older-than", *older_than)
    return {entry["task"]: entry["why"] for entry in json_lines(result)}


async def test_a_run_that_waits_for_a_signal_waits_since_its_suspension(
    command: Command, store: AsyncStore, keys: Keys, suspensions: Suspensions, long_run: Any
) -> None:
    await suspensions.suspend_run(long_run, wait_for("approval"), status(WORKING))

    assert await stuck(command, "60") == {}
    assert await stuck(command, "0") == {"works": "signal"}
    await make_older(store, keys, "works")
    assert await stuck(command, "60") == {"works": "signal"}


async def test_a_resumed_run_waits_for_a_worker_since_it_was_resumed(
    command: Command, store: AsyncStore, keys: Keys, suspensions: Suspensions, long_run: Any
) -> None:
    await suspensions.suspend_run(long_run, wait_for("approval"), status(WORKING))
    await make_older(store, keys, "works")
    await suspensions.send_signal("works", "approval")

    assert await stuck(command, "60") == {}
    assert await stuck(command, "0") == {"works": "unclaimed"}


async def test_the_next_attempt_waits_since_the_loss_of_the_worker(
    command: Command, seeds: Seeds, long_run: Any
) -> None:
    assert (await seeds.recover_run(long_run.ref)).outcome == "again"

    assert await stuck(command, "60") == {}
    assert await stuck(command, "0") == {"works": "unclaimed"}


async def test_a_question_waits_since_it_was_asked(
    command: Command, store: AsyncStore, keys: Keys, seeds: Seeds, long_run: Any
) -> None:
    await seeds.settle_run(long_run, status(INPUT_REQUIRED))

    assert await stuck(command, "60") == {}
    await make_older(store, keys, "works")
    assert await stuck(command, "60") == {"works": "paused"}
