"""Lists and reads while tasks are archived. The caller finds each task exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from a2a.types import ListTasksRequest, ListTasksResponse, Task
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from google.protobuf.timestamp_pb2 import Timestamp

from a2a_celery.archive import Archive, Archived, ArchivedPage, Filter, open_archive
from a2a_celery.archive.database import DatabaseArchive
from a2a_celery.errors import ArchiveUnavailable
from a2a_celery.gateway.operations.task_reader import TaskReader
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import COMPLETED, FAILED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.archiving import read_archive_state
from a2a_celery.store.admin.schema import SCHEMA, require_schema
from a2a_celery.store.admin.start_check import announce_watcher
from a2a_celery.watcher import archiver as archiver_module
from a2a_celery.watcher.archiver import Archiver
from tests.archive.conftest import sqlite
from tests.support.clocks import ManualClock
from tests.support.store.leaks import leaks
from tests.support.store.seeds import ANN, BOB, CONTEXT, RETENTION, Seeds, chunk, status


class UnreliableArchive:
    """Archive whose database can fail or refuse some tasks."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self.away = False
        self.dislikes: set[str] = set()
        self.then: Callable[[], Any] | None = None
        self.returns_before_check = False

    async def put(self, tasks: Sequence[Archived]) -> None:
        self._answer()
        if self.dislikes & {copy.task.id for copy in tasks}:
            raise ArchiveUnavailable("too large")
        await self._archive.put(tasks)
        if self.then is not None:
            await self.then()

    async def require_writable(self) -> None:
        self.away = self.away and not self.returns_before_check
        self._answer()
        await self._archive.require_writable()

    async def read(self, scope: Scope, task_id: str) -> Archived | None:
        self._answer()
        return await self._archive.read(scope, task_id)

    async def page(self, criteria: Filter, **options: Any) -> ArchivedPage:
        self._answer()
        return await self._archive.page(criteria, **options)

    async def forget(self, before_us: int, limit: int) -> int:
        self._answer()
        return await self._archive.forget(before_us, limit)

    async def aclose(self) -> None:
        await self._archive.aclose()

    def _answer(self) -> None:
        if self.away:
            raise ArchiveUnavailable("away")


class Scene:
    """Store with an archive, a reader of both, and an archiver."""

    def __init__(self, store: AsyncStore, keys: Keys, seeds: Seeds, archive: UnreliableArchive) -> None:
        self.store, self.keys, self.seeds, self.archive = store, keys, seeds, archive
        self.kept = TaskReader(store, keys, archive, RETENTION)
        self.clock = ManualClock()
        self.archiver = self.new_archiver()

    def new_archiver(self, retention: int | None = None, **options: int) -> Archiver:
        """Return the archiver of a second watcher."""
        return Archiver(self.store, self.keys, self.archive, retention, clock=self.clock, **options)

    async def due(self, *task_ids: str) -> None:
        """Make tasks in the store due for archiving, by default all, as if their retention had expired."""
        for place, tag in enumerate(task_ids or await self.store.redis.zrange(self.keys.archive, 0, -1)):
            await self.store.redis.zadd(self.keys.archive, {tag: place + 1})

    async def archive_tasks(self, *task_ids: str) -> None:
        """Make the given tasks, by default all terminal tasks, due for archiving, and run the archiver once."""
        await self.due(*task_ids)
        await self.archiver.tick()

    async def page(self, scope: Scope = ANN, **params: Any) -> ListTasksResponse:
        """Return a page of tasks, as a client requests it."""
        return await self.kept.page(scope, ListTasksRequest(**params))

    async def pages(self, between: Callable[[], Any] | None = None, **params: Any) -> list[Task]:
        """Return the tasks of all pages. Call `between` after each page but the last."""
        tasks, token = [], ""
        while True:
            page = await self.page(page_token=token, **params)
            tasks += page.tasks
            token = page.next_page_token
            if not token:
                return tasks
            if between is not None:
                await between()

    async def is_in_store(self, task_id: str) -> bool:
        return bool(await self.store.redis.exists(self.keys.task(task_id).record))


