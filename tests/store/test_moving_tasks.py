"""Operator commands on a task that moves to another list of open tasks while the command reads the lists."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from a2a_celery.lifecycle.states import CANCELED, INPUT_REQUIRED
from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.admin import scan
from a2a_celery.store.admin.scan import TaskSummary
from tests.support.clients.store_operator import Command
from tests.support.store.seeds import Seeds, status

pytestmark = pytest.mark.usefixtures("schema_record")


@pytest.fixture
async def asks_meanwhile(seeds: Seeds, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> str:
    """Id of a working task that asks a question after the list of pauses and before the list of leases is read."""
    claim = await seeds.claim_run(task_id=await seeds.create_task(task_id="asks"))
    loop, read_list = asyncio.get_running_loop(), scan.list_summaries
    has_asked = False

    def list_summaries(store: SyncStore, keys: Keys, name: str) -> Iterator[TaskSummary]:
        nonlocal has_asked
        if name == keys.leases and not has_asked:
            has_asked = True
            settle = seeds.settle_run(claim, status(INPUT_REQUIRED))
            asyncio.run_coroutine_threadsafe(settle, loop).result(30)
        return read_list(store, keys, name)

    monkeypatch.setattr(scan, "list_summaries", list_summaries)
    return claim.ref.task_id


async def test_a_task_that_moves_is_among_all_tasks(command: Command, seeds: Seeds, asks_meanwhile: str) -> None:
    await asyncio.to_thread(command, "cancel", "--all", "--yes")

    assert (await seeds.task(asks_meanwhile)).status.state == CANCELED


async def test_a_task_is_cancelled_although_no_list_shows_it(
    command: Command, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    await seeds.create_task(task_id="moves")
    monkeypatch.setattr(scan, "list_summaries", lambda *_: iter(()))

    result = await asyncio.to_thread(command, "cancel", "moves", "--store")

    assert result.stdout.splitlines()[1] == "CANCELED: Stopped by an operator."
