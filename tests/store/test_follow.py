"""Log followers. A follower receives all entries in order despite concurrent writers, a late start and lost
connections."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import reduce
from pathlib import Path

import pytest
from a2a.helpers import get_artifact_text
from a2a.types import Task

from a2a_celery.lifecycle import EventId, LogEntry, fold
from a2a_celery.lifecycle.fold import apply
from a2a_celery.lifecycle.states import COMPLETED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.log.follower import LogFollower, StreamCursor
from a2a_celery.store.log.pages import PAGE, LogPage, read_log
from a2a_celery.store.log.pubsub import PubSubListener, Wakeup
from a2a_celery.store.tasks.commands import read_task
from tests.support.clocks import ManualClock
from tests.support.processes.restarts import mortal_redis
from tests.support.store.seeds import CONTEXT, Seeds, chunk, run_concurrently, status
from tests.support.waiting import eventually_async

START = EventId(0)


@pytest.fixture
def follower(store: AsyncStore, keys: Keys, subscriber: PubSubListener) -> LogFollower:
    return LogFollower(store, keys, subscriber)


async def to_the_end(follower: LogFollower, task_id: str, last_id: EventId = START) -> list[LogEntry]:
    """Return the entries after an event, up to the terminal status."""
    entries: list[LogEntry] = []
    async with follower.listen(task_id) as wakeup:
        await read_pages(follower, task_id, wakeup, entries, last_id)
    return entries


async def read_pages(
    follower: LogFollower, task_id: str, wakeup: Wakeup, entries: list[LogEntry], last_id: EventId = START
) -> None:
    """Append the entries that a reader receives after an event to `entries`."""
    cursor = StreamCursor(task_id, CONTEXT, last_id)
    async with aclosing(follower.events(cursor, wakeup, on_page=lambda page: entries.extend(page.entries))) as pages:
        async for _ in pages:
            pass


async def first_page(follower: LogFollower, task_id: str, last_id: EventId) -> LogPage:
    """Return the first page that a reader receives after an event."""
    pages: list[LogPage] = []
    cursor = StreamCursor(task_id, CONTEXT, last_id)
    async with aclosing(follower.events(cursor, Wakeup(), on_page=pages.append)) as stream:
        await anext(stream)
    return pages[0]


async def write(seeds: Seeds, task_id: str, chunks: int) -> None:
    """Claim a run, append its chunks one by one, and complete the task."""
    claim = await seeds.claim_run(task_id)
    for number in range(chunks):
        await seeds.append_events(claim, chunk(f"{number} "), written_count=number)
    await seeds.settle_run(claim, status(COMPLETED), written_count=chunks)


async def test_readers_get_every_event_in_order_while_others_write(follower: LogFollower, seeds: Seeds) -> None:
    ids = [await seeds.create_task() for _ in range(5)]

    reading = [asyncio.create_task(to_the_end(follower, task_id)) for task_id in ids for _ in range(2)]
    await run_concurrently(*(write(seeds, task_id, 60) for task_id in ids))
    async with asyncio.timeout(30):
        logs = await asyncio.gather(*reading)

    for number, entries in enumerate(logs):
        assert [entry.version for entry in entries] == list(range(1, 64))
        assert fold(entries) == await seeds.task(ids[number // 2])


async def test_a_reader_resumes_after_any_version(follower: LogFollower, seeds: Seeds) -> None:
    task_id = await seeds.create_task()
    await write(seeds, task_id, 10)
    log = await seeds.log(task_id)

    for version in range(len(log)):
        assert await to_the_end(follower, task_id, EventId(version)) == log[version:]


async def test_a_late_reader_gets_pages(follower: LogFollower, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    size = 2 * PAGE + 10
    for version in range(0, size, 100):
        chunks = [chunk(str(n)) for n in range(version, min(version + 100, size))]
        await seeds.append_events(claim, *chunks, written_count=version)

    pages: list[LogPage] = []
    cursor = StreamCursor(claim.ref.task_id, CONTEXT, START)
    async with aclosing(follower.events(cursor, Wakeup(), on_page=pages.append)) as stream:
        async for _ in stream:
            if cursor.after.version == pages[-1].version:
                break
    lengths = [len(page.entries) for page in pages]
    versions = [entry.version for page in pages for entry in page.entries]

    assert lengths == [PAGE, PAGE, 12]
    assert versions == list(range(1, size + 3))


async def test_a_page_has_the_state_of_the_task(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    await seeds.append_events(claim, *(chunk(str(n)) for n in range(5)))

    page = await store.run(read_log(keys, claim.ref.task_id, 2, limit=3))

    assert [entry.version for entry in page.entries] == [3, 4, 5]
    assert (page.version, page.state) == (7, WORKING)
    at_end = await store.run(read_log(keys, claim.ref.task_id, 7))
    assert (at_end.entries, at_end.version) == ([], 7)
    empty_page = await store.run(read_log(keys, "none", 0))
    assert (empty_page.entries, empty_page.version) == ([], 0)


async def test_a_reader_of_a_missing_task_ends(follower: LogFollower) -> None:
    async with asyncio.timeout(10):
        assert await to_the_end(follower, "none") == []


async def test_a_reader_continues_without_gap_or_repeat_after_a_restart_of_redis(tmp_path: Path, keys: Keys) -> None:
    with mortal_redis(tmp_path) as server:
        store, subscriber = AsyncStore(server.store_url), PubSubListener(server.store_url)
        seeds = Seeds(store, keys)
        await subscriber.start()
        claim = await seeds.claim_run()
        await seeds.append_events(claim, chunk("before"))
        reading = asyncio.create_task(to_the_end(LogFollower(store, keys, subscriber), claim.ref.task_id))

        async def listens() -> bool:
            [(_, count)] = await store.redis.pubsub_numsub(keys.task(claim.ref.task_id).notifications)
            return bool(count)

        await eventually_async(listens)
        server.die()
        server.start()
        await seeds.append_events(claim, chunk("after"), written_count=1)
        await seeds.settle_run(claim, status(COMPLETED), written_count=2)

        async with asyncio.timeout(12):  # less than a listener's poll interval
            entries = await reading
        assert [entry.version for entry in entries] == [1, 2, 3, 4, 5]
        assert fold(entries) == await seeds.task(claim.ref.task_id)
        await subscriber.stop()
        await store.aclose()


@pytest.mark.parametrize("count", [0, 1, 3, 8], ids=lambda n: f"{n} events since")
async def test_a_reader_of_lost_entries_starts_over(follower: LogFollower, seeds: Seeds, count: int) -> None:
    """The reader also starts over if the log has grown to the reader's version again, or beyond it."""
    claim, wakeup = await seeds.claim_run(max_attempts=2), Wakeup()
    task_id = claim.ref.task_id
    await seeds.append_events(claim, chunk("kept"))
    backup = await seeds.backup()
    await seeds.append_events(claim, *(chunk(str(n)) for n in range(5)), written_count=1)
    entries: list[LogEntry] = []
    reading = asyncio.create_task(read_pages(follower, task_id, wakeup, entries))
    await eventually_async(lambda: asyncio.sleep(0, len(entries) == 8))

    await seeds.restore(backup)
    if count:
        await seeds.append_events(claim, *(chunk(f"other {n}") for n in range(count)), written_count=1)
    wakeup.notify()
    await eventually_async(lambda: asyncio.sleep(0, len(entries) == 10))
    await seeds.settle_run(claim, chunk("the last"), status(COMPLETED), written_count=1 + count)
    wakeup.notify()
    await eventually_async(lambda: asyncio.sleep(0, len(entries) == 12))
    await reading

    assert isinstance(entries[8].event, Task)
    task, stored_task = reduce(apply, entries[8:], Task()), await seeds.task(task_id)
    texts = [[get_artifact_text(artifact, delimiter="") for artifact in read.artifacts] for read in (task, stored_task)]
    assert texts[0] == texts[1]
    for read in (task, stored_task):
        read.ClearField("artifacts")
    assert task == stored_task
    assert [entry.version for entry in entries[8:]] == [3 + count, 3 + count, 4 + count, 5 + count]


