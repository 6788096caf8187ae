"""Packing of small terminal tasks: memory use and unchanged contents."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from a2a.types import Part, TaskArtifactUpdateEvent

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.lifecycle import EventId, fold
from a2a_celery.lifecycle.execution import Activity, Transition
from a2a_celery.lifecycle.execution import ExecutionState as S
from a2a_celery.lifecycle.outcomes import agent_message
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys, SyncStore
from a2a_celery.store.log.pages import read_log
from a2a_celery.store.runs.release import read_activities
from a2a_celery.store.tasks.commands import (
    continue_task,
    create_task,
    list_tasks,
    read_final_task,
    read_task,
)
from a2a_celery.store.tasks.replies import FinalTask
from tests.support.store.leaks import leaks
from tests.support.store.replies import begins
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, chunk, request, status

ECHO_BYTES = 1400
"""Maximum memory of a finished echo in Redis in bytes, including its entries in the indexes."""

CHUNK_BYTES = 70
"""Maximum memory of a chunk with a short text in the log of a finished task, in bytes."""

RUNNER = "worker-host.12345.0a1b2c3d"


def activities(runner: str = RUNNER) -> list[Activity]:
    """Return the activities of a run without calls."""
    transitions = (Transition(1, S.IDLE, S.INITIALIZING, 10**15), Transition(2, S.INITIALIZING, S.COMPLETED, 10**15))
    return [Activity(1, 1, runner, transition) for transition in transitions]


async def is_packed(seeds: Seeds, task_id: str) -> bool:
    return bool(await seeds.store.redis.type(seeds.keys.task(task_id).log) == b"string")


async def test_memory_of_a_finished_echo(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    tasks = 300
    for _ in range(tasks):
        claim = await seeds.claim_run(context_id=str(uuid4()))
        answer = chunk("hello", str(uuid4()), append=False)
        answer.task_id, answer.context_id = claim.ref.task_id, claim.task.context_id
        end = status(COMPLETED)
        end.task_id, end.context_id = answer.task_id, answer.context_id
        await seeds.settle_run(claim, activities()[0], answer, activities()[1], end)

    byte_count = 0
    async for key in store.redis.scan_iter():
        byte_count += await store.redis.memory_usage(key, samples=0) or 0

    assert byte_count / tasks <= ECHO_BYTES


@pytest.mark.parametrize("task_id", ["plain", "a:b", "with space", "100%", "{brace}", "-", "ünï", "t.1", CONTEXT])
async def test_a_packed_task_is_read_as_before(store: AsyncStore, keys: Keys, seeds: Seeds, task_id: str) -> None:
    claim = await seeds.claim_run(await seeds.create_task(task_id=task_id))
    await seeds.settle_run(claim, status(INPUT_REQUIRED, f"Which {task_id}?", activity=1))
    entries_before = (await store.run(read_log(keys, task_id, 0))).entries
    message_request = request("next", task_id, CONTEXT)
    await store.run(continue_task(keys, ANN, task_id, message_request, "", caller=b"{}", nonce="1"))
    claim = await seeds.claim_run(task_id, run=2)
    await seeds.append_events(
        claim, *activities()[:1], chunk("a", task_id), chunk(f"b {CONTEXT}", task_id), chunk("c", "other")
    )
    live_entries = (await store.run(read_log(keys, task_id, 0))).entries

    await seeds.settle_run(
        claim, *activities()[1:], status(WORKING, "busy"), status(COMPLETED, "done", end=1), written_count=4
    )

    assert await is_packed(seeds, task_id)
    page = await store.run(read_log(keys, task_id, 0))
    assert page.entries[: len(live_entries)] == live_entries
    assert live_entries[: len(entries_before)] == entries_before
    assert [entry.version for entry in page.entries] == list(range(1, page.version + 1))
    await seeds.require_consistent(task_id)
    stored_activities = await store.run(read_activities(keys, task_id))
    assert stored_activities is not None
    assert list(stored_activities.activities) == activities()
    assert await leaks(store, keys) == []


@pytest.mark.parametrize("runner", [RUNNER, "", 'a "quoted" host', "back\\slash", "ünï", "INITIALIZING"])
@pytest.mark.parametrize("activity_count", [0, 1, 2])
async def test_activities_of_a_packed_task_name_their_runner(
    store: AsyncStore, keys: Keys, seeds: Seeds, runner: str, activity_count: int
) -> None:
    claim = await seeds.claim_run()
    live_entries = (await store.run(read_log(keys, claim.ref.task_id, 0))).entries

    await seeds.settle_run(claim, chunk(runner), *activities(runner)[:activity_count], status(COMPLETED, runner))

    assert await is_packed(seeds, claim.ref.task_id)
    assert (await store.run(read_log(keys, claim.ref.task_id, 0))).entries[: len(live_entries)] == live_entries
    stored_activities = await store.run(read_activities(keys, claim.ref.task_id))
    assert stored_activities is not None
    assert list(stored_activities.activities) == activities(runner)[:activity_count]
    await seeds.require_consistent(claim.ref.task_id)


def every_byte() -> TaskArtifactUpdateEvent:
    """Return an artifact event that contains each byte value, so that no value can serve as a marker."""
    event = chunk("")
    event.artifact.parts.append(Part(raw=bytes(range(256))))
    return event


@pytest.mark.parametrize("length", [None, 0, 1, 2, 100])
@pytest.mark.parametrize("artifacts", [True, False])
@pytest.mark.parametrize(
    "content", [chunk("x"), chunk("x" * 20_000), every_byte()], ids=["short", "long", "every byte"]
)
@pytest.mark.parametrize("text", ["two", "2" * 3000], ids=["short status", "long status"])
async def test_parts_of_a_packed_task(
    store: AsyncStore,
    keys: Keys,
    seeds: Seeds,
    length: int | None,
    artifacts: bool,
    content: TaskArtifactUpdateEvent,
    text: str,
) -> None:
    claim = await seeds.claim_run()
    task_id = claim.ref.task_id
    await seeds.settle_run(claim, status(WORKING, "one", a=1), content, status(FAILED, text, b=2))
    assert await is_packed(seeds, task_id)
    await seeds.require_consistent(task_id)
    page = await store.run(read_log(keys, task_id, 0))
    expected = fold(page.entries)
    if length is not None:
        del expected.history[: max(0, len(expected.history) - length)]
    if not artifacts:
        expected.ClearField("artifacts")

    options: dict[str, Any] = {"history_length": length, "artifacts": artifacts}
    answer = await store.run(read_task(keys, ANN, task_id, **options))
    task_page = await store.run(list_tasks(keys, ANN, retention=RETENTION, page_size=9, **options))

    assert answer == (expected, page.entries[-1].id)
    assert task_page.tasks == [expected]


async def test_pages_of_a_packed_log(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    task_id = claim.ref.task_id
    await seeds.settle_run(claim, chunk("x" * 100), chunk("y"), status(COMPLETED))
    entries = (await store.run(read_log(keys, task_id, 0))).entries

    for version in range(len(entries) + 1):
        position = entries[version - 1].id if version else 0
        page = await store.run(read_log(keys, task_id, position))
        assert (page.entries, page.restored) == (entries[version:], False)
        limited = await store.run(read_log(keys, task_id, position, limit=2))
        assert limited.entries == entries[version : version + 2]
        small_page = await store.run(read_log(keys, task_id, position, max_bytes=1))
        assert small_page.entries == entries[version : version + 1]
    assert (await store.run(read_log(keys, task_id, EventId(2, 7)))).restored


async def test_a_repeated_call_finds_the_packed_task(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    message_request = request(task_id="t", context_id=CONTEXT)
    create = create_task(keys, ANN, "t", CONTEXT, message_request, caller=b"{}", retention=RETENTION)
    first = await store.run(create)
    assert begins(first)
    claim = await seeds.claim_run("t")
    result = await seeds.settle_run(claim, status(COMPLETED))
    data_before = await seeds.all_values()

    second_result = await store.run(create)

    assert begins(second_result)
    assert second_result.task == first.task
    assert await seeds.settle_run(claim, status(COMPLETED)) == result
    assert await seeds.all_values() == data_before


async def test_the_only_answer_of_a_packed_task(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run(working=False)
    answer = agent_message("hi", claim.ref.task_id, CONTEXT)

    await seeds.settle_run(claim, answer)

    assert await is_packed(seeds, claim.ref.task_id)
    final_task = await store.run(read_final_task(keys, ANN, claim.ref.task_id))
    assert isinstance(final_task, FinalTask)
    assert final_task.answer == answer


async def end_with(seeds: Seeds, chunks: Sequence[TaskArtifactUpdateEvent]) -> str:
    """Create a canceled task with the given artifact events, and return its id."""
    claim = await seeds.claim_run(context_id=str(uuid4()))
    for start in range(0, len(chunks), 100):
        await seeds.append_events(claim, *chunks[start : start + 100], written_count=start)
    await seeds.settle_run(claim, status(CANCELED), written_count=len(chunks))
    return claim.ref.task_id


async def test_a_long_stream_is_packed(
    store: AsyncStore, keys: Keys, seeds: Seeds, redis_server: EmbeddedRedis
) -> None:
    task_ids = [await end_with(seeds, [chunk(f"{n} ") for n in range(600)]) for _ in range(3)]

    expected = [fold(await seeds.log(task_id)) for task_id in task_ids]
    assert [await is_packed(seeds, task_id) for task_id in task_ids] == [True] * 3
    text = "".join(f"{n} " for n in range(600))
    assert [[part.text for part in task.artifacts[0].parts] for task in expected] == [[text]] * 3
    page = await store.run(list_tasks(keys, ANN, retention=RETENTION, page_size=9, artifacts=True))
    assert page.tasks == expected[::-1]
    with closing(SyncStore(redis_server.store_url)) as sync_store:
        for task_id in task_ids:
            assert sync_store.run(read_task(keys, ANN, task_id)) == await store.run(read_task(keys, ANN, task_id))


async def test_memory_of_a_packed_chunk(store: AsyncStore, seeds: Seeds) -> None:
    log = seeds.keys.task(await end_with(seeds, [chunk("token ") for _ in range(500)])).log

    assert await store.redis.memory_usage(log) / 500 <= CHUNK_BYTES


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk("") for n in range(1000)],
        [chunk("x" * 140_000)],
        [chunk("x" * 340) for _ in range(350)],
    ],
    ids=["entries", "bytes of the task", "bytes of the log"],
)
async def test_a_task_that_is_not_packed(
    store: AsyncStore, keys: Keys, seeds: Seeds, chunks: list[TaskArtifactUpdateEvent]
) -> None:
    task_id = await end_with(seeds, chunks)

    assert not await is_packed(seeds, task_id)
    await seeds.require_consistent(task_id)
