"""Timeouts of pauses. A pause times out once, and never after an answer or a cancel request."""

from __future__ import annotations

import asyncio

import pytest
from a2a.types import TaskStatus, TaskStatusUpdateEvent

from a2a_celery.lifecycle import fold
from a2a_celery.lifecycle.states import CANCELED, FAILED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.log.pages import read_log
from a2a_celery.store.runs.commands import Claim, Settled, settle_run
from a2a_celery.store.tasks.commands import continue_task, end_pauses, request_cancel
from tests.support.store.seeds import ANN, CONTEXT, Seeds, request, status
from tests.support.waiting import eventually_async

NOW = 1
LATER = 3_600_000_000


async def pause_task(store: AsyncStore, keys: Keys, seeds: Seeds, pause_us: int) -> Claim:
    """Create a task that waits for its client for `pause_us`. Return the claim of its run."""
    claim = await seeds.claim_run()
    timeout_event = TaskStatusUpdateEvent(
        task_id=claim.ref.task_id, context_id=claim.task.context_id, status=TaskStatus(state=FAILED)
    )
    timeout_event.status.message.CopyFrom(status(FAILED, "too late").status.message)
    result = await store.run(
        settle_run(
            keys,
            claim.ref,
            token=claim.token,
            written_count=0,
            events=[status(INPUT_REQUIRED, "well?")],
            pause_us=pause_us,
            pause_timeout=timeout_event,
        )
    )
    assert isinstance(result, Settled)
    return claim


async def test_concurrent_watchers_end_a_pause_once(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await pause_task(store, keys, seeds, NOW)

    async def is_ended() -> bool:
        await asyncio.gather(*(store.run(end_pauses(keys, limit=10)) for _ in range(4)))
        return (await seeds.task(claim.ref.task_id)).status.state == FAILED

    await eventually_async(is_ended)
    log = await store.run(read_log(keys, claim.ref.task_id, 0))
    assert [e.event.status.state for e in log.entries if isinstance(e.event, TaskStatusUpdateEvent)].count(FAILED) == 1
    assert fold(log.entries) == await seeds.task(claim.ref.task_id)
    assert not await store.redis.exists(keys.pauses)


@pytest.mark.parametrize("ending", ["answered", "canceled"])
async def test_an_answered_pause_is_not_listed(store: AsyncStore, keys: Keys, seeds: Seeds, ending: str) -> None:
    claim = await pause_task(store, keys, seeds, LATER)
    assert await store.redis.zcard(keys.pauses) == 1

    task_id = claim.ref.task_id
    if ending == "answered":
        message = request(task_id=task_id, context_id=CONTEXT)
        await store.run(continue_task(keys, ANN, task_id, message, "", caller=b"{}", nonce="ab"))
    else:
        await store.run(request_cancel(keys, ANN, task_id, CONTEXT))

    assert not await store.redis.exists(keys.pauses)
    if ending == "canceled":
        assert (await seeds.task(claim.ref.task_id)).status.state == CANCELED


async def test_a_pause_that_is_not_over_is_left_alone(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await pause_task(store, keys, seeds, LATER)

    assert await store.run(end_pauses(keys, limit=10)) == 0
    assert (await seeds.task(claim.ref.task_id)).status.state == INPUT_REQUIRED


async def test_a_pause_without_an_end_is_listed_and_never_ended(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await pause_task(store, keys, seeds, 0)

    assert await store.redis.zcard(keys.pauses) == 1
    assert await store.run(end_pauses(keys, limit=10)) == 0
    await store.run(request_cancel(keys, ANN, claim.ref.task_id, CONTEXT))
    assert not await store.redis.exists(keys.pauses)
