"""Runs that a worker returns at shutdown. A returned run is fenced off, published again, and not counted as a failed
attempt."""

from __future__ import annotations

import logging

import pytest

from a2a_celery.lifecycle.outcomes import CANCELED_BY_CLIENT
from a2a_celery.lifecycle.own_metadata import ATTEMPT, MAX_ATTEMPTS, RETURNED_ATTEMPT, own_metadata
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, FAILED, SUBMITTED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import Claim, Dropped, RunLost, Unchanged, append, claim_run, settle_run
from a2a_celery.store.runs.recovery import (
    GivenUp,
    Lapse,
    Lapsed,
    Requeued,
    RunEnded,
    RunReturn,
    begin_next_attempt,
    lapsed_runs,
    return_run,
)
from a2a_celery.store.tasks.commands import request_cancel
from a2a_celery.watcher.recoverer import Recoverer
from tests.support.store.seeds import ANN, CONTEXT, LEASE_US, Seeds, chunk, run_concurrently, status

RUNNER = "here.1."


async def begin_run(
    store: AsyncStore, keys: Keys, ref: RunRef, *, max_attempts: int, runner: str = f"{RUNNER}x"
) -> Claim:
    """Claim a run for the process `runner`."""
    claim = await store.run(
        claim_run(keys, ref, token=ref.name, runner=runner, lease_us=LEASE_US, working=True, max_attempts=max_attempts)
    )
    assert isinstance(claim, Claim)
    return claim


async def give_up(store: AsyncStore, keys: Keys, ref: RunRef, *, runner: str | None = RUNNER) -> RunReturn:
    return await store.run(return_run(keys, ref, runner=runner, loss=status(FAILED, "The worker was lost.")))


