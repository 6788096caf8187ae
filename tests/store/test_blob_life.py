"""Lifecycle of blobs. The watcher removes blobs of expired tasks, even if the process that wrote the blobs was
killed."""

from __future__ import annotations

import pytest
from a2a.types import Part

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.errors import BlobsUnavailable
from a2a_celery.features.dead_letters.dead_letter import DeadLetter, read_dead_letter, requeue_task
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.blobs.blob_store import register_blobs
from a2a_celery.store.blobs.cleanup import acquire_orphaned_blobs, blobs_in_use
from a2a_celery.store.blobs.references import BlobMissing
from a2a_celery.store.tasks.commands import create_task
from a2a_celery.watcher.archiver import REMOVAL_BATCH, BlobRemover
from tests.support.store.blob_setup import BlobSetup, create_task_with_parts, parts_request, remove_due_blobs
from tests.support.store.replies import begins
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, chunk, status
from tests.support.waiting import eventually_async

LARGE = "x" * 5000


async def test_a_requeued_dead_letter_has_copies_of_its_blobs(
    blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    task_id = await create_task_with_parts(blob_seeds, [Part(text=LARGE)])
    claim = await blob_seeds.claim_run(task_id)
    assert (await blob_seeds.recover_run(claim.ref)).outcome == "failed"
    operators = SyncStore(redis_server.store_url, blob_setup.blobs)

    dead_letter = operators.run(read_dead_letter(keys, task_id))
    assert isinstance(dead_letter, DeadLetter)
    assert operators.run(requeue_task(keys, dead_letter, "new", retention=RETENTION, options=b"")) == "requeued"
    operators.close()
    await blob_setup.store.redis.delete(*[key async for key in blob_setup.store.redis.scan_iter(f"*{{{task_id}}}*")])
    await remove_due_blobs(blob_setup, keys)

    assert blob_setup.blobs_of(task_id) == []
    assert (await blob_seeds.claim_run("new")).turn.request.message.parts[0].text == LARGE
    assert (await blob_seeds.task("new")).history[0].parts[0].text == LARGE


async def test_blobs_are_removed_after_their_task_expired(blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys) -> None:
    live_id = await create_task_with_parts(blob_seeds, [Part(text=LARGE)])
    ended_id = await create_task_with_parts(blob_seeds, [Part(text=LARGE)])
    await blob_seeds.settle_run(await blob_seeds.claim_run(ended_id), chunk(LARGE), status(COMPLETED))

    await remove_due_blobs(blob_setup, keys)
    assert (len(blob_setup.blobs_of(live_id)), len(blob_setup.blobs_of(ended_id))) == (1, 1)
    next_check = await blob_setup.store.redis.zscore(keys.blobs, ended_id)
    seconds, _ = await blob_setup.store.redis.time()
    assert RETENTION - 60 < next_check / 1e6 - seconds < RETENTION + 60  # when the task's keys expire

    await blob_setup.store.redis.delete(*[key async for key in blob_setup.store.redis.scan_iter(f"*{{{ended_id}}}*")])
    await remove_due_blobs(blob_setup, keys)

    assert (len(blob_setup.blobs_of(live_id)), blob_setup.blobs_of(ended_id)) == (1, [])
    assert await blob_setup.store.run(blobs_in_use(keys)) == 1


async def test_blobs_of_a_killed_writer_are_removed(blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys) -> None:
    operation = create_task(
        keys, ANN, "orphan", CONTEXT, parts_request([Part(text=LARGE)], "orphan"), caller=b"{}", retention=RETENTION
    )
    await blob_setup.put_blobs(operation)  # the writer is killed here
    await BlobRemover(blob_setup.store, keys, blob_setup.blobs).tick()
    assert len(blob_setup.blobs_of("orphan")) == 1  # the process may still write the task

    await remove_due_blobs(blob_setup, keys)

    assert blob_setup.blobs_of("orphan") == []
    assert await blob_setup.store.run(blobs_in_use(keys)) == 0


async def test_many_live_tasks_do_not_delay_the_removal_of_blobs(
    blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys
) -> None:
    live_ids = [await blob_seeds.create_task() for _ in range(3 * REMOVAL_BATCH)]
    (blob_setup.folder / "task-gone").mkdir(parents=True)
    (blob_setup.folder / "task-gone" / "blob").write_bytes(b"x")
    await blob_setup.store.redis.zadd(keys.blobs, {**dict.fromkeys(live_ids, 1), "gone": 2})

    await BlobRemover(blob_setup.store, keys, blob_setup.blobs).tick()

    assert blob_setup.blobs_of("gone") == []
    assert await blob_setup.store.run(blobs_in_use(keys)) == len(live_ids)


async def test_a_task_is_not_created_with_blobs_that_may_have_been_removed(
    blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys
) -> None:
    operation = create_task(
        keys, ANN, "late", CONTEXT, parts_request([Part(text=LARGE)], "late"), caller=b"{}", retention=RETENTION
    )
    call = await blob_setup.put_blobs(operation)  # the process is frozen here for a long time
    await remove_due_blobs(blob_setup, keys)

    with pytest.raises(BlobMissing, match="removed before"):
        await blob_setup.store.run(call)

    assert await blob_setup.store.redis.exists(keys.task("late").record) == 0
    await blob_setup.store.redis.zadd(keys.orphaned_blobs, {"late": 1})  # the watcher is removing its folder
    with pytest.raises(BlobsUnavailable, match="being removed"):
        await blob_setup.store.run(operation)
    await remove_due_blobs(blob_setup, keys)
    assert begins(await blob_setup.store.run(operation))
    assert (await blob_seeds.task("late")).history[0].parts[0].text == LARGE


async def test_a_folder_that_can_not_be_removed_is_tried_again(
    blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys
) -> None:
    await blob_setup.store.run(register_blobs(keys, "gone"))
    (blob_setup.folder / "task-gone").mkdir(parents=True)
    (blob_setup.folder / "task-gone" / "blob").write_bytes(b"x")
    blob_setup.object_store.is_down = True
    await remove_due_blobs(blob_setup, keys)
    assert len(blob_setup.blobs_of("gone")) == 1
    assert await blob_setup.store.run(acquire_orphaned_blobs(keys, limit=10)) == []  # the retry is not due yet
    blob_setup.object_store.is_down = False

    await remove_due_blobs(blob_setup, keys)

    assert blob_setup.blobs_of("gone") == []


async def test_an_ended_task_and_its_blobs_expire(blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys) -> None:
    task_id = await blob_seeds.create_task(retention=1)
    await blob_seeds.settle_run(await blob_seeds.claim_run(task_id), chunk(LARGE), status(COMPLETED))
    await blob_setup.store.redis.zadd(keys.blobs, {task_id: 1})
    remover = BlobRemover(blob_setup.store, keys, blob_setup.blobs)
    await remover.tick()
    assert len(blob_setup.blobs_of(task_id)) == 1

    async def are_removed() -> bool:
        await remover.tick()
        return not blob_setup.blobs_of(task_id)

    await eventually_async(are_removed)
    assert await blob_setup.store.redis.exists(keys.task(task_id).record) == 0
