"""Store that loses its newest writes, like a failover to a replica without them. docs/guarantees.md states what
follows from the loss of each kind of write."""

from __future__ import annotations

from a2a_celery.features.idempotency.section import IdempotencyKey
from a2a_celery.lifecycle.journal import JournalEntry
from a2a_celery.lifecycle.states import COMPLETED, FAILED, SUBMITTED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import RunLost, append, settle_run
from a2a_celery.store.runs.renewal import renew_runs
from a2a_celery.store.tasks.commands import create_task, read_task
from tests.support.store.replies import begins
from tests.support.store.seeds import ANN, CONTEXT, LEASE_US, RETENTION, Seeds, chunk, request, status


async def test_a_run_whose_recorded_step_is_lost_writes_nothing_more(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    claim = await seeds.claim_run(max_attempts=2)
    backup = await seeds.backup()
    await seeds.append_events(claim, JournalEntry("pay#1", "step", "json", b"1"))
    await seeds.restore(backup)

    end = [chunk("paid"), status(COMPLETED)]
    answer = await store.run(settle_run(keys, claim.ref, token=claim.token, written_count=1, events=end))

    assert answer == RunLost(missing=1)
    assert (await seeds.recover_run(claim.ref)).outcome == "again"


async def test_a_run_whose_claim_is_lost_is_claimed_again_and_its_first_worker_writes_nothing(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    task_id = await seeds.create_task()
    backup = await seeds.backup()
    first = await seeds.claim_run(task_id)
    await seeds.restore(backup)

    assert await seeds.states(task_id) == [SUBMITTED]
    assert (await store.run(renew_runs(keys, [(first.ref, first.token)], lease_us=LEASE_US))).lost == {first.ref.name}
    second = await seeds.claim_run(task_id)

    write = append(keys, first.ref, token=first.token, written_count=0, events=[status(COMPLETED)])
    assert isinstance(await store.run(write), RunLost)
    await seeds.settle_run(second, status(COMPLETED))
    assert await seeds.states(task_id) == [SUBMITTED, WORKING, COMPLETED]


async def test_a_run_whose_final_event_is_lost_ends_like_the_run_of_a_lost_worker(seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    backup = await seeds.backup()
    await seeds.settle_run(claim, status(COMPLETED))
    await seeds.restore(backup)
    assert (await seeds.task(claim.ref.task_id)).status.state == WORKING

    assert (await seeds.recover_run(claim.ref)).outcome == "failed"

    assert await seeds.states(claim.ref.task_id) == [SUBMITTED, WORKING, FAILED]


async def test_a_lost_message_is_unknown_and_may_be_sent_again(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    """Its message id is lost too, so that an agent with an idempotency window accepts it."""
    message, key = request(context_id=CONTEXT), IdempotencyKey.of(keys, ANN, "m", "digest of hello", 600_000)

    async def send(task_id: str) -> object:
        create = create_task(keys, ANN, task_id, CONTEXT, message, caller=b"{}", retention=RETENTION, sections=[key])
        return await store.run(create)

    backup = await seeds.backup()
    assert begins(await send("t"))
    await seeds.restore(backup)

    assert await store.run(read_task(keys, ANN, "t")) is None
    assert begins(await send("u"))
    assert await seeds.states("u") == [SUBMITTED]