async def test_an_unclaimed_run_gets_a_new_number(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    task_id = await seeds.create_task()
    ref = RunRef(task_id, 1)

    first, second = await give_up(store, keys, ref, runner=None), await give_up(store, keys, ref, runner=None)

    assert first == second == Requeued(ANN.agent, 2, b"")
    assert await seeds.states(task_id) == [SUBMITTED]
    late_result = await store.run(claim_run(keys, ref, token="t", runner="r", lease_us=LEASE_US, working=True))
    assert isinstance(late_result, Dropped)
    claim = await begin_run(store, keys, RunRef(task_id, 2), max_attempts=1)
    assert (claim.turn.attempt, claim.turn.number) == (1, 1)
    await seeds.require_consistent(task_id)


async def test_an_agent_with_one_attempt_ends_at_once(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    ref = RunRef(await seeds.create_task(), 1)
    claim = await begin_run(store, keys, ref, max_attempts=1)

    first, second = await give_up(store, keys, ref), await give_up(store, keys, ref)

    assert first == second == RunEnded(FAILED)
    assert await store.redis.zcard(keys.resubmittable) == 1, "someone may requeue it"
    assert await seeds.states(ref.task_id) == [SUBMITTED, WORKING, FAILED]
    late_settlement = settle_run(keys, ref, token=claim.token, written_count=0, events=[status(COMPLETED)])
    await store.run(late_settlement)
    assert (await seeds.task(ref.task_id)).status.state == FAILED
    await seeds.require_consistent(ref.task_id)


async def test_an_attempt_that_a_worker_gives_up_does_not_count(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    task_id = await seeds.create_task()
    for n in (1, 2, 3):
        ref = RunRef(task_id, n)
        claim = await begin_run(store, keys, ref, max_attempts=2)
        assert claim.turn.attempt == n
        await seeds.append_events(claim, chunk("half", "h", append=False))

        first, second = await give_up(store, keys, ref), await give_up(store, keys, ref)

        assert first == second == GivenUp(ANN.agent, n, n + 2)
        lapsed_run = Lapsed(ref, "agent", n, n + 2, returned=True)
        result = await store.run(append(keys, ref, token=claim.token, written_count=1, events=[chunk("late")]))
        assert result == RunLost()
        assert await begin_next_attempt(store, keys, lapsed_run, delay_us=0) == Lapse("again", n + 1, b"")
        task = await seeds.task(task_id)
        assert task.status.state == WORKING
        assert not task.artifacts
        assert dict(task.metadata) == own_metadata({ATTEMPT: n + 1, MAX_ATTEMPTS: n + 2, RETURNED_ATTEMPT: n})
    await seeds.require_consistent(task_id)

    for n in (4, 5):  # the second loss exceeds the maximum of attempts
        await begin_run(store, keys, RunRef(task_id, n), max_attempts=2)
        await store.redis.zadd(keys.leases, {f"{task_id}.{n}": 0})
        await Recoverer(store, keys).tick()

    assert (await seeds.task(task_id)).status.state == FAILED
    await seeds.require_consistent(task_id)


async def test_a_watcher_publishes_the_next_attempt_if_the_worker_does_not(
    store: AsyncStore, keys: Keys, seeds: Seeds, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "a2a_celery.watcher.recoverer")
    ref = RunRef(await seeds.create_task(), 1)
    await begin_run(store, keys, ref, max_attempts=2)
    await give_up(store, keys, ref)

    [lapsed_run] = (await store.run(lapsed_runs(keys, limit=10))).runs
    assert lapsed_run == Lapsed(ref, lapsed_run.agent, 1, 3, returned=True)
    await run_concurrently(*(Recoverer(store, keys).tick() for _ in range(4)))

    task = await seeds.task(ref.task_id)
    assert task.status.state == WORKING
    assert dict(task.metadata) == own_metadata({ATTEMPT: 2, MAX_ATTEMPTS: 3, RETURNED_ATTEMPT: 1})
    text = f"run {ref.name} of agent was returned by its worker at shutdown; run 2 follows"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("INFO", text)]


async def test_a_watcher_logs_what_follows_a_lost_run(
    store: AsyncStore, keys: Keys, seeds: Seeds, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = await seeds.create_task()
    for n in (1, 2):
        await begin_run(store, keys, RunRef(task_id, n), max_attempts=2)
        await store.redis.zadd(keys.leases, {f"{task_id}.{n}": 0})
        await Recoverer(store, keys).tick()

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"run {task_id}.1 of agent was lost; run 2 follows"),
        ("WARNING", f"run {task_id}.2 of agent was lost; its task failed: a2a requeue {task_id} runs it again"),
    ]


@pytest.mark.parametrize("max_attempts", [1, 5])
async def test_a_returned_run_with_a_cancel_request_is_canceled(
    store: AsyncStore, keys: Keys, seeds: Seeds, max_attempts: int
) -> None:
    ref = RunRef(await seeds.create_task(), 1)
    await begin_run(store, keys, ref, max_attempts=max_attempts)
    await store.run(request_cancel(keys, ANN, ref.task_id, CONTEXT))

    assert await give_up(store, keys, ref) == RunEnded(CANCELED)
    assert await store.redis.zcard(keys.resubmittable) == 0
    assert await seeds.states(ref.task_id) == [SUBMITTED, WORKING, CANCELED]
    assert await seeds.status_text(ref.task_id) == CANCELED_BY_CLIENT


@pytest.mark.parametrize("runner", [None, "here.2.", "there.1."])
async def test_a_run_of_another_worker_is_not_returned(
    store: AsyncStore, keys: Keys, seeds: Seeds, runner: str | None
) -> None:
    ref = RunRef(await seeds.create_task(), 1)
    await begin_run(store, keys, ref, max_attempts=5)

    assert await give_up(store, keys, ref, runner=runner) == Unchanged()
    assert await give_up(store, keys, RunRef(ref.task_id, 7), runner=runner) == Unchanged()
    assert await give_up(store, keys, RunRef("unknown", 1), runner=runner) == Unchanged()