@pytest.fixture
async def scene(store: AsyncStore, keys: Keys, seeds: Seeds, tmp_path: Path) -> AsyncIterator[Scene]:
    await store.redis.hset(keys.installation, mapping={"schema": SCHEMA, "archive": "1"})
    archive = UnreliableArchive(open_archive(sqlite(tmp_path)))
    yield Scene(store, keys, seeds, archive)
    await archive.aclose()
    assert await leaks(store, keys) == []


def ids(tasks: Sequence[Task]) -> list[str]:
    return [task.id for task in tasks]


async def test_a_task_is_read_the_same_before_and_after(scene: Scene) -> None:
    claim = await scene.seeds.claim_run()
    task_id = claim.ref.task_id
    await scene.seeds.append_events(claim, chunk("one "), chunk("two", note=1.5), status(COMPLETED, "done", total=3))
    task_before = await scene.kept.read(ANN, task_id)
    excerpt_before = await scene.kept.read(ANN, task_id, history_length=1, artifacts=False)
    assert not task_before.archived

    await scene.archive_tasks()

    assert not await scene.is_in_store(task_id)
    task_after = await scene.kept.read(ANN, task_id)
    assert (task_after.task, task_after.newest.version) == (task_before.task, task_before.newest.version)
    assert task_after.archived
    assert (await scene.kept.read(ANN, task_id, history_length=1, artifacts=False)).task == excerpt_before.task
    assert (await scene.kept.read(ANN, task_id, history_length=0)).task.history == []
    for stranger in (BOB, Scope("agent", "t", "ann"), Scope("other", "", "ann")):
        with pytest.raises(TaskNotFoundError):
            await scene.kept.read(stranger, task_id)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
async def test_pages_join_without_a_seam(scene: Scene, size: int) -> None:
    task_ids = [await scene.seeds.create_task_in(COMPLETED) for _ in range(9)]
    live_ids = [await scene.seeds.create_task_in(INPUT_REQUIRED), await scene.seeds.create_task()]
    await scene.seeds.create_task_in(COMPLETED, scope=BOB)
    all_ids = ids(await scene.pages(page_size=50))
    assert all_ids == [*reversed(live_ids), *reversed(task_ids)]

    for count in (0, 4, 9):
        await scene.archive_tasks(*task_ids[:count])
        tasks = await scene.pages(page_size=size)
        assert ids(tasks) == all_ids
        assert (await scene.page(page_size=size)).total_size == 11


async def test_pages_of_large_tasks_end_early_and_lose_none(scene: Scene, tmp_path: Path) -> None:
    task_ids = [await scene.seeds.create_task_in(COMPLETED) for _ in range(12)]
    await scene.archive_tasks(*(task_ids[n] for n in (0, 1, 3, 4, 5, 6, 8, 9)))
    assert ids((await scene.page(page_size=12)).tasks) == list(reversed(task_ids))

    archive = DatabaseArchive(sqlite(tmp_path), page_bytes=1)
    scene.kept = TaskReader(scene.store, scene.keys, archive, RETENTION)

    assert ids(await scene.pages(page_size=6)) == list(reversed(task_ids))
    assert ids((await scene.page(page_size=6)).tasks) == [task_ids[11], task_ids[10], task_ids[9]]
    await archive.aclose()


async def test_a_task_that_crosses_between_two_pages_is_listed_once(scene: Scene) -> None:
    ended_ids = [await scene.seeds.create_task_in(COMPLETED) for _ in range(12)]
    await scene.archive_tasks(*ended_ids[:2])
    ids_left = list(ended_ids[2:])

    async def two_cross_and_one_ends() -> None:
        await scene.archive_tasks(*ids_left[:2])
        del ids_left[:2]
        await scene.seeds.create_task_in(COMPLETED)

    task_ids = ids(await scene.pages(between=two_cross_and_one_ends, page_size=2))

    assert task_ids == list(reversed(ended_ids))
    assert len(ids_left) == 0


