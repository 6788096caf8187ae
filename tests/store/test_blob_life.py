"""A blob lives as long as its task: no shorter, whatever dies, and not much longer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from a2a.types import Part

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.errors import BlobsUnavailable
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.blobs.blob_store import register_blobs
from a2a_celery.store.blobs.cleanup import acquire_orphaned_blobs, blobs_in_use
from a2a_celery.store.tasks.commands import create_task
from a2a_celery.store.tasks.dead_letters import DeadLetter, read_dead_letter, requeue_task
from a2a_celery.store.tasks.results import Created
from a2a_celery.watcher.blob_remover import BlobRemover
from tests.support.seeds import ANN, CONTEXT, RETENTION, Seeds, chunk, status
from tests.support.shelves import Shelved, created, look_at_all, sent
from tests.support.waiting import eventually_async

LARGE = "x" * 5000


async def test_a_dead_letter_takes_its_parts_along(
    shelved: Shelved, large: Seeds, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    task_id = await created(large, [Part(text=LARGE)])
    claim = await large.claimed(task_id)
    assert (await large.lost(claim.ref)).outcome == "failed"
    operators = SyncStore(redis_server.store_url, shelved.blobs)

    dead_letter = operators.run(read_dead_letter(keys, task_id))
    assert isinstance(dead_letter, DeadLetter)
    assert operators.run(requeue_task(keys, dead_letter, "new", retention=RETENTION, options=b"")) == "requeued"
    operators.close()
    await shelved.store.redis.delete(*[key async for key in shelved.store.redis.scan_iter(f"*{{{task_id}}}*")])
    await look_at_all(shelved, keys)

    assert shelved.blobs_of(task_id) == []
    assert (await large.claimed("new")).request.message.parts[0].text == LARGE
    assert (await large.task("new")).history[0].parts[0].text == LARGE


async def test_blobs_go_when_their_task_has_gone(shelved: Shelved, large: Seeds, keys: Keys) -> None:
    live = await created(large, [Part(text=LARGE)])
    ended = await created(large, [Part(text=LARGE)])
    await large.settled(await large.claimed(ended), chunk(LARGE), status(COMPLETED))

    await look_at_all(shelved, keys)
    assert (len(shelved.blobs_of(live)), len(shelved.blobs_of(ended))) == (1, 1)
    looked_at = await shelved.store.redis.zscore(keys.blobs, ended)
    seconds, _ = await shelved.store.redis.time()
    assert RETENTION - 60 < looked_at / 1e6 - seconds < RETENTION + 60  # when its keys go

    await shelved.store.redis.delete(*[key async for key in shelved.store.redis.scan_iter(f"*{{{ended}}}*")])
    await look_at_all(shelved, keys)

    assert (len(shelved.blobs_of(live)), shelved.blobs_of(ended)) == (1, [])
    assert await shelved.store.run(blobs_in_use(keys)) == 1


async def test_what_a_writer_abandoned_that_was_killed_is_removed(shelved: Shelved, large: Seeds, keys: Keys) -> None:
    operation = create_task(
        keys, ANN, "orphan", CONTEXT, sent([Part(text=LARGE)], "orphan"), caller=b"{}", retention=RETENTION
    )
    await shelved.blobs.put(operation, shelved.store.run)  # and then it is killed
    await BlobRemover(shelved.store, keys, shelved.blobs).tick()
    assert len(shelved.blobs_of("orphan")) == 1  # it may still be on its way

    await look_at_all(shelved, keys)

    assert shelved.blobs_of("orphan") == []
    assert await shelved.store.run(blobs_in_use(keys)) == 0


async def test_a_task_does_not_begin_with_blobs_that_may_be_gone(shelved: Shelved, large: Seeds, keys: Keys) -> None:
    operation = create_task(
        keys, ANN, "late", CONTEXT, sent([Part(text=LARGE)], "late"), caller=b"{}", retention=RETENTION
    )
    packed = await shelved.blobs.put(operation, shelved.store.run)  # its process is stopped here for a long time
    await look_at_all(shelved, keys)

    with pytest.raises(BlobsUnavailable, match="nothing was stored"):
        await shelved.store.run(packed)

    assert await shelved.store.redis.exists(keys.task("late").record) == 0
    await shelved.store.redis.zadd(keys.orphaned_blobs, {"late": 1})  # and its folder is being removed
    with pytest.raises(BlobsUnavailable, match="being removed"):
        await shelved.store.run(operation)
    await look_at_all(shelved, keys)
    with pytest.raises(BlobsUnavailable):
        await shelved.store.run(replace(operation, args=packed.args))
    assert isinstance(await shelved.store.run(operation), Created)
    assert (await large.task("late")).history[0].parts[0].text == LARGE


async def test_a_folder_that_can_not_be_removed_is_tried_again(shelved: Shelved, large: Seeds, keys: Keys) -> None:
    await shelved.store.run(register_blobs(keys, "gone"))
    (shelved.folder / "task-gone").mkdir(parents=True)
    (shelved.folder / "task-gone" / "blob").write_bytes(b"x")
    shelved.shelf.away = True
    await look_at_all(shelved, keys)
    assert len(shelved.blobs_of("gone")) == 1
    assert await shelved.store.run(acquire_orphaned_blobs(keys, limit=10)) == []  # not at once
    shelved.shelf.away = False

    await look_at_all(shelved, keys)

    assert shelved.blobs_of("gone") == []


async def test_an_ended_task_and_its_blobs_expire(shelved: Shelved, large: Seeds, keys: Keys) -> None:
    task_id = await large.created(retention=1)
    await large.settled(await large.claimed(task_id), chunk(LARGE), status(COMPLETED))
    await shelved.store.redis.zadd(keys.blobs, {task_id: 1})
    remover = BlobRemover(shelved.store, keys, shelved.blobs)
    await remover.tick()
    assert len(shelved.blobs_of(task_id)) == 1

    async def gone() -> bool:
        await remover.tick()
        return not shelved.blobs_of(task_id)

    await eventually_async(gone)
    assert await shelved.store.redis.exists(keys.task(task_id).record) == 0
