"""Writes that replicas must confirm. Without a confirmation, the store client refuses a message, but accepts the end of
a task and logs a warning."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from a2a.types import Message, Part, Role, TaskState
from redis.exceptions import ResponseError

from a2a_celery.errors import StoreUnavailable
from a2a_celery.lifecycle.journal import JournalEntry, RunRecord
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import COMPLETED, WORKING
from a2a_celery.store import AsyncStore, Keys, SyncStore
from a2a_celery.store.blobs.blob_store import Blobs
from a2a_celery.store.client import replication
from a2a_celery.store.client.connection import MAX_BATCH, MAX_SENDERS, REPLICA_TIMEOUT_MS
from a2a_celery.store.runs.commands import append
from a2a_celery.store.tasks.commands import create_task, read_task, request_cancel
from a2a_celery.store.tasks.signals import SignalStored, send_signal
from tests.support.processes.restarts import installed_servers
from tests.support.processes.sentinels import SentinelGroup, running_sentinels
from tests.support.store.blob_setup import THRESHOLD, parts_request
from tests.support.store.replies import begins
from tests.support.store.scripts import script_files
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, chunk, status

pytestmark = pytest.mark.merge

UNLISTED = {"append"}
"""Scripts that may end a task, and are not in `ENDING`. An append is confirmed only if it ends the task."""


ENDS = ("end_task(", "end_stopped_run(")
"""Text of the calls to the functions that may end a task."""


def test_each_script_that_may_end_a_task_is_listed() -> None:
    ending = {path.stem for path in script_files() if any(call in path.read_text() for call in ENDS)}

    assert ending - UNLISTED == replication.ENDING


def test_an_append_is_confirmed_if_it_ends_the_task(keys: Keys) -> None:
    def is_confirmed(*events: RunRecord) -> bool:
        operation = append(keys, RunRef("t", 1), token="t", written_count=0, events=events)
        return replication.Replicas(1, REPLICA_TIMEOUT_MS).confirm(operation)

    assert is_confirmed(chunk("a"), status(COMPLETED))
    assert is_confirmed(Message(role=Role.ROLE_AGENT)), "the message completes the task"
    assert not is_confirmed(Message(role=Role.ROLE_USER))
    assert not is_confirmed(JournalEntry("fetch#1", "step", "json", b"1"))
    assert not is_confirmed(chunk("a"), status(WORKING))


@pytest.fixture(params=installed_servers(), ids=str)
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SentinelGroup]:
    """Primary and replica, for each installed version of Redis."""
    with running_sentinels(tmp_path, server=request.param, replicas=1) as group:
        yield group


@pytest.fixture
async def replicated_seeds(group: SentinelGroup, keys: Keys) -> AsyncIterator[Seeds]:
    """`Seeds` with a store client that requires the confirmation of one replica."""
    store = AsyncStore(group.store_url, wait_replicas=1)
    yield Seeds(store, keys)
    await store.aclose()


@contextmanager
def freeze_replica(group: SentinelGroup) -> Iterator[None]:
    """Freeze the replica while the block runs, so that it is connected but confirms no write."""
    process = group.processes[group.ports[1]]
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


async def test_a_replica_has_accepted_messages(group: SentinelGroup, replicated_seeds: Seeds, keys: Keys) -> None:
    task_id = await replicated_seeds.create_task()

    with group.client(group.ports[1]) as replica:
        assert replica.exists(keys.task(task_id).record)


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_replica_has_the_large_parts_of_an_accepted_message(
    group: SentinelGroup, keys: Keys, blocking: bool
) -> None:
    blobs = Blobs(None, keys, THRESHOLD)
    options: dict[str, Any] = {"caller": b"{}", "retention": RETENTION}
    operation = create_task(keys, ANN, "t", CONTEXT, parts_request([Part(text="x" * 5000)], "t"), **options)
    if blocking:
        operators = SyncStore(group.store_url, blobs, wait_replicas=1)
        assert begins(operators.run(operation))
        operators.close()
    else:
        store = AsyncStore(group.store_url, blobs, wait_replicas=1)
        assert begins(await store.run(operation))
        await store.aclose()

    with group.client(group.ports[1]) as replica:
        [name] = replica.hkeys(keys.blobs_of("t"))
        assert b"x" * 5000 in replica.get(keys.blob("t", name.decode()))
        assert replica.exists(keys.task("t").record)


async def test_an_accepted_message_that_no_replica_confirms_is_refused_and_a_repetition_finds_it(
    group: SentinelGroup, replicated_seeds: Seeds, keys: Keys
) -> None:
    task_id = str(uuid4())
    with freeze_replica(group):
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas confirmed create_task within 1000 ms"):
            await replicated_seeds.create_task(task_id=task_id)
        assert await replicated_seeds.store.run(read_task(keys, ANN, task_id))

    assert await replicated_seeds.create_task(task_id=task_id) == task_id


def test_the_error_of_wait_is_the_reason_of_the_refusal(keys: Keys) -> None:
    signal = send_signal(keys, ANN, "t", name="go", payload=b"1", signal_id="s")

    [refusal] = replication.Replicas(1, REPLICA_TIMEOUT_MS).checked(
        [signal], [b"stored"], ResponseError("WAIT cannot be used with replica instances")
    )

    assert str(refusal).startswith("the replicas did not confirm send_signal (WAIT cannot be used with replica")


async def test_a_signal_that_no_replica_confirms_is_refused_and_a_repetition_stores_it_once(
    group: SentinelGroup, replicated_seeds: Seeds, keys: Keys
) -> None:
    task_id = await replicated_seeds.create_task()
    signal = send_signal(keys, ANN, task_id, name="go", payload=b"1", signal_id="s")
    with (
        freeze_replica(group),
        pytest.raises(StoreUnavailable, match="0 of 1 replicas confirmed send_signal within 1000 ms"),
    ):
        await replicated_seeds.store.run(signal)

    assert await replicated_seeds.store.run(signal) == SignalStored()
    assert await replicated_seeds.store.redis.llen(keys.task(task_id).signals) == 1


async def test_an_end_that_no_replica_confirms_counts_and_is_logged(
    group: SentinelGroup, replicated_seeds: Seeds, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    sync_store = SyncStore(group.store_url, wait_replicas=1)
    claim, canceled_id = await replicated_seeds.claim_run(), await replicated_seeds.create_task()
    caplog.set_level(logging.WARNING, logger="a2a_celery")
    with freeze_replica(group):
        await replicated_seeds.settle_run(claim, status(TaskState.TASK_STATE_COMPLETED))
        await asyncio.to_thread(sync_store.run, request_cancel(keys, ANN, canceled_id, CONTEXT))

    assert [
        (record.__dict__["a2a"]["action"], verb)
        for record, verb in zip(caplog.records, ("settle_run", "request_cancel"), strict=True)
        if f"0 of 1 replicas confirmed {verb}" in record.getMessage()
    ] == [("store.replicas_late", "settle_run"), ("store.replicas_late", "request_cancel")]
    sync_store.close()


async def test_a_late_replica_delays_no_read(group: SentinelGroup, keys: Keys) -> None:
    store = AsyncStore(group.store_url, wait_replicas=1, replica_timeout_ms=4000)
    patient_seeds = Seeds(store, keys)
    task_id = await patient_seeds.create_task()
    with freeze_replica(group):
        creates = [asyncio.create_task(patient_seeds.create_task()) for _ in range(MAX_BATCH * MAX_SENDERS)]
        await asyncio.sleep(0)
        assert await store.run(read_task(keys, ANN, task_id))
        assert not any(create.done() for create in creates)

    assert len(await asyncio.gather(*creates)) == len(creates)
    await store.aclose()