async def test_a_task_that_crosses_while_a_page_is_made_is_listed_once(scene: Scene) -> None:
    task_ids = [await scene.seeds.create_task_in(COMPLETED) for _ in range(6)]
    await scene.archive_tasks(task_ids[0])
    page = scene.archive.page

    async def crossing(criteria: Filter, **options: Any) -> ArchivedPage:
        await scene.archive_tasks(*task_ids[1:4])
        return await page(criteria, **options)

    scene.archive.page = crossing  # type: ignore[method-assign]

    response = await scene.page(page_size=10)

    assert ids(response.tasks) == list(reversed(task_ids))
    assert response.total_size == 6


async def test_a_copy_whose_task_is_still_in_the_store_is_listed_once(scene: Scene) -> None:
    """The watcher is killed after the copy and before the removal."""
    task_ids = [await scene.seeds.create_task_in(COMPLETED) for _ in range(4)]
    await scene.archive_tasks(task_ids[1])  # the older task is before the archive cutoff now
    cancellation = asyncio.CancelledError()

    async def dies() -> None:
        raise cancellation

    scene.archive.then = dies
    await scene.due()
    with pytest.raises(asyncio.CancelledError):
        await scene.archiver.tick()
    scene.archive.then = None

    assert ids(await scene.pages(page_size=2)) == list(reversed(task_ids))
    assert await scene.is_in_store(task_ids[0])
    await scene.store.redis.delete(scene.keys.archiver)  # the lease of the killed archiver expires
    await scene.new_archiver().tick()
    assert not await scene.is_in_store(task_ids[0])
    page = await scene.page(page_size=2)
    assert (ids(page.tasks), page.total_size) == ([task_ids[3], task_ids[2]], 4)


@pytest.mark.parametrize("restores", ["the heartbeat of a watcher", "the start of a gateway"])
async def test_archived_tasks_are_listed_after_the_store_was_emptied(scene: Scene, restores: str) -> None:
    archived_id = await scene.seeds.create_task_in(COMPLETED)
    await scene.archive_tasks()
    await scene.store.redis.flushdb()
    if restores == "the heartbeat of a watcher":
        await scene.store.run(announce_watcher(scene.keys, "watcher", archives=True))
    else:
        await require_schema(scene.store, scene.keys, archive=True)

    ended_id = await scene.seeds.create_task_in(COMPLETED)

    page = await scene.page()
    assert (ids(page.tasks), page.total_size) == ([ended_id, archived_id], 2)
    await scene.archive_tasks()
    assert ids(await scene.pages(page_size=1)) == [ended_id, archived_id]


async def test_each_filter_reaches_both(scene: Scene) -> None:
    seeds = scene.seeds
    old_ids = [
        await seeds.create_task_in(FAILED),
        await seeds.create_task_in(COMPLETED, context_id="other"),
        await seeds.create_task_in(COMPLETED),
    ]
    new_ids = [await seeds.create_task_in(FAILED, context_id="other"), await seeds.create_task_in(COMPLETED)]
    await seeds.create_task_in(FAILED, scope=Scope("agent", "tenant", "ann"))
    since = Timestamp()
    since.CopyFrom((await seeds.task(old_ids[1])).status.timestamp)
    filters: list[dict[str, Any]] = [
        {"status": FAILED},
        {"status": INPUT_REQUIRED},
        {"context_id": "other"},
        {"context_id": CONTEXT, "status": COMPLETED},
        {"status_timestamp_after": since},
        {"include_artifacts": True, "history_length": 0},
        {"history_length": 1},
    ]
    pages_before = [await scene.page(page_size=1, **criteria) for criteria in filters]
    whole_pages = [await scene.pages(page_size=1, **criteria) for criteria in filters]

    await scene.archive_tasks(*old_ids)

    assert [await scene.page(page_size=1, **criteria) for criteria in filters] == pages_before
    assert [await scene.pages(page_size=1, **criteria) for criteria in filters] == whole_pages
    assert ids(whole_pages[0]) == [new_ids[0], old_ids[0]]


