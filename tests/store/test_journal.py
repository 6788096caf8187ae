"""Journal of a turn. Only the current run writes the journal, later runs of the turn replay it, and it is deleted with
the turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from a2a_celery.features.dead_letters.dead_letter import DeadLetter, read_dead_letter, requeue_task
from a2a_celery.lifecycle.journal import REMOVED, CallExecution, JournalEntry, decode_entry, encode_entry
from a2a_celery.lifecycle.states import COMPLETED, FAILED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.operation import Operation
from a2a_celery.store.runs.commands import Claim, Illegal, RunLost, append, settle_run
from a2a_celery.store.runs.journal import JournalPage, RecordedEntries, read_journal, read_recorded
from a2a_celery.store.runs.recovery import return_run
from a2a_celery.store.runs.release import release_run
from a2a_celery.store.tasks.commands import continue_task, delete_task
from tests.support.store.leaks import leaks
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, chunk, request, status

from .test_cost import Meter


def entry(key: str = "fetch#1", content: bytes = b'"a"', position: int = 1) -> JournalEntry:
    return JournalEntry(key, "step", "json", content, position)


async def journal(store: AsyncStore, keys: Keys, task_id: str) -> dict[bytes, bytes]:
    return await store.redis.hgetall(keys.task(task_id).journal)


async def answer(store: AsyncStore, keys: Keys, task_id: str) -> None:
    """Send the next message to a task."""
    message_request = request("yes", task_id, CONTEXT)
    await store.run(continue_task(keys, ANN, task_id, message_request, "", caller=b"{}", nonce=uuid4().hex))


@pytest.mark.parametrize("content", [b"", b"null", b"a\nb", b"\x00\xff\n"])
@pytest.mark.parametrize("execution", [None, CallExecution(3, 2, 1_800_000_000_000_000, 5)])
@pytest.mark.parametrize("answers", [(), (1,)])
def test_an_entry_is_read_as_it_was_written(
    content: bytes, execution: CallExecution | None, answers: tuple[int, ...]
) -> None:
    journal_entry = JournalEntry("ü n#12", "step", "protobuf a.b:C", content, 7, answers=answers, execution=execution)
    if execution is not None:
        journal_entry = replace(journal_entry, arguments='["ü\\n"]')

    decoded = decode_entry(journal_entry.key, encode_entry(journal_entry))

    assert (decoded, decoded.execution, decoded.arguments) == (journal_entry, execution, journal_entry.arguments)


def test_an_entry_without_its_execution_is_read() -> None:
    stored = b'["step","json",7,[1]]\n5'

    assert decode_entry("a#1", stored) == JournalEntry("a#1", "step", "json", b"5", 7, answers=(1,))


def test_an_entry_with_the_names_of_answers_is_read() -> None:
    stored = b'["step","json",7,["3-0a1b2c3d4e5f6071","12-a0b1c2d3e4f50617"]]\n5'

    assert decode_entry("a#1", stored).answers == (3, 12)


async def test_observers_read_the_sizes_and_beginnings_of_results(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    await seeds.append_events(claim, JournalEntry("a#1", "step", "json", b"12\n456", 1), entry("b#1", b""))

    recorded = await store.run(read_recorded(keys, claim.ref.task_id, max_content=4))

    assert recorded.count == 2
    assert {(item.entry.key, item.entry.content, item.size) for item in recorded.entries} == {
        ("a#1", b"12\n4", 6), ("b#1", b"", 0),
    }  # fmt: skip
    assert await store.run(read_recorded(keys, "missing", max_content=4)) == RecordedEntries((), 0)


async def test_entries_are_written_with_the_events_and_are_not_in_the_log(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    claim = await seeds.claim_run()
    assert claim.journal.entries == {}

    await seeds.append_events(claim, entry("a#1"), chunk("a"), entry("b#1"))

    assert set(await journal(store, keys, claim.ref.task_id)) == {b"a#1", b"b#1"}
    assert len(await seeds.log(claim.ref.task_id)) == 3
    await seeds.require_consistent(claim.ref.task_id)
    assert await leaks(store, keys) == []


async def test_the_next_attempt_receives_the_entries_of_the_lost_one(seeds: Seeds) -> None:
    first = await seeds.claim_run(max_attempts=2)
    await seeds.append_events(first, entry("a#1"), entry("b#1", b"\x00\xff", 2))
    await seeds.recover_run(first.ref)

    next_claim = await seeds.claim_run(first.ref.task_id, run=2)

    assert next_claim.journal.entries == {"a#1": entry("a#1"), "b#1": entry("b#1", b"\x00\xff", 2)}
    assert next_claim.journal.origin == first.ref.task_id


async def test_a_run_that_was_returned_or_retried_receives_the_entries(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    first = await seeds.claim_run(max_attempts=2)
    await seeds.append_events(first, entry("a#1"))
    retry_arguments: Any = {
        "events": [entry("b#1"), status(WORKING)],
        "options": b'{"retries":1}',
        "retries": 1,
        "delay_us": 1,
    }
    await store.run(release_run(keys, first.ref, token=first.token, written_count=1, **retry_arguments))
    retry_claim = await seeds.claim_run(first.ref.task_id, max_attempts=2, retries=1)
    assert set(retry_claim.journal.entries or ()) == {"a#1", "b#1"}
    await store.run(return_run(keys, retry_claim.ref, runner="runner", loss=status(FAILED)))
    await seeds.recover_run(retry_claim.ref)

    next_claim = await seeds.claim_run(first.ref.task_id, run=2)

    assert set(next_claim.journal.entries or ()) == {"a#1", "b#1"}


@pytest.mark.parametrize("operation", ["append", "settle"])
async def test_an_entry_of_an_old_run_is_refused(store: AsyncStore, keys: Keys, seeds: Seeds, operation: str) -> None:
    old_claim = await seeds.claim_run(max_attempts=2)
    await seeds.recover_run(old_claim.ref)
    new_claim = await seeds.claim_run(old_claim.ref.task_id, run=2)
    data_before = await seeds.all_values()

    make: Any = append if operation == "append" else settle_run
    for stranger in (old_claim, replace(new_claim, token="of another claim")):
        result = await store.run(make(keys, stranger.ref, token=stranger.token, written_count=0, events=[entry()]))
        assert result == RunLost()

    assert await seeds.all_values() == data_before


async def test_an_entry_after_the_end_is_refused(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    events = [status(COMPLETED), entry()]

    result = await store.run(append(keys, claim.ref, token=claim.token, written_count=0, events=events))

    assert result == Illegal(2, WORKING)
    assert await journal(store, keys, claim.ref.task_id) == {}


async def test_an_append_that_is_repeated_counts_its_entries_once(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    await seeds.append_events(claim, entry())
    size = await store.redis.hget(keys.task(claim.ref.task_id).record, "size")
    await seeds.append_events(claim, entry())

    assert await store.redis.hget(keys.task(claim.ref.task_id).record, "size") == size


async def test_the_size_of_a_task_has_the_bytes_of_its_entries(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    record = keys.task(claim.ref.task_id).record

    async def sizes() -> tuple[int, int]:
        size, of_journal = await store.redis.hmget(record, "size", "journal_bytes")
        return int(size or 0), int(of_journal or 0)

    bare, _ = await sizes()
    await seeds.append_events(claim, entry("a#1", b"x" * 100), entry("a#1", b"x" * 70), entry("b#1"))
    byte_count = sum(len(key) + len(value) for key, value in (await journal(store, keys, claim.ref.task_id)).items())
    assert await sizes() == (bare + byte_count, byte_count)
    await seeds.settle_run(claim, status(INPUT_REQUIRED), written_count=3)
    paused_size, _ = await sizes()
    await answer(store, keys, claim.ref.task_id)
    _, of_journal = await sizes()

    assert of_journal == 0
    log = sum(len(line) for line in (await store.redis.lrange(keys.task(claim.ref.task_id).log, -2, -1)))
    number = len((await store.redis.lrange(keys.task(claim.ref.task_id).history, -1, -1))[0])
    assert (await sizes())[0] == paused_size - byte_count + log + number


async def test_an_answer_keeps_the_entries_and_another_message_deletes_them(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    claim = await seeds.claim_run()
    question = settle_run(
        keys,
        claim.ref,
        token=claim.token,
        written_count=0,
        events=[entry("a#1"), status(INPUT_REQUIRED, "?")],
        ask_count=1,
    )
    await store.run(question)
    await answer(store, keys, claim.ref.task_id)
    next_claim = await seeds.claim_run(claim.ref.task_id, run=2)
    assert set(next_claim.journal.entries or ()) == {"a#1"}
    await seeds.settle_run(next_claim, entry("b#1"), status(INPUT_REQUIRED, "done, what next?"))
    await answer(store, keys, claim.ref.task_id)

    assert (await seeds.claim_run(claim.ref.task_id, run=3)).journal.entries == {}
    assert await leaks(store, keys) == []


@pytest.mark.parametrize("ending", ["append", "settle", "delete"])
async def test_the_journal_ends_with_its_task(store: AsyncStore, keys: Keys, seeds: Seeds, ending: str) -> None:
    claim = await seeds.claim_run()
    await seeds.append_events(claim, entry())
    match ending:
        case "append":
            await seeds.append_events(claim, status(COMPLETED), written_count=1)
        case "settle":
            await seeds.settle_run(claim, status(FAILED), written_count=1)
        case "delete":
            await store.run(delete_task(keys, ANN, claim.ref.task_id))

    assert await journal(store, keys, claim.ref.task_id) == {}
    assert await leaks(store, keys) == []


async def test_a_large_journal_is_read_in_pages(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    first = await seeds.claim_run(max_attempts=2)
    entries = [entry(f"a#{n}", b"x" * 100_000, n) for n in range(1, 31)]
    for n, item in enumerate(entries):
        await seeds.append_events(first, item, written_count=n)
    await seeds.recover_run(first.ref)
    next_claim = await seeds.claim_run(first.ref.task_id, run=2)
    assert next_claim.journal.entries is None

    journal: dict[str, JournalEntry] = {}
    cursor, pages = "", 0
    while cursor != "0":
        page = await store.run(read_journal(keys, next_claim.ref, token=next_claim.token, cursor=cursor or "0"))
        assert isinstance(page, JournalPage)
        cursor, pages = page.cursor, pages + 1
        journal |= page.entries

    assert journal == {item.key: item for item in entries}
    assert pages > 1
    assert await store.run(read_journal(keys, next_claim.ref, token="of another claim")) == RunLost()


async def lost_for_good(seeds: Seeds, *entries: JournalEntry) -> Claim:
    """Claim a run, and let its task fail because the worker of the last attempt is lost. Return the claim."""
    claim = await seeds.claim_run()
    await seeds.append_events(claim, *entries)
    await seeds.recover_run(claim.ref)
    return claim


async def test_a_requeued_task_continues_with_the_journal(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    lost_claim = await lost_for_good(seeds, entry("a#1"))
    assert 0 < await store.redis.ttl(keys.task(lost_claim.ref.task_id).journal) <= RETENTION
    assert await leaks(store, keys) == []

    new_id, _ = await seeds.requeue_task(lost_claim.ref.task_id)

    claim = await seeds.claim_run(new_id)
    assert claim.journal.entries == {"a#1": entry("a#1")}
    assert claim.journal.origin == lost_claim.ref.task_id
    assert await store.redis.ttl(keys.task(new_id).journal) == -1
    assert await journal(store, keys, lost_claim.ref.task_id) == {}
    assert await leaks(store, keys) == []
    await seeds.recover_run(claim.ref)
    newest, _ = await seeds.requeue_task(new_id)
    assert (await seeds.claim_run(newest)).journal.origin == lost_claim.ref.task_id


async def test_a_task_that_is_requeued_from_the_start_has_no_journal(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    lost_claim = await lost_for_good(seeds, entry("a#1"))
    dead_letter = await store.run(read_dead_letter(keys, lost_claim.ref.task_id))
    assert isinstance(dead_letter, DeadLetter)

    await store.run(requeue_task(keys, dead_letter, "new", retention=RETENTION, options=b"", from_start=True))

    claim = await seeds.claim_run("new")
    assert (claim.journal.entries, claim.journal.origin) == ({}, "new")
    assert await journal(store, keys, lost_claim.ref.task_id) == {}
    assert await leaks(store, keys) == []


async def test_a_task_whose_entries_were_removed_can_be_requeued(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    lost_claim = await lost_for_good(seeds, entry("a#1"), JournalEntry("a#1", "step", REMOVED, b""))

    new_id, _ = await seeds.requeue_task(lost_claim.ref.task_id)

    assert (await seeds.claim_run(new_id)).journal.entries == {}
    assert await leaks(store, keys) == []


async def test_a_failed_run_leaves_a_dead_letter_on_request(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    events = [entry("a#1"), status(FAILED)]
    await store.run(
        settle_run(keys, claim.ref, token=claim.token, written_count=0, events=events, is_resubmittable=True)
    )

    assert isinstance(await store.run(read_dead_letter(keys, claim.ref.task_id)), DeadLetter)
    assert await leaks(store, keys) == []
    new_id, _ = await seeds.requeue_task(claim.ref.task_id)
    assert set((await seeds.claim_run(new_id)).journal.entries or ()) == {"a#1"}


async def test_an_entry_costs_the_same_early_and_late(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    meter, claim = Meter(store), await seeds.claim_run()

    def append_entries(version: int, *entries: JournalEntry) -> Operation[object]:
        return append(  # type: ignore[return-value]
            keys, claim.ref, token=claim.token, written_count=version, events=[*entries, chunk("x")]
        )

    await seeds.append_events(claim, chunk("the first"))
    bare = await meter.cost_of(append_entries(1))
    early_cost = await meter.cost_of(append_entries(2, entry()))
    await seeds.append_events(claim, *(entry(f"b#{n}") for n in range(900)), written_count=4)
    late_cost = await meter.cost_of(append_entries(904, entry()))

    extra = {"cmdstat_hstrlen": 1, "cmdstat_hset": 1, "cmdstat_hincrby": 1}
    expected = {**bare, **{name: bare.get(name, 0) + count for name, count in extra.items()}}
    assert early_cost == late_cost == expected


async def test_an_entry_is_removed(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run(max_attempts=2)
    await seeds.append_events(claim, entry("a#1"), entry("b#1"))
    size = await store.redis.hget(keys.task(claim.ref.task_id).record, "journal_bytes")

    await seeds.append_events(claim, entry("ü#1"), *(removal(key) for key in ("ü#1", "b#1", "c#1")), written_count=2)

    assert set(await journal(store, keys, claim.ref.task_id)) == {b"a#1"}
    await seeds.require_consistent(claim.ref.task_id)
    [rest] = (await journal(store, keys, claim.ref.task_id)).values()
    counter = await store.redis.hget(keys.task(claim.ref.task_id).record, "journal_bytes")
    assert int(counter) == len("a#1") + len(rest) == int(size) / 2


def removal(key: str) -> JournalEntry:
    return JournalEntry(key, "step", REMOVED, b"")
