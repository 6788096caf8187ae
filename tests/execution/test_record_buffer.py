"""Buffer of unconfirmed records: confirmations in the order of the log, and the held last event."""

from __future__ import annotations

import asyncio

import pytest

from a2a_celery.execution.events.queue import MAX_RECORDS_PER_WRITE, RecordBuffer
from a2a_celery.lifecycle.journal import JournalEntry, RunRecord
from tests.support.store.seeds import chunk


def entry(name: str) -> JournalEntry:
    return JournalEntry(name, "step", "json", b"")


@pytest.fixture
def buffer() -> RecordBuffer:
    return RecordBuffer()


async def test_a_confirmation_waits_for_the_last_of_the_records_before_it(buffer: RecordBuffer) -> None:
    buffer.records.extend([chunk("a"), entry("b"), entry("c")])
    confirmation = buffer.confirmation()
    buffer.records.append(chunk("d"))
    later_confirmation = buffer.confirmation()

    buffer.confirm(2)
    assert not confirmation.done()
    buffer.confirm(1)

    assert confirmation.done()
    assert not confirmation.cancelled()
    assert not later_confirmation.done()
    assert (buffer.written_count, len(buffer.records)) == (3, 1)


async def test_dropped_records_are_not_confirmed(buffer: RecordBuffer) -> None:
    buffer.records.append(entry("a"))
    confirmation = buffer.confirmation()

    buffer.clear()

    assert confirmation.cancelled()
    assert (buffer.written_count, buffer.records) == (0, [])


async def test_records_without_a_confirmation_remain(buffer: RecordBuffer) -> None:
    buffer.records.append(entry("a"))
    confirmation = buffer.confirmation()

    buffer.cancel_confirmations()
    assert confirmation.cancelled()

    buffer.confirm(1)
    assert (buffer.written_count, buffer.records) == (1, [])


def test_the_records_after_a_held_event_are_held_too(buffer: RecordBuffer) -> None:
    records: list[RunRecord] = [chunk("a"), entry("b"), chunk("c"), entry("d")]
    buffer.records.extend(records)

    assert buffer.before_last_event() == records[:2]
    assert buffer.first() == records


def test_a_write_has_a_limited_number_of_records(buffer: RecordBuffer) -> None:
    buffer.records.extend(entry(str(number)) for number in range(MAX_RECORDS_PER_WRITE + 2))
    buffer.records.insert(MAX_RECORDS_PER_WRITE + 1, chunk("held"))

    assert len(buffer.first()) == len(buffer.before_last_event()) == MAX_RECORDS_PER_WRITE


@pytest.mark.parametrize("change", ["confirm", "clear", "wake"])
async def test_each_change_ends_a_wait(buffer: RecordBuffer, change: str) -> None:
    buffer.records.append(entry("a"))
    waiting = asyncio.create_task(buffer.wait_for_change())
    await asyncio.sleep(0)
    assert not waiting.done()

    getattr(buffer, change)(*([1] if change == "confirm" else []))

    await asyncio.wait_for(waiting, timeout=10)