async def test_an_invalid_page_token_is_refused(scene: Scene) -> None:
    with pytest.raises(InvalidParamsError):
        await scene.page(page_token="mine")


async def test_an_outage_of_the_database_loses_nothing_and_is_reported(
    scene: Scene,
) -> None:
    task_ids = [await scene.seeds.create_task_in(COMPLETED) for _ in range(3)]
    await scene.archive_tasks(task_ids[0])
    scene.archive.away = True
    await scene.due()

    with pytest.raises(ArchiveUnavailable, match="away; 2 ended tasks are due, the oldest for"):
        await scene.archiver.tick()
    await scene.archiver.tick()  # the archiver does not retry at once

    assert (await scene.store.run(read_archive_state(scene.keys))).due == 2
    assert [await scene.is_in_store(task_id) for task_id in task_ids] == [False, True, True]
    assert (await scene.kept.read(ANN, task_ids[2])).task.id == task_ids[2]
    for asking in (scene.page(), scene.kept.read(ANN, task_ids[0])):
        with pytest.raises(ArchiveUnavailable):  # instead of an incomplete list or "not found"
            await asking

    scene.archive.away = False
    await scene.new_archiver().tick()  # the same archiver would still wait

    assert await scene.store.redis.exists(scene.keys.archiver), "another one has it"
    assert [await scene.is_in_store(task_id) for task_id in task_ids] == [False, True, True]
    scene.clock.advance(archiver_module.FIRST_RETRY_DELAY)
    await scene.archiver.tick()
    assert [await scene.is_in_store(task_id) for task_id in task_ids] == [False] * 3
    assert ids((await scene.page()).tasks) == list(reversed(task_ids))


