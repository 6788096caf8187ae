"""Reads of tasks whose log is too long for one command. The store client reads the log in pages and returns the
complete task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from a2a.types import Artifact, Task

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.errors import StoreUnavailable
from a2a_celery.lifecycle import fold
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys, SyncStore
from a2a_celery.store.log.long_tasks import PAGE, SLICE
from a2a_celery.store.log.pages import read_log
from a2a_celery.store.operation import Operation
from a2a_celery.store.runs.commands import Claim
from a2a_celery.store.tasks.commands import continue_task, delete_task, list_tasks, read_task
from tests.support.processes.loops import counted_turns
from tests.support.store.blob_setup import THRESHOLD
from tests.support.store.replies import waits
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, chunk, request, status

LIMIT = 1000
"""Maximum number of log entries that one script reads."""

CHUNKS = 1300
LONG_TEXT = "".join(f"{n} " for n in range(CHUNKS))


class RecordingStore(AsyncStore):
    """Store client that counts the elements of each reply, and calls `between` after each page of a log.

    Attributes:
        most: Number of elements in the largest reply so far.
        pages: Number of log pages read so far.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.most = self.pages = 0
        self.between: Callable[[], Awaitable[object]] | None = None

    async def _ask(self, operation: Operation[Any]) -> Any:
        reply = await super()._ask(operation)
        self.most = max(self.most, elements(reply))
        return reply

    async def run_raw(self, operation: Operation[Any]) -> Any:
        page = await super().run_raw(operation)
        self.pages += 1
        if self.between is not None:
            between, self.between = self.between, None
            await between()
        return page


def elements(reply: object) -> int:
    return sum(map(elements, reply)) if isinstance(reply, list) else 1


@pytest.fixture
async def recording(any_server: EmbeddedRedis) -> AsyncIterator[RecordingStore]:
    store = RecordingStore(any_server.store_url)
    yield store
    await store.aclose()


@pytest.fixture
def long_seeds(recording: RecordingStore, keys: Keys) -> Seeds:
    return Seeds(recording, keys)


async def write_chunks(seeds: Seeds, claim: Claim, count: int = CHUNKS) -> int:
    """Write `count` chunks of an artifact among other events. Return the number of events."""
    events = [status(WORKING, "reading"), chunk("first", "b"), status(WORKING, "writing", page=1)]
    events += [chunk(f"{n} ") for n in range(count)] + [chunk("second", "b", append=False), chunk("third", "b")]
    for start in range(0, len(events), 500):
        await seeds.append_events(claim, *events[start : start + 500], written_count=start)
    return len(events)


def text_of(artifact: Artifact) -> str:
    """Return the only part of an artifact."""
    [part] = artifact.parts
    return str(part.text)


async def folded_task(seeds: Seeds, task_id: str, until: int | None = None) -> Task:
    """Return the task that results from the log up to a version."""
    log = [
        entry
        for version in range(0, 4 * CHUNKS, PAGE)
        for entry in (await seeds.store.run(read_log(seeds.keys, task_id, version, PAGE))).entries
    ]
    return fold(log[:until])


async def test_every_reader_gets_the_complete_task_in_small_replies(
    recording: RecordingStore, keys: Keys, long_seeds: Seeds
) -> None:
    claim = await long_seeds.claim_run()
    events = await write_chunks(long_seeds, claim)
    task_id = claim.ref.task_id
    await long_seeds.create_task(task_id="short")
    expected = await folded_task(long_seeds, task_id)
    further = request("go on", task_id, CONTEXT)

    stored_task = await recording.run(read_task(keys, ANN, task_id))
    without_artifacts = await recording.run(read_task(keys, ANN, task_id, artifacts=False, history_length=1))
    waiting = await recording.run(continue_task(keys, ANN, task_id, further, "", caller=b"{}", nonce="n"))
    page = await recording.run(list_tasks(keys, ANN, retention=RETENTION, page_size=10, artifacts=True))

    [last] = (await recording.run(read_log(keys, task_id, events + 1))).entries
    assert stored_task == (expected, last.id)
    assert [text_of(artifact) for artifact in expected.artifacts] == ["secondthird", LONG_TEXT]
    assert without_artifacts is not None
    assert (len(without_artifacts[0].artifacts), len(without_artifacts[0].history)) == (0, 1)
    assert waits(waiting)
    assert (waiting.task, waiting.is_resolved) == (expected, True)
    assert {task.id: task for task in page.tasks} == {task_id: expected, "short": await long_seeds.task("short")}
    assert recording.most <= LIMIT + 20

    await long_seeds.settle_run(claim, status(INPUT_REQUIRED), written_count=events)
    next_claim = await long_seeds.claim_run(task_id, run=2)
    assert next_claim.task == await folded_task(long_seeds, task_id)
    assert recording.most <= LIMIT + 20