@pytest.mark.parametrize("count", [0, 1, 5, 8], ids=lambda n: f"{n} events since")
async def test_a_reader_that_resumes_after_a_lost_event_starts_over(
    store: AsyncStore, keys: Keys, follower: LogFollower, seeds: Seeds, count: int
) -> None:
    """The reader also starts over if the log has grown to the event's version again, or beyond it."""
    claim = await seeds.claim_run(max_attempts=2)
    task_id = claim.ref.task_id
    await seeds.append_events(claim, chunk("kept"))
    backup = await seeds.backup()
    await seeds.append_events(claim, *(chunk(str(n)) for n in range(5)), written_count=1)
    snapshot = await store.run(read_task(keys, None, task_id))
    assert snapshot is not None
    last_event_id = (await seeds.log(task_id))[-1].id
    await seeds.restore(backup)
    if count:
        await seeds.append_events(claim, *(chunk(f"other {n}") for n in range(count)), written_count=1)

    page = await first_page(follower, task_id, last_event_id)

    assert snapshot[1] == last_event_id == EventId(8, last_event_id.recorded_us)
    assert page.restored
    assert reduce(apply, page.entries, Task()) == await seeds.task(task_id)
    assert [entry.id for entry in page.entries] == [(await seeds.log(task_id))[-1].id] * 2


