"""Large parts in Redis. A part is stored once, does not pass through Lua scripts, and expires with its task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from a2a.types import Part

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.errors import BlobsUnavailable, StoreUnavailable
from a2a_celery.features.dead_letters.dead_letter import DeadLetter, read_dead_letter, requeue_task
from a2a_celery.lifecycle.journal import JournalEntry
from a2a_celery.lifecycle.refusals import Reason
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys, SyncStore
from a2a_celery.store.admin.archiving import read_archive_state, update_archive_backlog
from a2a_celery.store.admin.schema import SCHEMA, require_schema
from a2a_celery.store.blobs.blob_store import Blobs
from a2a_celery.store.blobs.cleanup import blobs_in_use
from a2a_celery.store.blobs.object_store import ObjectStore
from a2a_celery.store.blobs.redis_blobs import EXPIRY, RedisBlobs, key_of
from a2a_celery.store.blobs.references import IN_REDIS, BlobMissing
from a2a_celery.store.client.round_trips import Command, RoundTrips
from a2a_celery.store.keys import tag_in
from a2a_celery.store.operation import script
from a2a_celery.store.runs.commands import append
from a2a_celery.store.runs.suspension import SuspendedRun, Wait, suspend_run
from a2a_celery.store.tasks.commands import continue_task, create_task, delete_task
from tests.store.test_operations import VERBS
from tests.support.store.blob_setup import THRESHOLD, BlobSetup, create_task_with_parts, parts_request
from tests.support.store.limits import limit_sections
from tests.support.store.replies import begins, reason_of, waits
from tests.support.store.scripts import script_files
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, chunk, status
from tests.support.waiting import eventually_async

LARGE = "x" * 5000
MESSAGE = LARGE + " of the client"
NAME = f"t/{IN_REDIS}digest"
"""Name of a blob of the task ``t``."""


@pytest.fixture
async def in_redis(redis_server: EmbeddedRedis, keys: Keys, store: AsyncStore) -> AsyncIterator[AsyncStore]:
    """Empty store that keeps large parts in Redis."""
    in_redis = AsyncStore(redis_server.store_url, Blobs(None, keys, THRESHOLD))
    yield in_redis
    await in_redis.aclose()


@pytest.fixture
def tasks(in_redis: AsyncStore, keys: Keys) -> Seeds:
    """Helper that creates and reads tasks in the store `in_redis`."""
    return Seeds(in_redis, keys)


async def blobs_of(tasks: Seeds, task_id: str) -> dict[str, int]:
    """Return the expiry in seconds, or -1, of each blob of a task, by name. Require that the hash has all names.

    Blobs of refused messages, which expire within a second, are omitted.
    """
    redis, prefix = tasks.store.redis, tasks.keys.blob(task_id, "")
    expiries = {key.decode().removeprefix(prefix): await redis.ttl(key) async for key in redis.scan_iter(f"{prefix}*")}
    expiries = {name: expiry for name, expiry in expiries.items() if expiry == -1 or expiry > 1}
    names = {name.decode() for name in await redis.hkeys(tasks.keys.blobs_of(task_id))}
    assert names == set(expiries)
    return expiries


async def size_of(tasks: Seeds, task_id: str) -> int:
    """Return the size in the record of a task."""
    return int(await tasks.store.redis.hget(tasks.keys.task(task_id).record, "size") or 0)


async def continue_with(tasks: Seeds, task_id: str, text: str, **options: Any) -> Any:
    """Send a further message with one part."""
    message_request = parts_request([Part(text=text)], task_id)
    options = {"caller": b"{}", "nonce": uuid4().hex} | options
    return await tasks.store.run(continue_task(tasks.keys, ANN, task_id, message_request, "", **options))


async def test_a_large_message_never_enters_lua_and_is_stored_once(
    tasks: Seeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []  # of all arguments and replies of scripts
    make = RoundTrips.make

    async def recording(self: RoundTrips, commands: Sequence[Command]) -> list[Any]:
        replies = await make(self, commands)
        for command, reply in zip(commands, replies, strict=True):
            if str(command[0]).startswith("EVALSHA"):
                sizes.extend(len(repr(argument)) for argument in (*command, reply))
            elif command[0] == "EXEC":
                sizes.append(len(repr(reply)))
        return replies

    monkeypatch.setattr(RoundTrips, "make", recording)
    task_id = await create_task_with_parts(tasks, [Part(text=MESSAGE)])
    claim = await tasks.claim_run(task_id)
    await tasks.append_events(claim, chunk(LARGE))
    await tasks.settle_run(claim, status(COMPLETED, LARGE), written_count=1)

    assert len(sizes) > 100
    assert max(sizes) < len(LARGE)
    assert repr(await tasks.all_values()).count(MESSAGE) == 1
    assert claim.turn.request.message.parts[0].text == MESSAGE
    task = await tasks.task(task_id)
    assert [task.history[0].parts[0].text, task.artifacts[0].parts[0].text] == [MESSAGE, LARGE]
    assert task.status.message.parts[0].text == LARGE
    await tasks.require_consistent(task_id)


async def test_a_large_message_of_smaller_parts_does_not_enter_lua(redis_server: EmbeddedRedis, tasks: Seeds) -> None:
    store = AsyncStore(redis_server.store_url, Blobs(None, tasks.keys, 256 * 1024))
    parts = [Part(text=str(n) * 100_000) for n in range(5)]

    task_id = await create_task_with_parts(Seeds(store, tasks.keys), parts)

    assert len(await blobs_of(tasks, task_id)) == len(parts)
    assert list((await tasks.task(task_id)).history[0].parts) == parts
    await store.aclose()


@pytest.mark.parametrize(
    ("has_object_store", "threshold", "blob_count"),
    [(False, None, 0), (False, 1024, 4), (False, 1 << 20, 0), (True, 1024, 4), (True, 100_000, 2), (True, 1 << 20, 0)],
)
async def test_a_large_request_is_stored_completely_with_any_threshold(
    redis_server: EmbeddedRedis,
    tasks: Seeds,
    tmp_path: Path,
    has_object_store: bool,
    threshold: int | None,
    blob_count: int,
) -> None:
    object_store = ObjectStore(f"file://{tmp_path}") if has_object_store else None
    blobs = None if threshold is None else Blobs(object_store, tasks.keys, threshold)
    store = AsyncStore(redis_server.store_url, blobs)
    seeds = Seeds(store, tasks.keys)
    parts = [Part(text=str(n) * size, filename="f") for n, size in enumerate((3, 5000, 20_000, 150_000, 200_000))]
    call = parts_request(parts, "large")
    operation = create_task(tasks.keys, ANN, "large", CONTEXT, call, caller=b"{}", retention=RETENTION)

    created = await store.run(operation)
    claim = await seeds.claim_run("large")
    await seeds.settle_run(claim, status(INPUT_REQUIRED))
    names = [*await blobs_of(tasks, "large"), *(tmp_path / "task-large").glob("*")]
    continued = await store.run(continue_task(tasks.keys, ANN, "large", call, "", caller=b"{}", nonce="n"))

    assert len(names) == blob_count
    assert begins(created)
    assert begins(continued)
    assert list(created.task.history[0].parts) == parts
    assert list(claim.turn.request.message.parts) == parts
    assert list((await seeds.claim_run("large", run=2)).turn.request.message.parts) == parts
    assert [list(message.parts) for message in (await seeds.task("large")).history if message.role == 1] == [parts] * 2
    await tasks.require_consistent("large")
    await store.aclose()


async def test_blobs_live_and_expire_with_their_task(tasks: Seeds) -> None:
    task_id = await create_task_with_parts(tasks, [Part(text=MESSAGE)])
    claim = await tasks.claim_run(task_id)
    await tasks.append_events(claim, chunk(LARGE))
    live_blobs = await blobs_of(tasks, task_id)
    await tasks.settle_run(claim, status(COMPLETED, LARGE + "."), written_count=1)
    expiries = await blobs_of(tasks, task_id)

    assert list(live_blobs.values()) == [-1, -1]
    assert len(expiries) == 3
    assert all(0 < seconds <= RETENTION for seconds in expiries.values())
    assert 0 < await tasks.store.redis.ttl(tasks.keys.blobs_of(task_id)) <= RETENTION


async def test_blobs_are_deleted_with_their_task(tasks: Seeds) -> None:
    task_id = await create_task_with_parts(tasks, [Part(text=MESSAGE)])
    await tasks.store.run(delete_task(tasks.keys, ANN, task_id))

    assert await blobs_of(tasks, task_id) == {}


async def test_blobs_count_once_toward_the_size_and_the_sums(tasks: Seeds, keys: Keys) -> None:
    sections = limit_sections(keys, owner_bytes=12_000)

    async def create(text: str) -> Any:
        task_id = str(uuid4())
        message_request = parts_request([Part(text=text)], task_id)
        options: dict[str, Any] = {"caller": b"{}", "retention": RETENTION, "sections": sections}
        operation = create_task(keys, ANN, task_id, CONTEXT, message_request, **options)
        return task_id, await tasks.store.run(operation)

    task_id, first = await create(MESSAGE)
    _, refusal = await create("y" * 7000)
    _, second = await create(MESSAGE)

    assert begins(first)
    assert begins(second)
    assert reason_of(refusal) is Reason.LIMITED
    assert len(MESSAGE) < await size_of(tasks, task_id) < 1.3 * len(MESSAGE)
    sums = await tasks.store.redis.hgetall(keys.stored)
    assert 2 * len(MESSAGE) < sum(map(int, sums.values())) < 2.6 * len(MESSAGE)
    size_before = await size_of(tasks, task_id)
    claim = await tasks.claim_run(task_id)
    for n in range(3):
        await tasks.append_events(claim, chunk(LARGE), written_count=n)
    assert await size_of(tasks, task_id) - size_before < len(LARGE) + 3 * THRESHOLD


async def test_the_blobs_of_a_refused_operation_expire_within_a_second(tasks: Seeds, keys: Keys) -> None:
    task_id = await create_task_with_parts(tasks, [Part(text=MESSAGE)])
    claim = await tasks.claim_run(task_id)
    blobs = await blobs_of(tasks, task_id)

    await continue_with(tasks, task_id, LARGE, sections=limit_sections(keys, owner_bytes=1))
    await continue_with(tasks, task_id, LARGE, max_bytes=6000)
    await tasks.store.run(append(keys, claim.ref, token="lost", written_count=0, events=[chunk(LARGE)]))
    assert await blobs_of(tasks, task_id) == blobs
    await tasks.settle_run(claim, status(COMPLETED))
    assert reason_of(await continue_with(tasks, task_id, LARGE)) is Reason.ENDED

    assert set(await blobs_of(tasks, task_id)) == set(blobs)


@pytest.mark.parametrize("is_blocking", [True, False])
async def test_a_refused_message_keeps_the_blobs_that_its_task_has(
    tasks: Seeds, keys: Keys, redis_server: EmbeddedRedis, is_blocking: bool
) -> None:
    claim = await tasks.claim_run()
    task_id = claim.ref.task_id
    await tasks.append_events(claim, chunk(LARGE))
    names = await blobs_of(tasks, task_id)
    refused = append(keys, claim.ref, token="lost", written_count=1, events=[chunk(LARGE), chunk(MESSAGE)])

    if is_blocking:
        operators = SyncStore(redis_server.store_url, Blobs(None, keys, THRESHOLD))
        operators.run(refused)
        operators.close()
    else:
        await tasks.store.run(refused)

    assert await blobs_of(tasks, task_id) == names
    assert (await tasks.task(task_id)).artifacts[0].parts[0].text == LARGE


async def test_a_successful_operation_takes_one_call(tasks: Seeds, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    make = RoundTrips.make

    async def recording(self: RoundTrips, commands: Sequence[Command]) -> list[Any]:
        names.extend(str(command[0]) for command in commands)
        return await make(self, commands)

    claim = await tasks.claim_run()
    await tasks.append_events(claim, chunk("small"))
    monkeypatch.setattr(RoundTrips, "make", recording)

    await tasks.append_events(claim, chunk(LARGE), written_count=1)

    assert names == ["SET", "EVALSHA"]


async def test_a_cancelled_caller_leaves_no_blob(tasks: Seeds, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = await tasks.claim_run()
    refused = append(keys, claim.ref, token="lost", written_count=0, events=[chunk(LARGE)])
    put, is_written = RedisBlobs.put, asyncio.Event()

    async def announce(self: RedisBlobs, name: str, content: bytes) -> None:
        await put(self, name, content)
        is_written.set()
        await asyncio.sleep(0)

    monkeypatch.setattr(RedisBlobs, "put", announce)
    call = asyncio.create_task(tasks.store.run(refused))
    await is_written.wait()

    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call

    async def is_discarded() -> bool:
        return not [key async for key in tasks.store.redis.scan_iter(keys.blob(claim.ref.task_id, "*"))]

    await eventually_async(is_discarded)


async def test_a_blob_of_a_killed_writer_expires(tasks: Seeds, keys: Keys) -> None:
    await tasks.create_task(task_id="t")
    redis_blobs = RedisBlobs(keys, RoundTrips(tasks.store.redis.connection_pool, 5))

    await redis_blobs.put(NAME, LARGE.encode())  # the writer is killed before it runs the script

    assert 0 < await tasks.store.redis.ttl(keys.blob("t", "digest")) <= EXPIRY


@pytest.mark.parametrize("lost", [1, 2])
async def test_blobs_that_expired_before_the_script_are_written_again(
    tasks: Seeds, keys: Keys, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    claim = await tasks.claim_run()
    task_id, put = claim.ref.task_id, RedisBlobs.put
    names: list[str] = []

    async def put_and_lose_one(self: RedisBlobs, name: str, content: bytes) -> None:
        await put(self, name, content)
        names.append(name)
        if len(names) == lost:  # the process was frozen for longer than the expiry
            await tasks.store.redis.delete(key_of(keys, name))

    monkeypatch.setattr(RedisBlobs, "put", put_and_lose_one)
    await tasks.append_events(claim, chunk(LARGE), chunk(LARGE + "2"))

    assert len(names) == 4
    assert list((await blobs_of(tasks, task_id)).values()) == [-1, -1]
    assert len((await tasks.task(task_id)).artifacts[0].parts) == 1


async def test_a_script_without_its_blobs_changes_nothing(tasks: Seeds, keys: Keys) -> None:
    refused: set[str] = set()
    for make in VERBS:
        await tasks.store.redis.flushall()
        operation = await make(keys, tasks)
        if not operation.script.keeps_blobs:
            continue
        blob_keys = [keys.blob(tag_in(operation.keys), name) for name in ("stored", "missing")]
        await tasks.store.redis.set(blob_keys[0], "content")
        data = await tasks.all_values()

        for missing in ([*blob_keys], [keys.blobs]):
            with pytest.raises(BlobMissing):
                await tasks.store.run(replace(operation, keys=[*operation.keys, *missing]))

        assert await tasks.all_values() == data, operation.script.name
        refused.add(operation.script.name)

    await tasks.store.redis.flushall()
    scripts = [script(path.stem) for path in script_files()]
    assert refused == {each.name for each in scripts if each.keeps_blobs}


async def test_a_repeated_call_changes_nothing(tasks: Seeds, keys: Keys) -> None:
    claim = await tasks.claim_run()
    task_id = claim.ref.task_id
    operation = append(keys, claim.ref, token=claim.token, written_count=0, events=[chunk(LARGE)])
    await tasks.store.run(operation)
    size = await size_of(tasks, task_id)

    await tasks.store.run(operation)

    assert (await size_of(tasks, task_id), len(await blobs_of(tasks, task_id))) == (size, 1)
    assert len((await tasks.task(task_id)).artifacts[0].parts) == 1


@pytest.mark.parametrize("method", ["waiting", "begun", "steer"])
async def test_further_messages_reach_the_next_run(tasks: Seeds, method: str) -> None:
    claim = await tasks.claim_run()
    task_id = claim.ref.task_id
    if method == "begun":
        await tasks.settle_run(claim, status(INPUT_REQUIRED))
        assert begins(await continue_with(tasks, task_id, MESSAGE))
    else:
        result = await continue_with(tasks, task_id, MESSAGE, on_message="queue" if method == "waiting" else "steer")
        assert waits(result) == (method == "waiting")
        await tasks.settle_run(claim, status(INPUT_REQUIRED))

    next_claim = await tasks.claim_run(task_id, run=2)

    assert next_claim.turn.request.message.parts[0].text == MESSAGE
    assert (await tasks.task(task_id)).history[-1].parts[0].text == MESSAGE
    assert list((await blobs_of(tasks, task_id)).values()) == [-1]


async def test_the_blobs_of_a_journal_are_deleted_with_the_journal(tasks: Seeds, keys: Keys) -> None:
    first = await tasks.claim_run(max_attempts=2)
    task_id = first.ref.task_id
    entry = JournalEntry("fetch#1", "step", "json", b'"' + b"x" * 5000 + b'"', 1, 1)
    await tasks.append_events(first, entry)
    [name] = await blobs_of(tasks, task_id)
    await tasks.recover_run(first.ref)
    next_claim = await tasks.claim_run(task_id, run=2)
    with_journal = await size_of(tasks, task_id)

    await tasks.settle_run(next_claim, status(COMPLETED))

    assert name.startswith("journal-1/")
    assert next_claim.journal.entries == {"fetch#1": entry}
    assert await blobs_of(tasks, task_id) == {}
    assert await size_of(tasks, task_id) < with_journal - 5000
    assert await tasks.store.run(blobs_in_use(keys)) == 0


async def test_a_requeued_dead_letter_has_copies_of_its_blobs(
    tasks: Seeds, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    task_id = await create_task_with_parts(tasks, [Part(text=MESSAGE)])
    claim = await tasks.claim_run(task_id)
    entry = JournalEntry("fetch#1", "step", "json", b'"' + b"x" * 5000 + b'"', 1, 1)
    await tasks.append_events(claim, entry)
    assert (await tasks.recover_run(claim.ref)).outcome == "failed"
    operators = SyncStore(redis_server.store_url, Blobs(None, keys, THRESHOLD))
    dead_letter = operators.run(read_dead_letter(keys, task_id))
    assert isinstance(dead_letter, DeadLetter)
    assert operators.run(requeue_task(keys, dead_letter, "new", retention=RETENTION, options=b"")) == "requeued"
    operators.close()
    old_blobs = await blobs_of(tasks, task_id)
    await tasks.store.redis.delete(*[key async for key in tasks.store.redis.scan_iter(f"*{{{task_id}}}*")])

    next_claim = await tasks.claim_run("new")

    assert all(0 < seconds <= RETENTION for seconds in old_blobs.values())
    assert len(old_blobs) == 1  # the journal has moved
    assert next_claim.turn.request.message.parts[0].text == MESSAGE
    assert next_claim.journal.entries == {"fetch#1": entry}
    assert (await tasks.task("new")).history[0].parts[0].text == MESSAGE


async def test_the_last_events_of_a_suspended_run_have_blobs(tasks: Seeds, keys: Keys) -> None:
    claim = await tasks.claim_run()
    journal_entry = JournalEntry("sleep#1", "sleep", "json", b"", 1, 1)
    wait = Wait(journal_entry, journal_entry, wait_us=60_000_000)
    options: dict[str, Any] = {"token": claim.token, "written_count": 0, "options": b"", "wait": wait}

    result = await tasks.store.run(
        suspend_run(keys, claim.ref, events=[status(WORKING, MESSAGE), chunk(LARGE)], **options)
    )

    assert isinstance(result, SuspendedRun)
    assert list((await blobs_of(tasks, claim.ref.task_id)).values()) == [-1, -1]
    assert (await tasks.task(claim.ref.task_id)).artifacts[0].parts[0].text == LARGE


async def test_a_full_store_refuses_a_large_message(tasks: Seeds) -> None:
    redis = tasks.store.redis
    task_id = await create_task_with_parts(tasks, [Part(text=MESSAGE)])
    data_before = await tasks.all_values()
    await redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable, match="OOM"):
            await create_task_with_parts(tasks, [Part(text=MESSAGE)], "refused")
        with pytest.raises(StoreUnavailable, match="OOM"):
            await continue_with(tasks, task_id, LARGE)
    finally:
        await redis.config_set("maxmemory", 0)

    assert await tasks.all_values() == data_before


async def test_a_missing_or_corrupt_blob_is_reported(tasks: Seeds, keys: Keys) -> None:
    task_id = await create_task_with_parts(tasks, [Part(text=MESSAGE)])
    [name] = await blobs_of(tasks, task_id)
    key = keys.blob(task_id, name)
    content = await tasks.store.redis.get(key)
    assert content is not None

    await tasks.store.redis.set(key, content[:-1] + b"y")
    with pytest.raises(BlobsUnavailable, match="is corrupt"):
        await tasks.task(task_id)
    await tasks.store.redis.delete(key)
    with pytest.raises(BlobsUnavailable, match="Redis has no blob"):
        await tasks.task(task_id)
    await tasks.store.redis.set(key, content)
    assert (await tasks.task(task_id)).history[0].parts[0].text == MESSAGE


async def test_a_process_with_an_object_store_reads_blobs_in_redis(
    tasks: Seeds, blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys
) -> None:
    task_id = await create_task_with_parts(tasks, [Part(text=MESSAGE)])
    claim = await blob_seeds.claim_run(task_id)

    await blob_seeds.append_events(claim, chunk(LARGE))

    assert claim.turn.request.message.parts[0].text == MESSAGE
    assert (await blob_seeds.task(task_id)).artifacts[0].parts[0].text == LARGE
    with pytest.raises(BlobsUnavailable, match="A2A_BLOB_URL"):
        await tasks.task(task_id)
    await blob_seeds.settle_run(claim, status(COMPLETED), written_count=1)
    assert all(0 < seconds <= RETENTION for seconds in (await blobs_of(tasks, task_id)).values())


async def test_a_server_without_the_script_receives_its_text(tasks: Seeds) -> None:
    await tasks.store.redis.script_flush()

    task_id = await create_task_with_parts(tasks, [Part(text=MESSAGE)])

    assert (await tasks.task(task_id)).history[0].parts[0].text == MESSAGE


async def test_blobs_of_a_task_that_ended_before_the_archive_wait_with_it(
    in_redis: AsyncStore, keys: Keys, tasks: Seeds
) -> None:
    task_id = await create_task_with_parts(tasks, [Part(text=LARGE)])
    await tasks.settle_run(await tasks.claim_run(task_id), status(COMPLETED))
    await in_redis.redis.hset(keys.installation, "schema", SCHEMA)
    await require_schema(in_redis, keys, archive=True)

    await in_redis.run(update_archive_backlog(keys, "0"))

    assert set((await blobs_of(tasks, task_id)).values()) == {-1}
    assert await in_redis.redis.ttl(keys.blobs_of(task_id)) == -1
    await in_redis.run(read_archive_state(keys, give_up=True))
    await in_redis.run(update_archive_backlog(keys, "0"))
    assert set((await blobs_of(tasks, task_id)).values()) == {RETENTION}