async def test_a_history_that_is_too_long_is_cut_as_a_short_one(
    recording: RecordingStore, keys: Keys, long_seeds: Seeds
) -> None:
    claim = await long_seeds.claim_run()
    updates = [status(WORKING, str(n)) for n in range(CHUNKS)]
    for start in range(0, len(updates), 500):
        await long_seeds.append_events(claim, *updates[start : start + 500], written_count=start)

    for length, pages in ((LIMIT // 2, False), (LIMIT + 1, True)):
        recording.pages = 0
        stored_task = await recording.run(read_task(keys, ANN, claim.ref.task_id, history_length=length))
        assert stored_task is not None
        texts = [message.parts[0].text for message in stored_task[0].history]
        assert texts == [str(n) for n in range(CHUNKS - 1 - length, CHUNKS - 1)]
        assert (recording.pages > 0) == pages


async def test_events_written_between_two_pages_are_left_to_the_next_read(
    recording: RecordingStore, keys: Keys, long_seeds: Seeds
) -> None:
    claim = await long_seeds.claim_run()
    events = await write_chunks(long_seeds, claim)

    async def replace_task() -> None:
        await long_seeds.append_events(claim, chunk("all new", append=False), written_count=events)
        await long_seeds.settle_run(claim, status(COMPLETED), written_count=events + 1)

    recording.between = replace_task
    stored_task = await recording.run(read_task(keys, ANN, claim.ref.task_id))

    log = await long_seeds.log(claim.ref.task_id)
    assert stored_task == (await folded_task(long_seeds, claim.ref.task_id, events + 2), log[events + 1].id)
    assert [text_of(artifact) for artifact in stored_task[0].artifacts] == ["secondthird", LONG_TEXT]
    [_, artifact] = (await long_seeds.task(claim.ref.task_id)).artifacts
    assert [part.text for part in artifact.parts] == ["all new"]


async def test_a_task_deleted_between_two_pages_is_missing(
    recording: RecordingStore, keys: Keys, long_seeds: Seeds
) -> None:
    claim = await long_seeds.claim_run()
    await write_chunks(long_seeds, claim)
    delete = delete_task(keys, ANN, claim.ref.task_id)

    recording.between = lambda: recording.run(delete)

    assert await recording.run(read_task(keys, ANN, claim.ref.task_id)) is None
    assert recording.pages == 2


async def test_an_incomplete_log_is_reported_as_unavailable(
    recording: RecordingStore, keys: Keys, long_seeds: Seeds
) -> None:
    claim = await long_seeds.claim_run()
    await write_chunks(long_seeds, claim)
    await recording.redis.ltrim(keys.task(claim.ref.task_id).log, 0, 2 * PAGE)

    with pytest.raises(StoreUnavailable, match="log"):
        await recording.run(read_task(keys, ANN, claim.ref.task_id))


async def test_the_event_loop_runs_other_tasks_between_slices(
    recording: RecordingStore, keys: Keys, long_seeds: Seeds
) -> None:
    claim = await long_seeds.claim_run()
    events = await write_chunks(long_seeds, claim)

    async with counted_turns() as count:
        await asyncio.gather(*(recording.run(read_task(keys, ANN, claim.ref.task_id)) for _ in range(3)))

    assert count.turns >= 3 * events // SLICE  # readers take turns: one slice per iteration of the loop


async def test_a_sync_store_reads_a_long_task(any_server: EmbeddedRedis, keys: Keys, long_seeds: Seeds) -> None:
    claim = await long_seeds.claim_run()
    await write_chunks(long_seeds, claim)
    store = SyncStore(any_server.store_url)

    stored_task = await asyncio.to_thread(store.run, read_task(keys, ANN, claim.ref.task_id))

    assert stored_task is not None
    assert stored_task[0] == await folded_task(long_seeds, claim.ref.task_id)
    store.close()


async def test_large_parts_of_a_long_task_come_from_the_object_store(
    blob_seeds: Seeds, seeds: Seeds, keys: Keys
) -> None:
    claim = await blob_seeds.claim_run()
    await write_chunks(blob_seeds, claim)
    big = "x" * 2 * THRESHOLD
    await blob_seeds.append_events(claim, chunk(big), written_count=CHUNKS + 5)

    task = await blob_seeds.store.run(read_task(keys, ANN, claim.ref.task_id))
    task_with_markers = await blob_seeds.store.run(read_task(keys, ANN, claim.ref.task_id, resolve_blobs=False))

    assert task is not None
    assert task_with_markers is not None
    assert [part.text for part in task[0].artifacts[1].parts] == [LONG_TEXT, big]
    assert not task_with_markers[0].artifacts[1].parts[-1].text
