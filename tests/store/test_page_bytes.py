"""Byte limits of pages of tasks and of pages of a log."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from a2a.types import ListTasksRequest

from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.client.connection import LARGE_REPLY
from a2a_celery.store.log.pages import PAGE, PAGE_BYTES, read_log
from a2a_celery.store.tasks import commands
from a2a_celery.store.tasks.listing import PAGE_BYTES as TASKS_BYTES
from tests.support.store.pages import list_page
from tests.support.store.seeds import ANN, RETENTION, Seeds, chunk, status

MIB = 2**20


async def large_task(seeds: Seeds, size: int) -> str:
    """Create a completed task with an artifact of `size` bytes, and return its id."""
    claim = await seeds.claim_run()
    await seeds.settle_run(claim, chunk("x" * size), status(COMPLETED))
    return claim.ref.task_id


async def pages(store: AsyncStore, keys: Keys, **options: Any) -> list[tuple[list[str], int]]:
    """Return the ids and the bytes of each page of tasks."""
    pages_read, token = [], ""
    while True:
        params = ListTasksRequest(page_size=100, page_token=token, **options)
        page = await list_page(store, keys, ANN, params, retention=RETENTION)
        pages_read.append(([task.id for task in page.tasks], page.ByteSize()))
        token = page.next_page_token
        if not token:
            return pages_read


async def test_a_page_of_tasks_ends_before_it_is_too_large(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    ids = [await large_task(seeds, 1 * MIB) for _ in range(25)]

    sized_pages = await pages(store, keys, include_artifacts=True)

    assert [task_id for page, _ in sized_pages for task_id in page] == ids[::-1], "each once, the newest first"
    assert max(size for _, size in sized_pages) <= TASKS_BYTES
    assert len(sized_pages) > 1


async def test_a_task_that_is_larger_than_a_page_gets_its_own_page(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    small_id, large_id = await large_task(seeds, 10), await large_task(seeds, TASKS_BYTES)
    newest = await large_task(seeds, 10)

    sized_pages = await pages(store, keys, include_artifacts=True)

    assert [page for page, _ in sized_pages] == [[newest], [large_id], [small_id]]


async def test_unread_artifacts_do_not_count(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    for _ in range(12):
        await large_task(seeds, 1 * MIB)

    [(ids, size)] = await pages(store, keys, history_length=0)

    assert len(ids) == 12
    assert size < 10_000


@pytest.mark.parametrize(
    "sizes", [[10] * 300, [200_000] * 12, [10] * 20 + [3 * MIB] * 3 + [10] * 20, [100_000, 10] * 30]
)
async def test_a_page_of_a_log_is_limited_in_bytes(
    store: AsyncStore, keys: Keys, seeds: Seeds, sizes: list[int]
) -> None:
    claim = await seeds.claim_run()
    for number, size in enumerate(sizes):
        await seeds.append_events(claim, chunk("x" * size), written_count=number)
    version, versions = 2 + len(sizes), []

    while len(versions) < version:
        page = await store.run(read_log(keys, claim.ref.task_id, len(versions)))
        entries = [len(entry.event.SerializeToString()) for entry in page.entries]
        assert 0 < len(entries) <= PAGE
        assert sum(entries[:-1]) < PAGE_BYTES, "only the last entry may exceed it"
        versions += [entry.version for entry in page.entries]

    assert versions == list(range(1, version + 1))


async def test_large_replies_are_parsed_in_a_thread(
    store: AsyncStore, keys: Keys, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsers: list[bool] = []
    parse = commands.task_from_snapshot

    def record_thread(reply: list[Any]) -> Any:
        parsers.append(threading.current_thread() is threading.main_thread())
        return parse(reply)

    monkeypatch.setattr(commands, "task_from_snapshot", record_thread)
    task_id = await large_task(seeds, LARGE_REPLY // 2)
    await list_page(store, keys, ANN, ListTasksRequest(include_artifacts=True), retention=RETENTION)
    await large_task(seeds, LARGE_REPLY // 2)
    larger = await large_task(seeds, 2 * LARGE_REPLY)
    assert parsers == [True]

    page = await list_page(store, keys, ANN, ListTasksRequest(include_artifacts=True), retention=RETENTION)
    results = [await store.run(commands.read_task(keys, ANN, stored_id)) for stored_id in (task_id, larger)]

    assert parsers == [True, *[False] * 3, True, False]
    assert [len(task.artifacts[0].parts[0].text) for task in page.tasks] == [2 * LARGE_REPLY, *[LARGE_REPLY // 2] * 2]
    assert [result[0].id for result in results if result] == [task_id, larger]
