"""Large results in the journal. Each result is stored as a blob of its task, and is removed with the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from a2a.types import Part

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.errors import BlobsUnavailable
from a2a_celery.features.dead_letters.dead_letter import DeadLetter, read_dead_letter, requeue_task
from a2a_celery.lifecycle.journal import JournalEntry
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys, SyncStore
from a2a_celery.store.blobs.blob_store import Blobs
from a2a_celery.store.blobs.object_store import ObjectStore
from a2a_celery.store.blobs.references import encode_entry, resolve_entry
from a2a_celery.store.runs.commands import Claim, claim_run, settle_run
from a2a_celery.store.runs.journal import JournalPage, read_journal, read_recorded
from a2a_celery.store.runs.release import release_run
from a2a_celery.store.tasks.commands import continue_task, delete_task
from a2a_celery.watcher.archiver import BlobRemover
from tests.support.store.blob_setup import BlobSetup, create_task_with_parts, remove_due_blobs
from tests.support.store.leaks import leaks
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, chunk, request, status

LARGE = b'"' + b"x" * 5000 + b'"'


def entry(key: str = "fetch#1", content: bytes = LARGE, turn: int = 1) -> JournalEntry:
    """Return the journal entry of a step with a large result."""
    return JournalEntry(key, "step", "json", content, 1, turn)


def blobs_in(blob_setup: BlobSetup, task_id: str) -> set[str]:
    """Return the folders of a task's blobs, relative to the task's folder."""
    folder = blob_setup.folder / f"task-{task_id}"
    return {str(path.parent.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def stored_entry(blob_setup: BlobSetup, keys: Keys, task_id: str, key: str = "fetch#1") -> bytes:
    """Return a journal entry as stored in Redis."""
    value = await blob_setup.store.redis.hget(keys.task(task_id).journal, key)
    assert value is not None
    return bytes(value)


async def remove_journals(blob_setup: BlobSetup, keys: Keys) -> None:
    """Let a watcher remove the blobs of deleted journals."""
    await BlobRemover(blob_setup.store, keys, blob_setup.blobs).tick()


async def lost_for_good(seeds: Seeds, *entries: JournalEntry, task_id: str = "") -> Claim:
    """Claim a run, append `entries` to its journal, and fail its task by the loss of its worker. Return the claim."""
    claim = await seeds.claim_run(task_id)
    await seeds.append_events(claim, *entries)
    assert (await seeds.recover_run(claim.ref)).outcome == "failed"
    return claim


async def test_a_large_result_is_a_blob_and_the_next_attempt_receives_it(
    blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys
) -> None:
    first = await blob_seeds.claim_run(max_attempts=2)
    await blob_seeds.append_events(first, entry(), entry("small#1", b"1"))
    task_id = first.ref.task_id
    assert len(await stored_entry(blob_setup, keys, task_id)) < 200
    assert blobs_in(blob_setup, task_id) == {"journal-1"}
    recorded = await blob_setup.store.run(read_recorded(keys, task_id, max_content=10))
    assert {(item.entry.key, item.entry.content, item.size) for item in recorded.entries} == {
        ("fetch#1", b"", len(LARGE)), ("small#1", b"1", 1),
    }  # fmt: skip
    await blob_seeds.recover_run(first.ref)

    next_claim = await blob_seeds.claim_run(task_id, run=2)

    assert next_claim.journal.entries == {"fetch#1": entry(), "small#1": entry("small#1", b"1")}
    await blob_seeds.require_consistent(task_id)
    assert await leaks(blob_setup.store, keys) == []


async def test_a_claim_without_blobs_must_be_repeated_with_them(blob_setup: BlobSetup, blob_seeds: Seeds) -> None:
    first = await blob_seeds.claim_run(max_attempts=2)
    await blob_seeds.append_events(first, entry())
    await blob_seeds.recover_run(first.ref)
    reads = blob_setup.object_store.reads
    claiming: Any = {"token": "next", "runner": "runner", "lease_us": 1_000_000, "working": True, "max_attempts": 2}
    ref = type(first.ref)(first.ref.task_id, 2)

    claim = await blob_seeds.store.run(claim_run(blob_seeds.keys, ref, **claiming, resolve_blobs=False))

    assert isinstance(claim, Claim)
    assert not claim.snapshot.is_resolved
    assert blob_setup.object_store.reads == reads
    second_result = await blob_seeds.store.run(claim_run(blob_seeds.keys, ref, **claiming))
    assert isinstance(second_result, Claim)
    assert (second_result.snapshot.is_resolved, second_result.journal.entries) == (True, {"fetch#1": entry()})


async def test_pages_of_a_journal_have_their_large_results(blob_setup: BlobSetup, blob_seeds: Seeds) -> None:
    first = await blob_seeds.claim_run(max_attempts=2)
    entries = [entry(f"a#{n}", b"x" * (1000 if n % 100 else 5000)) for n in range(1, 1301)]
    for n in range(0, len(entries), 100):
        await blob_seeds.append_events(first, *entries[n : n + 100], written_count=n)
    await blob_seeds.recover_run(first.ref)
    next_claim = await blob_seeds.claim_run(first.ref.task_id, run=2)
    assert next_claim.journal.entries is None

    journal: dict[str, JournalEntry] = {}
    cursor = ""
    while cursor != "0":
        page = await blob_seeds.store.run(
            read_journal(blob_seeds.keys, next_claim.ref, token=next_claim.token, cursor=cursor or "0")
        )
        assert isinstance(page, JournalPage)
        cursor = page.cursor
        journal |= page.entries

    assert journal == {item.key: item for item in entries}
    assert len(blob_setup.object_store.written) >= 13


async def test_a_run_that_was_retried_receives_the_large_results(blob_seeds: Seeds, keys: Keys) -> None:
    first = await blob_seeds.claim_run(max_attempts=2)
    retry_arguments: Any = {
        "events": [entry(), status(WORKING)],
        "options": b'{"retries":1}',
        "retries": 1,
        "delay_us": 1,
    }
    await blob_seeds.store.run(release_run(keys, first.ref, token=first.token, written_count=0, **retry_arguments))

    assert (await blob_seeds.claim_run(first.ref.task_id, max_attempts=2, retries=1)).journal.entries == {
        "fetch#1": entry()
    }


@pytest.mark.parametrize("ending", ["append", "settle", "delete"])
async def test_the_blobs_of_a_journal_are_removed_at_the_end_of_the_task(
    blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys, ending: str
) -> None:
    claim = await blob_seeds.claim_run()
    task_id = claim.ref.task_id
    await blob_seeds.append_events(claim, chunk("y" * 5000), entry())
    assert blobs_in(blob_setup, task_id) == {".", "journal-1"}
    match ending:
        case "append":
            await blob_seeds.append_events(claim, status(COMPLETED), written_count=2)
        case "settle":
            await blob_seeds.settle_run(claim, status(COMPLETED), written_count=2)
        case "delete":
            await blob_seeds.store.run(delete_task(keys, ANN, task_id))

    await remove_journals(blob_setup, keys)

    assert blobs_in(blob_setup, task_id) == (set() if ending == "delete" else {"."})
    assert await blob_setup.store.redis.zcard(keys.orphaned_blobs) == 0
    assert await leaks(blob_setup.store, keys) == []


async def test_the_blobs_of_a_journal_are_removed_when_the_next_turn_begins(
    blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys
) -> None:
    first = await blob_seeds.claim_run()
    task_id = first.ref.task_id

    async def answer() -> None:
        message_request = request("yes", task_id, CONTEXT)
        await blob_seeds.store.run(
            continue_task(keys, ANN, task_id, message_request, "", caller=b"{}", nonce=uuid4().hex)
        )

    asking = [entry(), status(INPUT_REQUIRED, "?")]
    await blob_seeds.store.run(
        settle_run(keys, first.ref, token=first.token, written_count=0, events=asking, ask_count=1)
    )
    await answer()
    next_claim = await blob_seeds.claim_run(task_id, run=2)
    await remove_journals(blob_setup, keys)
    assert next_claim.journal.entries == {"fetch#1": entry()}
    await blob_seeds.settle_run(next_claim, entry("fetch#2"), status(INPUT_REQUIRED, "done, what next?"))
    await answer()
    newest = await blob_seeds.claim_run(task_id, run=3)
    await blob_seeds.append_events(newest, entry(turn=3))

    await remove_journals(blob_setup, keys)

    assert (newest.journal.entries, newest.turn.first_number) == ({}, 3)
    assert blobs_in(blob_setup, task_id) == {"journal-3"}
    assert await leaks(blob_setup.store, keys) == []


async def test_a_requeued_task_has_copies_of_the_large_results(
    blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    dead_id = (await lost_for_good(blob_seeds, entry(), entry("small#1", b"1"), entry("other#1"))).ref.task_id
    operators = SyncStore(redis_server.store_url, blob_setup.blobs)
    dead_letter = operators.run(read_dead_letter(keys, dead_id))
    assert isinstance(dead_letter, DeadLetter)
    for _ in range(2):  # the second call is a repetition
        assert operators.run(requeue_task(keys, dead_letter, "new", retention=RETENTION, options=b"")) == "requeued"
    operators.close()

    await remove_journals(blob_setup, keys)

    assert (blobs_in(blob_setup, dead_id), blobs_in(blob_setup, "new")) == (set(), {"journal-1"})
    claim = await blob_seeds.claim_run("new")
    assert claim.journal.entries == {key: entry(key) for key in ("fetch#1", "other#1")} | {
        "small#1": entry("small#1", b"1")
    }
    await blob_seeds.require_consistent("new")
    assert await leaks(blob_setup.store, keys) == []
    await blob_seeds.recover_run(claim.ref)
    newest, _ = await blob_seeds.requeue_task("new")
    assert set((await blob_seeds.claim_run(newest)).journal.entries or ()) == {"fetch#1", "other#1", "small#1"}
    await remove_journals(blob_setup, keys)
    assert (blobs_in(blob_setup, "new"), blobs_in(blob_setup, newest)) == (set(), {"journal-1"})


async def test_a_task_that_is_requeued_from_the_start_needs_no_object_store(
    blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys
) -> None:
    dead_id = (await lost_for_good(blob_seeds, entry())).ref.task_id
    blob_setup.object_store.is_down = True
    with pytest.raises(BlobsUnavailable):
        await blob_seeds.store.run(read_dead_letter(keys, dead_id))

    dead_letter = await blob_seeds.store.run(read_dead_letter(keys, dead_id, from_start=True))
    assert isinstance(dead_letter, DeadLetter)
    second_requeue = requeue_task(keys, dead_letter, "new", retention=RETENTION, options=b"", from_start=True)
    assert await blob_seeds.store.run(second_requeue) == "requeued"

    blob_setup.object_store.is_down = False
    await remove_journals(blob_setup, keys)
    assert (blobs_in(blob_setup, dead_id), blobs_in(blob_setup, "new")) == (set(), set())
    assert (await blob_seeds.claim_run("new")).journal.entries == {}


async def test_a_requeue_with_a_higher_threshold_stores_the_results_in_redis(
    blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    dead_id = (await lost_for_good(blob_seeds, entry())).ref.task_id
    blobs = Blobs(blob_setup.object_store, keys, 100_000)
    store = AsyncStore(redis_server.store_url, blobs)

    new_id, _ = await Seeds(store, keys).requeue_task(dead_id)

    assert await stored_entry(blob_setup, keys, new_id) == encode_entry(entry())
    assert (await blob_seeds.claim_run(new_id)).journal.entries == {"fetch#1": entry()}
    await blob_seeds.require_consistent(new_id)
    assert await leaks(blob_setup.store, keys) == []
    await store.aclose()


async def test_a_task_is_not_requeued_with_results_that_may_have_been_removed(
    blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys
) -> None:
    dead_id = (await lost_for_good(blob_seeds, entry())).ref.task_id
    dead_letter = await blob_seeds.store.run(read_dead_letter(keys, dead_id))
    assert isinstance(dead_letter, DeadLetter)
    operation = requeue_task(keys, dead_letter, "new", retention=RETENTION, options=b"")
    call = await blob_setup.put_blobs(operation)  # the operator's process is frozen for a long time
    await remove_due_blobs(blob_setup, keys)

    with pytest.raises(BlobsUnavailable, match="removed before"):
        await blob_seeds.store.run(call)

    assert isinstance(await blob_seeds.store.run(read_dead_letter(keys, dead_id)), DeadLetter)


async def test_the_blobs_of_a_journal_expire_with_a_dead_letter(
    blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys
) -> None:
    dead_id = await create_task_with_parts(blob_seeds, [Part(text="y" * 5000)])
    await lost_for_good(blob_seeds, entry(), task_id=dead_id)
    await remove_due_blobs(blob_setup, keys)
    assert blobs_in(blob_setup, dead_id) == {".", "journal-1"}

    await blob_setup.store.redis.delete(*[key async for key in blob_setup.store.redis.scan_iter(f"*{{{dead_id}}}*")])
    await remove_due_blobs(blob_setup, keys)

    assert blobs_in(blob_setup, dead_id) == set()


async def test_a_stored_result_does_not_depend_on_its_task() -> None:
    (first, blobs), (second, more_blobs) = (encode_entry(entry()).extract_blobs(tag, 1024) for tag in ("a", "b"))

    assert first == second == encode_entry(entry()).extract_blobs("a", 1024)[0]
    assert resolve_entry(first, "a").folder == "journal-1"
    assert {name.partition("/")[2] for name in blobs} == {name.partition("/")[2] for name in more_blobs}
    assert list(blobs.values()) == list(more_blobs.values()) == [LARGE]


async def test_a_process_without_an_object_store_names_the_remedy(
    store: AsyncStore, seeds: Seeds, blob_seeds: Seeds
) -> None:
    first = await blob_seeds.claim_run(max_attempts=2)
    await blob_seeds.append_events(first, entry())
    await blob_seeds.recover_run(first.ref)

    with pytest.raises(BlobsUnavailable, match="set A2A_BLOB_URL"):
        await seeds.claim_run(first.ref.task_id, run=2)


async def test_a_folder_is_removed_although_a_part_of_it_is_removed_at_once(tmp_path: Path) -> None:
    objects = InterruptedObjectStore(f"file://{tmp_path}")
    for name in ("t/journal-1/a", "t/b"):
        await objects.put(name, b"x")

    await objects.remove("t")

    assert objects.interruptions == 0
    assert not (tmp_path / "task-t").exists()


class InterruptedObjectStore(ObjectStore):
    """Object store whose first removals are interrupted, because another process removes a part of the folder."""

    interruptions = 2

    async def _call_in_thread(self, action: str, call: Any) -> Any:
        def raise_interruption() -> None:
            raise FileNotFoundError

        if action == "remove the folder" and self.interruptions:
            self.interruptions -= 1
            call = raise_interruption
        return await super()._call_in_thread(action, call)
