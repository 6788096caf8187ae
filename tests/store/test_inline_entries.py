"""Log entries inlined in notifications. A reader uses them only if they continue its copy of the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast
from uuid import uuid4

import pytest
from a2a.types import Part

from a2a_celery.lifecycle import EventId, LogEntry
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.log.follower import LogFollower, StreamCursor
from a2a_celery.store.log.pages import LogPage, read_log
from a2a_celery.store.log.pubsub import BUFFER_BYTES, InlineEntries, PubSubListener, Wakeup
from a2a_celery.store.tasks.commands import create_task, delete_task
from tests.store.test_pubsub import is_up
from tests.support.store.blob_setup import THRESHOLD, BlobSetup
from tests.support.store.seeds import ANN, CONTEXT, Seeds, chunk, request, status
from tests.support.waiting import LIMIT

SOON = 10.0
"""Seconds that following a log may take. Less than a listener's poll interval."""


class CountingStore:
    """Store that counts its operations."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self.count = 0

    async def run(self, operation: Any) -> Any:
        self.count += 1
        return await self._store.run(operation)


@asynccontextmanager
async def follow_task(
    store: AsyncStore, keys: Keys, subscriber: PubSubListener, *, final_only: bool = False
) -> AsyncIterator[tuple[str, Wakeup]]:
    """Create a task and yield its id and the `Wakeup` of its creator."""
    await is_up(subscriber, store)
    async with subscriber.listen("it rings everybody when it comes up, and hears behind that"):
        pass
    follower, task_id = LogFollower(store, keys, subscriber), str(uuid4())
    reply_channel = follower.reply_channel(final_only=final_only)
    async with follower.listen(task_id, reply_channel, final_only=final_only) as wakeup:
        message_request = request(task_id=task_id, context_id=CONTEXT)
        await store.run(
            create_task(
                keys, ANN, task_id, CONTEXT, message_request, caller=b"{}", retention=60, reply_channel=reply_channel
            )
        )
        yield task_id, wakeup


async def whole_log(store: AsyncStore, keys: Keys, task_id: str, version: int = 1) -> LogPage:
    """Return a page with all log entries after a version."""
    return await store.run(read_log(keys, task_id, version))


async def read_pages(
    reads: CountingStore,
    keys: Keys,
    subscriber: PubSubListener,
    wakeup: Wakeup,
    task_id: str,
    until: int,
    *,
    version: int = 1,
    new: bool = True,
) -> list[LogPage]:
    """Return the pages after version `version` up to version `until`."""
    pages: list[LogPage] = []
    cursor = StreamCursor(task_id, CONTEXT, EventId(version))
    follower = LogFollower(cast(AsyncStore, reads), keys, subscriber)
    async with (
        asyncio.timeout(SOON),
        aclosing(follower.events(cursor, wakeup, new=new, on_page=pages.append)) as stream,
    ):
        async for _ in stream:
            if pages[-1].version == until:
                return pages
    raise AssertionError(pages)


def entries(pages: list[LogPage]) -> list[LogEntry]:
    return [entry for page in pages for entry in page.entries]


async def test_a_stream_of_inline_entries_reads_no_log(
    store: AsyncStore, keys: Keys, subscriber: PubSubListener, seeds: Seeds
) -> None:
    reads = CountingStore(store)
    async with follow_task(store, keys, subscriber) as (task_id, wakeup):
        reader = asyncio.create_task(read_pages(reads, keys, subscriber, wakeup, task_id, until=6))
        claim = await seeds.claim_run(task_id)
        await seeds.append_events(claim, chunk("a", append=False))
        await seeds.append_events(claim, chunk("ä\n\x00 "), chunk("c"), written_count=1)
        await seeds.settle_run(claim, status(COMPLETED, "done"), written_count=3)

        pages = await reader

    log = await whole_log(store, keys, task_id)
    assert reads.count == 0
    assert entries(pages) == log.entries
    assert pages[-1].state == log.state == COMPLETED


async def test_missed_entries_are_read_from_the_log(
    store: AsyncStore, keys: Keys, subscriber: PubSubListener, seeds: Seeds
) -> None:
    reads = CountingStore(store)
    async with follow_task(store, keys, subscriber) as (task_id, wakeup):
        claim = await seeds.claim_run(task_id)
        await seeds.append_events(claim, chunk("a", append=False))
        await wait_for_wakeup(wakeup, version=2)
        assert wakeup.page(EventId(2))  # no further notification follows
        await seeds.append_events(claim, chunk("b"), written_count=1)

        pages = await read_pages(reads, keys, subscriber, wakeup, task_id, until=4)

    assert reads.count == 1
    assert entries(pages) == (await whole_log(store, keys, task_id)).entries


async def test_partly_known_inline_entries_start_after_the_known_ones(
    store: AsyncStore, keys: Keys, subscriber: PubSubListener, seeds: Seeds
) -> None:
    reads = CountingStore(store)
    async with follow_task(store, keys, subscriber) as (task_id, wakeup):
        claim = await seeds.claim_run(task_id)
        await seeds.append_events(claim, chunk("a", append=False), chunk("b"), chunk("c"))
        await wait_for_wakeup(wakeup, version=4)

        pages = await read_pages(reads, keys, subscriber, wakeup, task_id, until=5, version=3, new=False)

    assert reads.count == 0
    assert entries(pages) == (await whole_log(store, keys, task_id, version=3)).entries


async def test_large_entries_are_read_from_the_log(
    store: AsyncStore, keys: Keys, subscriber: PubSubListener, seeds: Seeds
) -> None:
    reads = CountingStore(store)
    async with follow_task(store, keys, subscriber) as (task_id, wakeup):
        reader = asyncio.create_task(read_pages(reads, keys, subscriber, wakeup, task_id, until=5))
        claim = await seeds.claim_run(task_id)
        await seeds.append_events(claim, chunk("a", append=False))
        await seeds.append_events(claim, chunk("b" * 20_000), written_count=1)
        await seeds.append_events(claim, chunk("c"), written_count=2)

        pages = await reader

    assert reads.count == 1
    assert entries(pages) == (await whole_log(store, keys, task_id)).entries


async def test_a_large_entry_is_read_from_the_log_after_small_inline_ones(
    store: AsyncStore, keys: Keys, subscriber: PubSubListener, seeds: Seeds
) -> None:
    reads = CountingStore(store)
    async with follow_task(store, keys, subscriber) as (task_id, wakeup):
        claim = await seeds.claim_run(task_id)
        await seeds.append_events(claim, chunk("a", append=False))
        await seeds.settle_run(claim, chunk("b" * 20_000), status(COMPLETED), written_count=1)
        await wait_for_wakeup(wakeup, version=4)

        pages = await read_pages(reads, keys, subscriber, wakeup, task_id, until=5, new=False)

    assert reads.count == 1
    assert entries(pages) == (await whole_log(store, keys, task_id)).entries


def test_a_notification_without_entries_clears_the_buffered_ones() -> None:
    wakeup = Wakeup()

    wakeup.receive(b"3\n2 0 \x00\x00\x00\x043 \x12\x00")
    wakeup.notify()

    assert wakeup.page(EventId(2)) is None


async def test_entries_in_the_object_store_are_read_from_the_log(
    blob_setup: BlobSetup, keys: Keys, subscriber: PubSubListener, blob_seeds: Seeds
) -> None:
    store, reads = blob_setup.store, CountingStore(blob_setup.store)
    async with follow_task(store, keys, subscriber) as (task_id, wakeup):
        reader = asyncio.create_task(read_pages(reads, keys, subscriber, wakeup, task_id, until=3))
        claim = await blob_seeds.claim_run(task_id)
        event = chunk("", append=False)
        event.artifact.parts[0].CopyFrom(Part(raw=b"x" * THRESHOLD))
        await blob_seeds.append_events(claim, event)

        pages = await reader

    assert reads.count == 1
    assert entries(pages) == (await whole_log(store, keys, task_id)).entries


@pytest.mark.parametrize(("chunks", "expected"), [(1, True), (13, True), (14, False)])
async def test_a_reader_of_final_states_gets_the_whole_log_of_a_short_turn_inline(
    store: AsyncStore, keys: Keys, subscriber: PubSubListener, seeds: Seeds, chunks: int, *, expected: bool
) -> None:
    async with follow_task(store, keys, subscriber, final_only=True) as (task_id, wakeup):
        claim = await seeds.claim_run(task_id)
        for version in range(chunks):
            await seeds.append_events(claim, chunk("x"), written_count=version)
        await seeds.settle_run(claim, status(COMPLETED), written_count=chunks)
        await wait_for_wakeup(wakeup, version=1)

        page = wakeup.page(EventId(1))

    assert page == (await whole_log(store, keys, task_id) if expected else None)


@pytest.mark.parametrize("final_only", [False, True])
async def test_a_reader_ends_at_once_when_its_task_is_deleted(
    store: AsyncStore, keys: Keys, subscriber: PubSubListener, *, final_only: bool
) -> None:
    async with follow_task(store, keys, subscriber, final_only=final_only) as (task_id, wakeup):
        await store.run(delete_task(keys, ANN, task_id))

        async with asyncio.timeout(SOON):
            cursor = StreamCursor(task_id, CONTEXT, EventId(1))
            follower = LogFollower(store, keys, subscriber)
            assert [events async for events in follower.events(cursor, wakeup, new=True)] == []


async def test_inline_entries_do_not_serve_a_reader_of_another_history(
    store: AsyncStore, keys: Keys, subscriber: PubSubListener, seeds: Seeds
) -> None:
    async with follow_task(store, keys, subscriber) as (task_id, wakeup):
        claim = await seeds.claim_run(task_id)
        for version in range(3):
            last_event_id = (await seeds.log(task_id))[-1].id
            await seeds.append_events(claim, chunk(str(version)), written_count=version)
            await wait_for_wakeup(wakeup, version=last_event_id.version)
            position = last_event_id if version else last_event_id._replace(recorded_us=last_event_id.recorded_us - 1)

            page = wakeup.page(position)

            assert (page and page.entries) == ((await seeds.log(task_id))[-1:] if version else None)


async def test_the_buffer_for_a_slow_reader_is_bounded(
    store: AsyncStore, keys: Keys, subscriber: PubSubListener, seeds: Seeds
) -> None:
    reads, notifications = CountingStore(store), BUFFER_BYTES // 5_000 + 1
    async with follow_task(store, keys, subscriber) as (task_id, wakeup):
        claim = await seeds.claim_run(task_id)
        for version in range(notifications):
            await seeds.append_events(claim, chunk("x" * 5_000), written_count=version)
        await wait_for_wakeup(wakeup, version=notifications + 1)

        pages = await read_pages(reads, keys, subscriber, wakeup, task_id, until=notifications + 2, new=False)

    assert reads.count == 1
    assert entries(pages) == (await whole_log(store, keys, task_id)).entries


async def wait_for_wakeup(wakeup: Wakeup, version: int) -> None:
    """Wait for a notification of a version after `version`."""
    async with asyncio.timeout(SOON):
        await wakeup.wait(timeout=LIMIT, after=version)


@pytest.mark.parametrize(("version", "expected"), [(1, None), (2, [3, 4]), (3, [4]), (4, None), (5, None)])
async def test_inline_entries_serve_readers_at_a_version_that_they_follow(
    store: AsyncStore, keys: Keys, seeds: Seeds, version: int, expected: list[int] | None
) -> None:
    claim = await seeds.claim_run()
    await seeds.append_events(claim, chunk("a", append=False), chunk("b"))
    [*entries_stored] = await store.redis.lrange(keys.task(claim.ref.task_id).log, 2, -1)

    page = InlineEntries(4, b"2", entries_stored).page(EventId(version))

    assert (page and [entry.version for entry in page.entries]) == expected


def test_inline_entries_after_a_gap_replace_the_earlier_ones() -> None:
    first, next_, third = (
        InlineEntries(3, b"2", [b"3"]),
        InlineEntries(5, b"2", [b"4", b"5"]),
        InlineEntries(7, b"3", [b"7"]),
    )

    assert first.joined_with(next_) == InlineEntries(5, b"2", [b"3", b"4", b"5"])
    assert first.joined_with(third) == third
    assert first.joined_with(first) == first


def test_inline_entries_of_two_histories_are_not_joined() -> None:
    """The store lost the entry after `first`, and recorded a different entry at the same version."""
    first = InlineEntries(3, b"2", [b"70 x", b"80 x"], before_us=60)
    successor, other = (InlineEntries(4, b"2", [b"90 x"], before_us=before_us) for before_us in (80, 85))

    assert first.joined_with(successor) == InlineEntries(4, b"2", [b"70 x", b"80 x", b"90 x"], before_us=60)
    assert first.joined_with(other) == other
