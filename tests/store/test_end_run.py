"""Runs that a different process ends. A run ends once, and only if the expected runner holds it."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.types import TaskState

from a2a_celery.lifecycle.outcomes import CANCELED_BY_CLIENT
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import (
    AUTH_REQUIRED,
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    SUBMITTED,
    WORKING,
)
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import Over, RunLost, Settled, Unchanged, append, claim_run, end_run, settle_run
from a2a_celery.store.runs.publication import acquire_due_runs, mark_published
from a2a_celery.store.runs.release import release_run
from a2a_celery.store.tasks.commands import continue_task, delete_task, request_cancel
from tests.support.store.seeds import ANN, CONTEXT, LEASE_US, RETENTION, Seeds, chunk, request, run_concurrently, status

RUNNER = "runner"
"""Prefix of the runners of `seeds`."""


@pytest.fixture
def end(store: AsyncStore, keys: Keys) -> Any:
    """Function that ends a run with the status FAILED."""

    async def end(
        task_id: str, run: int = 1, *, runner: str | None = RUNNER, is_lost: bool = False
    ) -> Over | Unchanged:
        event = status(FAILED, "The end.", why="x")
        return await store.run(end_run(keys, RunRef(task_id, run), runner=runner, event=event, lost=is_lost))

    return end


async def test_a_running_run_ends_with_its_task(store: AsyncStore, keys: Keys, seeds: Seeds, end: Any) -> None:
    claim = await seeds.claim_run()
    task_id = claim.ref.task_id
    await seeds.append_events(claim, chunk("so far"))

    assert await end(task_id) == Over(4, FAILED)

    task = await seeds.task(task_id)
    assert await seeds.states(task_id) == [SUBMITTED, WORKING, FAILED]
    assert task.status.message.parts[0].text == "The end."
    assert dict(task.metadata) == {"why": "x"}
    assert await store.redis.zcard(keys.leases) == 0
    assert 0 < await store.redis.ttl(keys.task(task_id).record) <= RETENTION
    await seeds.require_consistent(task_id)


@pytest.mark.parametrize("runner", [None, RUNNER])
async def test_an_ended_queued_run_is_not_dispatched(
    store: AsyncStore, keys: Keys, seeds: Seeds, end: Any, runner: str | None
) -> None:
    task_id = await seeds.create_task()

    assert await end(task_id, runner=runner) == Over(2, FAILED)

    assert await seeds.states(task_id) == [SUBMITTED, FAILED]
    assert await store.redis.zcard(keys.dispatch) == 0
    await seeds.require_consistent(task_id)


async def test_a_repeated_call_is_answered_alike_and_writes_nothing(seeds: Seeds, end: Any) -> None:
    for task_id in ((await seeds.claim_run()).ref.task_id, await seeds.create_task()):
        first = await end(task_id)
        data_before = await seeds.all_values()

        assert await end(task_id) == first
        assert await seeds.all_values() == data_before


@pytest.mark.parametrize("runner", [None, "another", RUNNER + ".", "run.ner", "r%a"])
async def test_a_run_of_another_worker_is_unchanged(seeds: Seeds, end: Any, runner: str | None) -> None:
    claim = await seeds.claim_run()
    data_before = await seeds.all_values()

    assert await end(claim.ref.task_id, runner=runner) == Unchanged()

    assert await seeds.all_values() == data_before


async def test_only_the_newest_run_can_be_ended(store: AsyncStore, keys: Keys, seeds: Seeds, end: Any) -> None:
    task_id = await seeds.create_task_in(INPUT_REQUIRED)
    await store.run(continue_task(keys, ANN, task_id, request("x", task_id, CONTEXT), "", caller=b"{}", nonce="n"))
    await seeds.claim_run(task_id, run=2)
    data_before = await seeds.all_values()

    assert [await end(task_id, run) for run in (0, 1, 3)] == [Unchanged()] * 3
    assert await end("unknown") == Unchanged()

    assert await seeds.all_values() == data_before


@pytest.mark.parametrize("state", [COMPLETED, FAILED, CANCELED, REJECTED, INPUT_REQUIRED, AUTH_REQUIRED])
async def test_ending_an_ended_run_changes_nothing(seeds: Seeds, end: Any, state: TaskState) -> None:
    task_id = await seeds.create_task_in(state)
    data_before = await seeds.all_values()

    assert await end(task_id) == Over(3, state)

    assert await seeds.all_values() == data_before


async def test_an_ended_run_can_write_nothing(store: AsyncStore, keys: Keys, seeds: Seeds, end: Any) -> None:
    claim = await seeds.claim_run()
    await end(claim.ref.task_id)
    data_before = await seeds.all_values()

    append_result = await store.run(append(keys, claim.ref, token=claim.token, written_count=0, events=[chunk("late")]))
    result = await store.run(
        settle_run(keys, claim.ref, token=claim.token, written_count=0, events=[status(COMPLETED)])
    )

    assert append_result == RunLost()
    assert result == Settled(3, FAILED, None)
    assert await seeds.all_values() == data_before


async def test_a_run_with_a_cancel_request_ends_canceled(store: AsyncStore, keys: Keys, seeds: Seeds, end: Any) -> None:
    claim = await seeds.claim_run()
    task_id = claim.ref.task_id
    await store.run(request_cancel(keys, ANN, task_id, CONTEXT))

    assert await end(task_id, is_lost=True) == Over(3, CANCELED)

    assert await seeds.states(task_id) == [SUBMITTED, WORKING, CANCELED]
    assert await seeds.status_text(task_id) == CANCELED_BY_CLIENT
    await seeds.require_consistent(task_id)


async def test_concurrent_calls_write_one_end(seeds: Seeds, end: Any) -> None:
    claim = await seeds.claim_run()

    answers = await run_concurrently(*(end(claim.ref.task_id) for _ in range(20)))

    assert answers == [Over(3, FAILED)] * 20
    assert await seeds.states(claim.ref.task_id) == [SUBMITTED, WORKING, FAILED]


async def test_a_run_that_its_lost_worker_had_not_claimed_is_published_again(
    store: AsyncStore, keys: Keys, seeds: Seeds, end: Any
) -> None:
    ref = RunRef(await seeds.create_task(), 1)
    await store.run(mark_published(keys, ref, delay_us=60_000_000))

    for process in (
        "host.1.",
        "host.11.",
        "host.11.",
        "host.1.",
    ):  # two lost attempts; a repeated call does not count as a third
        assert await end(ref.task_id, runner=process, is_lost=True) == Unchanged()
        (due,) = await store.run(acquire_due_runs(keys, limit=10, delay_us=60_000_000))
        assert due.ref == ref
    assert await end(ref.task_id, runner="host.111.", is_lost=True) == Over(2, FAILED)

    assert await seeds.states(ref.task_id) == [SUBMITTED, FAILED]
    await seeds.require_consistent(ref.task_id)


async def test_processes_that_were_lost_before_an_earlier_attempt_do_not_end_a_retry(
    store: AsyncStore, keys: Keys, seeds: Seeds, end: Any
) -> None:
    task_id = await seeds.create_task()
    for process in ("host.1.", "host.2."):
        assert await end(task_id, runner=process, is_lost=True) == Unchanged()
    claim = await seeds.claim_run(task_id)
    retry_arguments = {"events": [status(WORKING)], "options": b'{"retries":1}', "retries": 1, "delay_us": 1}
    await store.run(release_run(keys, claim.ref, token=claim.token, written_count=0, **retry_arguments))  # type: ignore[arg-type]

    assert await end(task_id, runner="host.3.", is_lost=True) == Unchanged()


@pytest.mark.parametrize(("retries", "is_unchanged"), [(0, True), (1, False), (None, False)])
async def test_a_message_from_before_a_retry_does_not_end_it(
    store: AsyncStore, keys: Keys, seeds: Seeds, retries: int | None, is_unchanged: bool
) -> None:
    claim = await seeds.claim_run()
    retry_arguments = {"events": [status(WORKING)], "options": b'{"retries":1}', "retries": 1, "delay_us": 1}
    await store.run(release_run(keys, claim.ref, token=claim.token, written_count=0, **retry_arguments))  # type: ignore[arg-type]

    result = await store.run(end_run(keys, claim.ref, runner=None, event=status(REJECTED), retries=retries))

    assert (result == Unchanged()) is is_unchanged
    assert (await seeds.task(claim.ref.task_id)).status.state == (WORKING if is_unchanged else REJECTED)


@pytest.mark.parametrize(("is_lost", "is_continued"), [(True, True), (False, False)])
async def test_a_lost_worker_leads_to_the_next_attempt_at_once(
    store: AsyncStore, keys: Keys, seeds: Seeds, end: Any, is_lost: bool, is_continued: bool
) -> None:
    ref = RunRef(await seeds.create_task(), 1)
    await store.run(claim_run(keys, ref, token="t", runner=RUNNER, lease_us=LEASE_US, working=True, max_attempts=2))
    start = await store.redis.time()

    answer = await end(ref.task_id, is_lost=is_lost)

    assert (answer == Unchanged()) is is_continued
    if is_continued:
        lease = await store.redis.zscore(keys.leases, ref.name)
        assert lease <= (start[0] + 10) * 1_000_000 < (start[0] * 1_000_000 + LEASE_US)
        assert await seeds.states(ref.task_id) == [SUBMITTED, WORKING]


@pytest.mark.parametrize("state", [WORKING, COMPLETED])
async def test_a_deleted_task_leaves_nothing(store: AsyncStore, keys: Keys, seeds: Seeds, state: TaskState) -> None:
    claim = await seeds.claim_run()
    await seeds.append_events(claim, chunk("so far"), status(state))
    delete = delete_task(keys, ANN, claim.ref.task_id)

    assert await store.run(delete) == 1

    assert (await seeds.all_values()).keys() == {keys.scopes}
    assert await store.run(delete) == 0
