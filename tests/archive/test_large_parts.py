"""Archiving of tasks with parts in an object store. Either the copy is complete, or the task stays in the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from a2a.types import Part

from a2a_celery.archive import Archive, Archived, open_archive
from a2a_celery.errors import ArchiveUnavailable
from a2a_celery.store import Keys
from a2a_celery.store.admin.archiving import read_archive_state
from a2a_celery.store.admin.schema import SCHEMA
from a2a_celery.store.tasks.commands import list_tasks, read_task, request_cancel
from a2a_celery.watcher.archiver import Archiver
from tests.archive.conftest import sqlite
from tests.support.store.blob_setup import BlobSetup, create_task_with_parts, remove_due_blobs
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds

LARGE = 5000


@pytest.fixture
async def blob_setup(blob_setup: BlobSetup, keys: Keys) -> BlobSetup:
    """Store with an object store for large parts, which archives terminal tasks."""
    await blob_setup.store.redis.hset(keys.installation, mapping={"schema": SCHEMA, "archive": "1"})
    return blob_setup


@pytest.fixture
async def archive(tmp_path: Path) -> AsyncIterator[Archive]:
    archive = open_archive(sqlite(tmp_path))
    yield archive
    await archive.aclose()


async def due(blob_setup: BlobSetup, keys: Keys, texts: str) -> list[str]:
    """Create a canceled task with a large part for each character of `texts`. The tasks are due for archiving in this
    order."""
    refs = []
    for place, text in enumerate(texts):
        task_id = await create_task_with_parts(Seeds(blob_setup.store, keys), [Part(text=text * LARGE)])
        await blob_setup.store.run(request_cancel(keys, ANN, task_id, CONTEXT))
        await blob_setup.store.redis.zadd(keys.archive, {task_id: place + 1})
        refs.append(task_id)
    return refs


class CountingArchive:
    """Archive that records the number of tasks in each call to `put`."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self.put_at_once: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._archive, name)

    async def put(self, tasks: Sequence[Archived]) -> None:
        self.put_at_once.append(len(tasks))
        await self._archive.put(tasks)


async def test_large_parts_are_in_the_copy_and_not_all_in_memory_at_once(
    blob_setup: BlobSetup, keys: Keys, archive: Archive
) -> None:
    tasks = await due(blob_setup, keys, "abcde")
    counting_archive = CountingArchive(archive)

    archiver = Archiver(blob_setup.store, keys, counting_archive, None, portion_bytes=3 * LARGE)  # type: ignore[arg-type]
    await archiver.tick()

    assert counting_archive.put_at_once == [2, 2, 1]
    for task_id, text in zip(tasks, "abcde", strict=True):
        copy = await archive.read(ANN, task_id)
        assert copy is not None
        assert copy.task.history[0].parts[0].text == text * LARGE
        assert await blob_setup.store.run(read_task(keys, ANN, task_id)) is None
    await remove_due_blobs(blob_setup, keys)
    assert [blob_setup.blobs_of(task_id) for task_id in tasks] == [[]] * 5


async def test_during_an_outage_of_the_object_store_the_task_and_its_blobs_stay(
    blob_setup: BlobSetup, keys: Keys, archive: Archive
) -> None:
    [task_id] = await due(blob_setup, keys, "a")
    blob_setup.object_store.is_down = True

    await Archiver(blob_setup.store, keys, archive, None).tick()

    assert (await blob_setup.store.run(read_archive_state(keys))).refused == 1
    page = await blob_setup.store.run(
        list_tasks(keys, ANN, retention=RETENTION, page_size=5, history_length=0, archived=True)
    )
    assert ([task.id for task in page.tasks], page.border_us) == ([task_id], None)
    blob_setup.object_store.is_down = False
    await remove_due_blobs(blob_setup, keys)
    await blob_setup.store.redis.delete(keys.archiver)
    await Archiver(blob_setup.store, keys, archive, None).tick()
    copy = await archive.read(ANN, task_id)
    assert copy is not None
    assert copy.task.history[0].parts[0].text == "a" * LARGE


async def test_without_tasks_to_copy_the_database_is_not_used(
    blob_setup: BlobSetup, keys: Keys, tmp_path: Path
) -> None:
    await due(blob_setup, keys, "a")
    blob_setup.object_store.is_down = True
    missing_archive = open_archive(f"sqlite+aiosqlite:///{tmp_path / 'no folder' / 'archive.db'}")

    await Archiver(blob_setup.store, keys, missing_archive, None).tick()

    assert (await blob_setup.store.run(read_archive_state(keys))).refused == 1
    blob_setup.object_store.is_down = False
    await blob_setup.store.redis.delete(keys.archiver)
    with pytest.raises(ArchiveUnavailable):
        await Archiver(blob_setup.store, keys, missing_archive, None).tick()
    await missing_archive.aclose()