async def test_a_reader_that_resumes_after_a_stored_event_continues(follower: LogFollower, seeds: Seeds) -> None:
    claim = await seeds.claim_run(max_attempts=2)
    task_id = claim.ref.task_id
    await seeds.append_events(claim, chunk("kept"))
    last_event_id = (await seeds.log(task_id))[-1].id
    backup = await seeds.backup()
    await seeds.append_events(claim, chunk("lost"), written_count=1)
    await seeds.restore(backup)
    await seeds.append_events(claim, chunk("other"), written_count=1)

    for event_id in (last_event_id, EventId(last_event_id.version)):  # clients of older releases send the latter
        page = await first_page(follower, task_id, event_id)
        assert (page.restored, page.entries) == (False, (await seeds.log(task_id))[-1:])


@pytest.mark.parametrize("is_lost", [False, True], ids=["an event", "a loss"])
async def test_without_a_notification_a_reader_reads_the_log_after_15_s(
    follower: LogFollower, seeds: Seeds, is_lost: bool
) -> None:
    clock = ManualClock()
    claim, wakeup = await seeds.claim_run(), Wakeup(clock)
    backup = await seeds.backup()
    await seeds.append_events(claim, chunk("known"))
    entries: list[LogEntry] = []
    reading = asyncio.create_task(read_pages(follower, claim.ref.task_id, wakeup, entries))
    await clock.until_waiting(15)
    known_count = len(entries)

    if is_lost:
        await seeds.restore(backup)
    else:
        await seeds.append_events(claim, chunk("new"), written_count=1)
    clock.advance(14.9)
    await clock.until_waiting(0.1)
    assert len(entries) == known_count
    clock.advance(0.1)
    await clock.until_waiting(15)

    assert isinstance(entries[known_count].event, Task) == is_lost
    reading.cancel()


async def test_a_reader_of_a_task_that_the_store_lost_ends(follower: LogFollower, seeds: Seeds) -> None:
    backup = await seeds.backup()
    task_id, wakeup = await seeds.create_task(), Wakeup()
    entries: list[LogEntry] = []
    reading = asyncio.create_task(read_pages(follower, task_id, wakeup, entries))
    await eventually_async(lambda: asyncio.sleep(0, len(entries) == 1))

    await seeds.restore(backup)
    wakeup.notify()

    async with asyncio.timeout(20):
        await reading