async def test_a_task_that_the_database_refuses_holds_up_no_other(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    task_ids = [await scene.seeds.create_task_in(COMPLETED) for _ in range(4)]
    scene.archive.dislikes = {task_ids[0], task_ids[1]}

    await scene.archive_tasks(*task_ids)

    assert [await scene.is_in_store(task_id) for task_id in task_ids] == [True, True, False, False]
    assert ids(await scene.pages(page_size=1)) == list(reversed(task_ids))
    assert (await scene.store.run(read_archive_state(scene.keys))).refused == 2
    assert f"task {task_ids[0]} was not archived and stays in the store: the archive refuses it" in caplog.text
    scene.archive.dislikes = set()
    await scene.store.redis.delete(scene.keys.archiver)
    await scene.new_archiver().tick()
    assert (await scene.store.run(read_archive_state(scene.keys))).waiting == 0


async def test_a_task_that_cannot_be_read_holds_up_no_other(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    damaged_id, *other_ids = [await scene.seeds.create_task_in(COMPLETED) for _ in range(3)]
    log = scene.keys.task(damaged_id).log
    content = await scene.store.redis.getdel(log)

    await scene.archive_tasks(damaged_id, *other_ids)

    assert [await scene.is_in_store(task_id) for task_id in (damaged_id, *other_ids)] == [True, False, False]
    assert (await scene.store.run(read_archive_state(scene.keys))).refused == 1
    assert f"task {damaged_id} was not archived and stays in the store: the store cannot read it" in caplog.text
    await scene.store.redis.set(log, content)
    await scene.store.redis.delete(scene.keys.archiver)
    await scene.new_archiver().tick()
    assert (await scene.kept.read(ANN, damaged_id)).archived


async def test_tasks_that_the_database_refuses_one_and_all_hold_up_no_later_one(scene: Scene) -> None:
    scene.archiver = scene.new_archiver(batch_size=2)
    task_ids = [await scene.seeds.create_task_in(COMPLETED) for _ in range(5)]
    scene.archive.dislikes = set(task_ids[:4])

    await scene.archive_tasks(*task_ids)

    assert [await scene.is_in_store(task_id) for task_id in task_ids] == [True, True, True, True, False]
    assert (await scene.store.run(read_archive_state(scene.keys))).refused == 4


async def test_an_outage_in_the_middle_refuses_no_task(scene: Scene) -> None:
    task_ids = [await scene.seeds.create_task_in(COMPLETED) for _ in range(4)]
    scene.archive.dislikes = {task_ids[1]}

    async def goes() -> None:
        scene.archive.away = True

    scene.archive.then = goes
    await scene.due(*task_ids)

    with pytest.raises(ArchiveUnavailable):
        await scene.archiver.tick()

    assert (await scene.store.run(read_archive_state(scene.keys))).refused == 0
    assert [await scene.is_in_store(task_id) for task_id in task_ids] == [True] * 4


async def test_an_outage_that_ends_before_the_check_refuses_no_task(scene: Scene) -> None:
    task_ids = [await scene.seeds.create_task_in(COMPLETED) for _ in range(3)]
    scene.archive.away = scene.archive.returns_before_check = True

    await scene.archive_tasks(*task_ids)

    assert (await scene.store.run(read_archive_state(scene.keys))).refused == 0
    assert [await scene.is_in_store(task_id) for task_id in task_ids] == [False] * 3


async def test_many_watchers_archive_a_backlog_once(scene: Scene) -> None:
    task_ids = [await scene.seeds.create_task_in(COMPLETED) for _ in range(23)]
    await scene.due()

    await asyncio.gather(*(scene.new_archiver(batch_size=5).tick() for _ in range(4)))

    assert ids(await scene.pages(page_size=10)) == list(reversed(task_ids))
    assert await scene.store.redis.hget(scene.keys.metrics, "archived agent tasks") == b"23"


async def test_concurrent_archivers_of_the_same_tasks_do_no_harm(scene: Scene) -> None:
    """One of the archivers was frozen and has lost its lease."""
    task_ids = [await scene.seeds.create_task_in(COMPLETED) for _ in range(5)]
    other = scene.new_archiver()

    async def the_other_does_it() -> None:
        scene.archive.then = None
        await scene.store.redis.delete(scene.keys.archiver)
        await other.tick()

    scene.archive.then = the_other_does_it

    await scene.archive_tasks()

    assert ids(await scene.pages(page_size=2)) == list(reversed(task_ids))
    assert await scene.store.redis.hget(scene.keys.metrics, "archived agent tasks") == b"5"


async def test_what_ended_before_there_was_an_archive_goes_there_too(scene: Scene) -> None:
    await scene.store.redis.hset(scene.keys.installation, "archive", "")
    older_id = await scene.seeds.create_task_in(COMPLETED)
    assert await scene.store.redis.ttl(scene.keys.task(older_id).record) > 0
    await scene.store.redis.hset(scene.keys.installation, "archive", "1")

    await scene.archiver.tick()

    assert await scene.store.redis.ttl(scene.keys.task(older_id).record) == -1
    await scene.archive_tasks()
    assert (await scene.kept.read(ANN, older_id)).archived


async def test_the_archive_forgets_what_is_too_old_for_it(scene: Scene) -> None:
    task_ids = [await scene.seeds.create_task_in(COMPLETED) for _ in range(3)]
    await scene.archive_tasks()
    seconds, _ = await scene.store.redis.time()
    old = (await scene.kept.read(ANN, task_ids[0])).task
    old.status.timestamp.FromSeconds(seconds - 7200)
    await scene.archive.put([Archived(ANN, old, 3)])
    await scene.store.redis.delete(scene.keys.archiver)
    archiver = scene.new_archiver(retention=7100)
    scene.clock.advance_wall_clock(seconds - 3600 - scene.clock.time())

    await archiver.tick()
    assert ids((await scene.page()).tasks) == [task_ids[2], task_ids[1], task_ids[0]], "the store's clock is fast"
    scene.clock.advance_wall_clock(3600)
    scene.clock.advance(archiver_module.DELETION_INTERVAL)
    await archiver.tick()

    assert ids((await scene.page()).tasks) == [task_ids[2], task_ids[1]]
    with pytest.raises(TaskNotFoundError):
        await scene.kept.read(ANN, task_ids[0])
