"""News: what a ring brings is what would have been read, or is not taken."""

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
from a2a_celery.store.log.pages import LogPage, read_log
from a2a_celery.store.log.pubsub import BUFFER_BYTES, InlineEntries, LogFollower, LogSignal, PubSubListener, follow
from a2a_celery.store.operation import Operation, script
from a2a_celery.store.tasks.commands import create_task
from tests.store.test_pubsub import is_up
from tests.support.blob_setup import THRESHOLD, BlobSetup
from tests.support.seeds import ANN, CONTEXT, Seeds, chunk, request, status

SOON = 10.0
"""Seconds that following a log may take; less than what a listener waits that hears nothing."""


class Reads:
    """A store that counts what it is asked."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self.count = 0

    async def run(self, operation: Any) -> Any:
        self.count += 1
        return await self._store.run(operation)


@asynccontextmanager
async def followed(
    store: AsyncStore, keys: Keys, line: PubSubListener, *, final_only: bool = False
) -> AsyncIterator[tuple[str, LogSignal]]:
    """A new task, and the bell of who made it."""
    await is_up(line, store)
    async with line.listen("it rings everybody when it comes up, and hears behind that"):
        pass
    follower, task_id = LogFollower(store, keys, line), str(uuid4())
    reply_channel = follower.reply_channel(final_only=final_only)
    async with follower.listen(task_id, reply_channel, final_only=final_only) as signal:
        sent = request(task_id=task_id, context_id=CONTEXT)
        await store.run(
            create_task(keys, ANN, task_id, CONTEXT, sent, caller=b"{}", retention=60, reply_channel=reply_channel)
        )
        yield task_id, signal


async def whole_log(store: AsyncStore, keys: Keys, task_id: str, after: int = 1) -> LogPage:
    """All behind that version."""
    return await store.run(read_log(keys, task_id, after))


async def taken(
    reads: Reads, keys: Keys, signal: LogSignal, task_id: str, until: int, *, after: int = 1, new: bool = True
) -> list[LogPage]:
    """The pages behind version `after`, up to version `until`."""
    pages: list[LogPage] = []
    async with (
        asyncio.timeout(SOON),
        aclosing(follow(cast(AsyncStore, reads), keys, signal, task_id, EventId(after), new=new)) as following,
    ):
        async for page in following:
            pages.append(page)
            if page.version == until:
                return pages
    raise AssertionError(pages)


def entries(pages: list[LogPage]) -> list[LogEntry]:
    return [entry for page in pages for entry in page.entries]


async def test_who_streams_its_own_task_reads_no_log(
    store: AsyncStore, keys: Keys, line: PubSubListener, seeds: Seeds
) -> None:
    reads = Reads(store)
    async with followed(store, keys, line) as (task_id, signal):
        following = asyncio.create_task(taken(reads, keys, signal, task_id, until=6))
        claim = await seeds.claimed(task_id)
        await seeds.appended(claim, chunk("a", append=False))
        await seeds.appended(claim, chunk("ä\n\x00 "), chunk("c"), before=1)
        await seeds.settled(claim, status(COMPLETED, "done"), before=3)

        pages = await following

    log = await whole_log(store, keys, task_id)
    assert reads.count == 0
    assert entries(pages) == log.entries
    assert (pages[-1].state, pages[-1].running) == (log.state, log.running) == (COMPLETED, False)
    assert all(page.running for page in pages[:-1])


async def test_what_was_missed_is_read(store: AsyncStore, keys: Keys, line: PubSubListener, seeds: Seeds) -> None:
    reads = Reads(store)
    async with followed(store, keys, line) as (task_id, signal):
        claim = await seeds.claimed(task_id)
        await seeds.appended(claim, chunk("a", append=False))
        await rung(signal, after=2)
        assert signal.page(EventId(2))  # and nobody will ever tell again
        await seeds.appended(claim, chunk("b"), before=1)

        pages = await taken(reads, keys, signal, task_id, until=4)

    assert reads.count == 1
    assert entries(pages) == (await whole_log(store, keys, task_id)).entries


async def test_news_that_are_known_in_part_are_told_from_there(
    store: AsyncStore, keys: Keys, line: PubSubListener, seeds: Seeds
) -> None:
    reads = Reads(store)
    async with followed(store, keys, line) as (task_id, signal):
        claim = await seeds.claimed(task_id)
        await seeds.appended(claim, chunk("a", append=False), chunk("b"), chunk("c"))
        await rung(signal, after=4)

        pages = await taken(reads, keys, signal, task_id, until=5, after=3, new=False)

    assert reads.count == 0
    assert entries(pages) == (await whole_log(store, keys, task_id, after=3)).entries


async def test_what_is_large_is_read(store: AsyncStore, keys: Keys, line: PubSubListener, seeds: Seeds) -> None:
    reads = Reads(store)
    async with followed(store, keys, line) as (task_id, signal):
        following = asyncio.create_task(taken(reads, keys, signal, task_id, until=5))
        claim = await seeds.claimed(task_id)
        await seeds.appended(claim, chunk("a", append=False))
        await seeds.appended(claim, chunk("b" * 20_000), before=1)
        await seeds.appended(claim, chunk("c"), before=2)

        pages = await following

    assert reads.count == 1
    assert entries(pages) == (await whole_log(store, keys, task_id)).entries


async def test_what_is_large_is_read_at_once_behind_what_is_small(
    store: AsyncStore, keys: Keys, line: PubSubListener, seeds: Seeds
) -> None:
    reads = Reads(store)
    async with followed(store, keys, line) as (task_id, signal):
        claim = await seeds.claimed(task_id)
        await seeds.appended(claim, chunk("a", append=False))
        await seeds.settled(claim, chunk("b" * 20_000), status(COMPLETED), before=1)
        await rung(signal, after=4)

        pages = await taken(reads, keys, signal, task_id, until=5, new=False)

    assert reads.count == 1
    assert entries(pages) == (await whole_log(store, keys, task_id)).entries


def test_a_ring_that_brings_nothing_puts_an_end_to_what_was_brought() -> None:
    signal = LogSignal()

    signal.receive(b"3\n2 1 0 \x00\x00\x00\x043 \x12\x00")
    signal.notify()

    assert signal.page(EventId(2)) is None


async def test_what_is_in_the_object_store_is_read(
    blob_setup: BlobSetup, keys: Keys, line: PubSubListener, large: Seeds
) -> None:
    store, reads = blob_setup.store, Reads(blob_setup.store)
    async with followed(store, keys, line) as (task_id, signal):
        following = asyncio.create_task(taken(reads, keys, signal, task_id, until=3))
        claim = await large.claimed(task_id)
        event = chunk("", append=False)
        event.artifact.parts[0].CopyFrom(Part(raw=b"x" * THRESHOLD))
        await large.appended(claim, event)

        pages = await following

    assert reads.count == 1
    assert entries(pages) == (await whole_log(store, keys, task_id)).entries


@pytest.mark.parametrize(("chunks", "told"), [(1, True), (13, True), (14, False)])
async def test_who_waits_for_the_end_is_told_all_of_a_short_turn(
    store: AsyncStore, keys: Keys, line: PubSubListener, seeds: Seeds, chunks: int, *, told: bool
) -> None:
    async with followed(store, keys, line, final_only=True) as (task_id, signal):
        claim = await seeds.claimed(task_id)
        for before in range(chunks):
            await seeds.appended(claim, chunk("x"), before=before)
        await seeds.settled(claim, status(COMPLETED), before=chunks)
        await rung(signal, after=1)

        page = signal.page(EventId(1))

    assert page == (await whole_log(store, keys, task_id) if told else None)


@pytest.mark.parametrize("final_only", [False, True])
async def test_who_follows_a_task_hears_at_once_that_it_is_gone(
    store: AsyncStore, keys: Keys, line: PubSubListener, *, final_only: bool
) -> None:
    async with followed(store, keys, line, final_only=final_only) as (task_id, signal):
        await store.run(Operation(script("delete_task"), keys.task(task_id), [str(ANN)], int))

        async with asyncio.timeout(SOON):
            assert [page async for page in follow(store, keys, signal, task_id, EventId(1), new=True)] == []


async def test_news_are_not_for_a_reader_of_another_history(
    store: AsyncStore, keys: Keys, line: PubSubListener, seeds: Seeds
) -> None:
    async with followed(store, keys, line) as (task_id, signal):
        claim = await seeds.claimed(task_id)
        for before in range(3):
            known = (await seeds.log(task_id))[-1].id
            await seeds.appended(claim, chunk(str(before)), before=before)
            await rung(signal, after=known.version)
            after = known if before else known._replace(recorded_us=known.recorded_us - 1)

            page = signal.page(after)

            assert (page and page.entries) == ((await seeds.log(task_id))[-1:] if before else None)


async def test_a_reader_who_is_slow_is_kept_a_little(
    store: AsyncStore, keys: Keys, line: PubSubListener, seeds: Seeds
) -> None:
    reads, rings = Reads(store), BUFFER_BYTES // 5_000 + 1
    async with followed(store, keys, line) as (task_id, signal):
        claim = await seeds.claimed(task_id)
        for before in range(rings):
            await seeds.appended(claim, chunk("x" * 5_000), before=before)
        await rung(signal, after=rings + 1)

        pages = await taken(reads, keys, signal, task_id, until=rings + 2, new=False)

    assert reads.count == 1
    assert entries(pages) == (await whole_log(store, keys, task_id)).entries


async def rung(signal: LogSignal, after: int) -> None:
    """Returns when the bell has rung for something behind that version."""
    async with asyncio.timeout(SOON):
        await signal.wait(timeout=60, after=after)


@pytest.mark.parametrize(("after", "told"), [(1, None), (2, [3, 4]), (3, [4]), (4, None), (5, None)])
async def test_they_are_for_who_stands_where_they_go_on(
    store: AsyncStore, keys: Keys, seeds: Seeds, after: int, told: list[int] | None
) -> None:
    claim = await seeds.claimed()
    await seeds.appended(claim, chunk("a", append=False), chunk("b"))
    [*stored] = await store.redis.lrange(keys.task(claim.ref.task_id).log, 2, -1)

    page = InlineEntries(4, b"2", True, stored).page(EventId(after))

    assert (page and [entry.version for entry in page.entries]) == told


def test_news_behind_a_gap_stand_for_themselves() -> None:
    first, next_, later = (
        InlineEntries(3, b"2", True, [b"3"]),
        InlineEntries(5, b"2", True, [b"4", b"5"]),
        InlineEntries(7, b"3", False, [b"7"]),
    )

    assert first.joined_with(next_) == InlineEntries(5, b"2", True, [b"3", b"4", b"5"])
    assert first.joined_with(later) == later
    assert first.joined_with(first) == first


def test_news_of_two_histories_are_not_joined() -> None:
    """The store lost an entry of the first, and recorded another in its place."""
    first = InlineEntries(3, b"2", True, [b"70 x", b"80 x"], before_us=60)
    joined, other = (InlineEntries(4, b"2", True, [b"90 x"], before_us=us) for us in (80, 85))

    assert first.joined_with(joined) == InlineEntries(4, b"2", True, [b"70 x", b"80 x", b"90 x"], before_us=60)
    assert first.joined_with(other) == other
