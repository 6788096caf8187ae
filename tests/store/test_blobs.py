"""Large parts in the object store. Code outside of the store receives complete parts."""

from __future__ import annotations

import pytest
from a2a.types import (
    Artifact,
    ListTasksRequest,
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
)
from google.protobuf.struct_pb2 import Struct, Value
from hypothesis import given, settings
from hypothesis import strategies as st

from a2a_celery.errors import BlobsUnavailable
from a2a_celery.lifecycle import encode, fold
from a2a_celery.lifecycle.events import decode
from a2a_celery.lifecycle.outcomes import status_event
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.blobs.references import MARK, READING, Encoded, Reading, decode_stored, is_resolved
from a2a_celery.store.log.pages import read_log
from a2a_celery.store.runs.commands import Claim, append, claim_run
from a2a_celery.store.tasks.commands import continue_task, read_task
from tests.support.store.blob_setup import THRESHOLD, BlobSetup, create_task_with_parts
from tests.support.store.pages import list_page
from tests.support.store.replies import begins
from tests.support.store.seeds import ANN, LEASE_US, RETENTION, Seeds, chunk, request, status

LARGE = "x" * 5000


def parts_of_each_kind(size: int) -> list[Part]:
    """Return a part of each kind, of about `size` bytes and with metadata."""
    data = Value()
    data.struct_value.update({"rows": ["ä" * (size // 2)], "b": 1.5, "a": None})
    metadata = Struct()
    metadata.update({"k": "v"})
    return [
        Part(text="é" * (size // 2), metadata=metadata),
        Part(raw=bytes(n % 256 for n in range(size)), filename="a.bin", media_type="application/x-b"),
        Part(data=data, media_type="application/json"),
        Part(url="https://example.com/" + "u" * size),
    ]


def with_parts(parts: list[Part], artifact_id: str = "a", **fields: bool) -> TaskArtifactUpdateEvent:
    return TaskArtifactUpdateEvent(artifact=Artifact(artifact_id=artifact_id, parts=parts), **fields)


@settings(max_examples=80)
@given(
    sizes=st.lists(
        st.one_of(st.integers(0, 40), st.integers(THRESHOLD - 40, THRESHOLD + 40), st.just(9000)), max_size=6
    ),
    kind=st.integers(0, 3),
)
def test_parts_in_the_object_store_are_read_unchanged(sizes: list[int], kind: int) -> None:
    parts = [parts_of_each_kind(size)[(n + kind) % 4] for n, size in enumerate(sizes)]
    task = Task(id="t", history=[Message(message_id="m", parts=parts[::2])], artifacts=[Artifact(parts=parts[1::2])])
    task.status.message.parts.extend(parts[:1])
    for event in (task, task.history[0], with_parts(parts), status_event("t", "c", COMPLETED, task.status.message)):
        encoded_event, blobs = Encoded(encode(event)).extract_blobs("t", THRESHOLD)
        reading = Reading(blobs)
        reset_token = READING.set(reading)
        try:
            response = decode_stored(encoded_event)
        finally:
            READING.reset(reset_token)

        assert response == StreamResponse.FromString(encode(event))
        assert not reading.missing
        assert all(len(blob) > THRESHOLD for blob in blobs.values())
        inside = [part for part in parts if part.ByteSize() > THRESHOLD]
        assert {part.SerializeToString(deterministic=True) for part in inside} >= set(blobs.values())
        assert len(encoded_event) < 600 + 5 * THRESHOLD + 300 * len(parts)


@pytest.mark.parametrize("size", [THRESHOLD // 4, THRESHOLD - 1, THRESHOLD, THRESHOLD + 1, 100_000])
async def test_every_reader_gets_the_written_parts(
    blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys, size: int
) -> None:
    parts = parts_of_each_kind(size)
    task_id = await create_task_with_parts(blob_seeds, parts)
    claim = await blob_seeds.claim_run(task_id)
    await blob_seeds.append_events(claim, with_parts(parts), with_parts(parts, append=True))
    pause = status(INPUT_REQUIRED)
    pause.status.message.CopyFrom(Message(message_id="m", role=Role.ROLE_AGENT, parts=parts))
    await blob_seeds.settle_run(claim, pause, written_count=2)

    task = await blob_seeds.task(task_id)
    page = await list_page(blob_setup.store, keys, ANN, ListTasksRequest(include_artifacts=True), retention=RETENTION)

    assert list(claim.turn.request.message.parts) == list(claim.task.history[0].parts) == parts
    assert list(task.history[0].parts) == list(task.status.message.parts) == parts
    assert [list(artifact.parts) for artifact in task.artifacts] == [parts + parts]
    assert list(page.tasks) == [task]
    assert fold(await blob_seeds.log(task_id)) == task
    assert bool(blob_setup.blobs_of(task_id)) == (size > THRESHOLD - 200)
    await blob_seeds.require_consistent(task_id)


async def test_redis_holds_references_only(blob_setup: BlobSetup, blob_seeds: Seeds, store: AsyncStore) -> None:
    task_id = await create_task_with_parts(blob_seeds, [Part(text=LARGE)])
    claim = await blob_seeds.claim_run(task_id)
    await blob_seeds.append_events(claim, chunk(LARGE + "1"))

    stored_text = repr(await blob_seeds.all_values())

    assert "xxxx" not in stored_text
    assert len(blob_setup.blobs_of(task_id)) == 2
    assert (
        blob_setup.object_store.written == [f"{task_id}/{path.name}" for path in (blob_setup.blobs_of(task_id))]
        or len(blob_setup.object_store.written) == 2
    )  # the message and the chunk


async def test_small_parts_do_not_use_the_object_store(blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys) -> None:
    blob_setup.object_store.is_down = True
    claim = await blob_seeds.claim_run()
    await blob_seeds.append_events(
        claim, *(chunk("small") for _ in range(30)), with_parts([Part(text="s" * 900)] * 30, append=True)
    )

    [text, *others] = (await blob_seeds.task(claim.ref.task_id)).artifacts[0].parts
    assert (text.text, len(others)) == ("small" * 30 + "s" * 900, 29)
    assert await blob_setup.store.redis.exists(keys.blobs) == 0


async def test_a_chunk_costs_the_same_at_ten_and_at_five_hundred(
    blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys
) -> None:
    claim = await blob_seeds.claim_run()

    async def cost(version: int) -> dict[str, int]:
        async def calls() -> dict[str, int]:
            return {name: stat["calls"] for name, stat in (await blob_setup.store.redis.info("commandstats")).items()}

        calls_before = await calls()
        await blob_seeds.append_events(claim, chunk(f"{version} {LARGE}"), written_count=version)
        calls_after = await calls()
        return {
            n: c - calls_before.get(n, 0)
            for n, c in calls_after.items()
            if c != calls_before.get(n, 0) and n != "cmdstat_info"
        }

    await cost(0)
    early_cost = await cost(1)
    await blob_seeds.append_events(claim, *(chunk(f"{n} {LARGE}") for n in range(2, 500)), written_count=2)
    late_cost = await cost(500)

    assert early_cost == late_cost
    assert early_cost["cmdstat_evalsha"] == 2  # the task is registered and the event written
    assert len(blob_setup.object_store.written) == 501


async def test_a_repeated_call_stores_a_blob_once(blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys) -> None:
    claim = await blob_seeds.claim_run()
    operation = append(keys, claim.ref, token=claim.token, written_count=0, events=[chunk(LARGE)])
    again_by_another = append(keys, claim.ref, token=claim.token, written_count=0, events=[chunk(LARGE)])

    for call in (operation, operation, again_by_another):
        await blob_setup.store.run(call)

    assert len((await blob_seeds.task(claim.ref.task_id)).artifacts[0].parts) == 1
    assert len(blob_setup.blobs_of(claim.ref.task_id)) == 1
    assert len(set(blob_setup.object_store.written)) == 1


async def test_two_tasks_share_no_blob(blob_setup: BlobSetup, blob_seeds: Seeds) -> None:
    first, second = [await create_task_with_parts(blob_seeds, [Part(text=LARGE)]) for _ in range(2)]

    assert [path.name for path in blob_setup.blobs_of(first)] == [path.name for path in blob_setup.blobs_of(second)]
    assert blob_setup.blobs_of(first) != blob_setup.blobs_of(second)


async def test_nothing_is_stored_while_the_object_store_is_unavailable(
    blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys
) -> None:
    claim = await blob_seeds.claim_run()
    data_before = await blob_seeds.all_values()
    blob_setup.object_store.is_down = True

    with pytest.raises(BlobsUnavailable):
        await create_task_with_parts(blob_seeds, [Part(text=LARGE)], "new")
    with pytest.raises(BlobsUnavailable):
        await blob_seeds.append_events(claim, chunk(LARGE))

    data_after = await blob_seeds.all_values()
    assert data_after.pop(keys.blobs) is not None  # registered, so that a late write is found
    assert data_after == data_before
    blob_setup.object_store.is_down = False
    await blob_seeds.append_events(claim, chunk(LARGE))


async def test_a_task_is_never_read_in_part(blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys) -> None:
    task_id = await create_task_with_parts(blob_seeds, [Part(text=LARGE)])
    blob_setup.object_store.is_down = True
    with pytest.raises(BlobsUnavailable):
        await blob_seeds.task(task_id)
    with pytest.raises(BlobsUnavailable):
        await blob_seeds.log(task_id)
    blob_setup.object_store.is_down = False
    [path] = blob_setup.blobs_of(task_id)
    content = path.read_bytes()

    path.write_bytes(content[:-1])
    with pytest.raises(BlobsUnavailable, match=r"is corrupt: it has \d+ bytes instead of"):
        await blob_seeds.task(task_id)
    path.write_bytes(content[:-1] + b"y")
    with pytest.raises(BlobsUnavailable, match="is corrupt: its content has another SHA-256 digest"):
        await blob_seeds.task(task_id)
    path.unlink()
    with pytest.raises(BlobsUnavailable, match="could not read the blob: not found"):
        await blob_seeds.task(task_id)
    path.write_bytes(content)
    assert (await blob_seeds.task(task_id)).history[0].parts[0].text == LARGE


async def test_a_process_without_blob_url_refuses_tasks_with_blobs(
    blob_setup: BlobSetup, blob_seeds: Seeds, store: AsyncStore, keys: Keys
) -> None:
    task_id = await create_task_with_parts(blob_seeds, [Part(text=LARGE)])

    with pytest.raises(BlobsUnavailable, match="A2A_BLOB_URL"):
        await store.run(read_task(keys, ANN, task_id))
    stored_task = await store.run(read_task(keys, ANN, task_id, resolve_blobs=False))
    assert stored_task is not None
    assert not is_resolved(stored_task[0])


async def test_a_client_can_not_write_a_reference(blob_setup: BlobSetup, blob_seeds: Seeds) -> None:
    victim = await create_task_with_parts(blob_seeds, [Part(text=LARGE + "secret")])
    name = blob_setup.object_store.written[-1]
    table = f'[[0,"{name}",5006]]'.encode()
    guesses = [
        Part(raw=b"\x00" + len(table).to_bytes(4, "big") + table),
        Part(url=f"a2a-celery-blob:{'0' * 32}:5006:{name}"),
    ]

    task_id = await create_task_with_parts(blob_seeds, guesses)

    assert victim not in task_id
    assert list((await blob_seeds.task(task_id)).history[0].parts) == guesses
    event = status(WORKING, **{f"\x00\x00\x00\x00{chr(len(table))}{table.decode()}": 1})
    await blob_seeds.append_events(await blob_seeds.claim_run(task_id), event)
    assert dict((await blob_seeds.task(task_id)).metadata) == dict(event.metadata)


async def test_a_page_ends_early_after_large_parts(blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys) -> None:
    blob_bytes = 12_000
    ids = [await create_task_with_parts(blob_seeds, [Part(text=LARGE)]) for _ in range(5)]
    claim = await blob_seeds.claim_run(ids[0])
    await blob_seeds.append_events(claim, *(chunk(f"{n} {LARGE}") for n in range(6)))

    first = await blob_setup.store.run(read_log(keys, ids[0], 0, blob_bytes=blob_bytes))
    read_entries, version = [], 0
    while page := (await blob_setup.store.run(read_log(keys, ids[0], version, blob_bytes=blob_bytes))).entries:
        read_entries += page
        version = page[-1].version
    token, task_ids = "", []
    while True:
        list_request = ListTasksRequest(page_size=4, page_token=token)
        answer = await list_page(blob_setup.store, keys, ANN, list_request, retention=RETENTION, blob_bytes=blob_bytes)
        assert len(answer.tasks) <= 3
        task_ids += [task.id for task in answer.tasks]
        token = answer.next_page_token
        if not token:
            break

    assert (len(first.entries), first.version) == (4, 8)  # SUBMITTED, WORKING without a message, and two chunks
    assert [entry.version for entry in read_entries] == list(range(1, 9))
    assert sorted(task_ids) == sorted(ids)


async def test_a_page_without_artifacts_reads_none(blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys) -> None:
    claim = await blob_seeds.claim_run()
    await blob_seeds.append_events(claim, chunk(LARGE))

    answer = await list_page(blob_setup.store, keys, ANN, ListTasksRequest(), retention=RETENTION)

    assert len(answer.tasks) == 1
    assert blob_setup.object_store.reads == 0


async def test_recovery_needs_no_object_store(blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys) -> None:
    task_id = await create_task_with_parts(blob_seeds, [Part(text=LARGE)])
    claim = await blob_seeds.claim_run(task_id, max_attempts=2)
    other_chunk = chunk(LARGE + "closed", "closed", append=False)
    other_chunk.last_chunk = True
    await blob_seeds.append_events(claim, other_chunk, chunk(LARGE + "open", "open", append=False))
    blob_setup.object_store.is_down = True

    lapse = await blob_seeds.recover_run(claim.ref)

    blob_setup.object_store.is_down = False
    task = await blob_seeds.task(task_id)
    assert lapse.outcome == "again"
    assert [artifact.parts[0].text for artifact in task.artifacts] == [LARGE + "closed"]
    assert task.history[0].parts[0].text == LARGE
    await blob_seeds.require_consistent(task_id)
    assert MARK not in str(await blob_seeds.log(task_id))


async def test_a_further_message_is_accepted_although_the_task_cannot_be_read(
    blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys
) -> None:
    claim = await blob_seeds.claim_run()
    await blob_seeds.settle_run(claim, chunk(LARGE), status(INPUT_REQUIRED))
    blob_setup.object_store.is_down = True

    answer = await blob_setup.store.run(
        continue_task(keys, ANN, claim.ref.task_id, request(task_id=claim.ref.task_id), "", caller=b"{}", nonce="n")
    )

    assert begins(answer)
    assert not answer.is_resolved


async def test_a_claim_can_be_asked_for_its_parts_later(blob_setup: BlobSetup, blob_seeds: Seeds, keys: Keys) -> None:
    task_id = await create_task_with_parts(blob_seeds, [Part(text=LARGE)])
    blob_setup.object_store.is_down = True

    def claim(resolve_blobs: bool):  # type: ignore[no-untyped-def]
        return claim_run(
            keys,
            RunRef(task_id, 1),
            token="t",
            runner="r",
            lease_us=LEASE_US,
            working=True,
            resolve_blobs=resolve_blobs,
        )

    first = await blob_setup.store.run(claim(False))
    blob_setup.object_store.is_down = False
    second = await blob_setup.store.run(claim(True))

    assert isinstance(first, Claim)
    assert isinstance(second, Claim)
    assert (first.snapshot.is_resolved, second.snapshot.is_resolved) == (False, True)
    assert first.snapshot.version == second.snapshot.version
    assert second.turn.request.message.parts[0].text == LARGE


def test_a_stored_message_without_references_is_read_unchanged() -> None:
    event = chunk("x")

    assert decode(encode(event)) == event
