"""Revocation of runs by operators. A run that no worker holds ends immediately. A run that a worker holds ends only if
it is terminated."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_celery.lifecycle import final_event
from a2a_celery.lifecycle.outcomes import CANCELED_BY_CLIENT, CANCELED_BY_OPERATOR, revoked_by
from a2a_celery.lifecycle.own_metadata import own_metadata
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, SUBMITTED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import Over, Unchanged, end_run, revoke_run
from a2a_celery.store.runs.release import delegate_to_canvas, release_run
from a2a_celery.store.tasks.commands import request_cancel
from a2a_celery.store.tasks.replies import CancelRequested
from tests.support.store.seeds import ANN, CONTEXT, Seeds, status


@pytest.fixture
def revoke(store: AsyncStore, keys: Keys) -> Any:
    async def revoke(task_id: str, run: int = 1, *, terminate: bool = False) -> Over | CancelRequested | Unchanged:
        event = final_event(revoked_by("revoke"), task_id, CONTEXT)
        assert event is not None
        return await store.run(revoke_run(keys, RunRef(task_id, run), event=event, terminate=terminate))

    return revoke


@pytest.mark.parametrize("terminate", [False, True])
async def test_a_queued_run_ends_at_once(
    store: AsyncStore, keys: Keys, seeds: Seeds, revoke: Any, terminate: bool
) -> None:
    task_id = await seeds.create_task()

    first, second = await revoke(task_id, terminate=terminate), await revoke(task_id, terminate=terminate)

    assert first == second == Over(2, CANCELED)
    assert await seeds.states(task_id) == [SUBMITTED, CANCELED]
    message = (await seeds.task(task_id)).status.message
    assert (message.parts[0].text, dict(message.metadata)) == (
        CANCELED_BY_OPERATOR,
        own_metadata({"command": "revoke"}),
    )
    assert await store.redis.zcard(keys.dispatch) == 0
    await seeds.require_consistent(task_id)


async def test_a_run_that_celery_retries_ends_at_once(store: AsyncStore, keys: Keys, seeds: Seeds, revoke: Any) -> None:
    claim = await seeds.claim_run()
    release = release_run(
        keys, claim.ref, token=claim.token, written_count=0, events=[], options=b"", retries=1, delay_us=0
    )
    await store.run(release)

    assert await revoke(claim.ref.task_id) == Over(3, CANCELED)


async def test_a_revoked_run_continues_unless_it_is_terminated(seeds: Seeds, revoke: Any) -> None:
    claim = await seeds.claim_run(max_attempts=3)
    task_id = claim.ref.task_id

    assert await revoke(task_id) == Unchanged()
    assert await seeds.states(task_id) == [SUBMITTED, WORKING]
    assert await revoke(task_id, terminate=True) == CancelRequested(2)
    await seeds.settle_run(claim, status(CANCELED))

    assert await seeds.states(task_id) == [SUBMITTED, WORKING, CANCELED]
    message = (await seeds.task(task_id)).status.message
    assert (message.parts[0].text, dict(message.metadata)) == (
        CANCELED_BY_OPERATOR,
        own_metadata({"command": "revoke"}),
    )
    await seeds.require_consistent(task_id)


async def test_a_terminated_run_whose_process_died_is_not_tried_again(
    store: AsyncStore, keys: Keys, seeds: Seeds, revoke: Any
) -> None:
    claim = await seeds.claim_run(max_attempts=3)
    task_id = claim.ref.task_id
    await revoke(task_id, terminate=True)

    result = await store.run(end_run(keys, claim.ref, runner="runner", event=status(CANCELED, "x"), lost=True))

    assert result == Over(3, CANCELED)
    assert await seeds.status_text(task_id) == CANCELED_BY_OPERATOR


async def test_the_first_cancel_or_revoke_decides_the_status_text(
    store: AsyncStore, keys: Keys, seeds: Seeds, revoke: Any
) -> None:
    claim = await seeds.claim_run()
    await store.run(request_cancel(keys, ANN, claim.ref.task_id, CONTEXT))
    await revoke(claim.ref.task_id, terminate=True)

    await seeds.settle_run(claim, status(CANCELED))

    assert await seeds.status_text(claim.ref.task_id) == CANCELED_BY_CLIENT


async def test_other_runs_are_unchanged(store: AsyncStore, keys: Keys, seeds: Seeds, revoke: Any) -> None:
    queued_id, ended_id, claim = (
        await seeds.create_task(),
        await seeds.create_task_in(COMPLETED),
        await seeds.claim_run(),
    )
    await store.run(delegate_to_canvas(keys, claim.ref, token=claim.token, written_count=0, events=[], canvas="{}"))
    data_before = await seeds.all_values()

    assert await revoke(queued_id, 2, terminate=True) == Unchanged()
    assert await revoke("unknown", terminate=True) == Unchanged()
    assert await revoke(claim.ref.task_id, terminate=True) == Unchanged()
    assert isinstance(await revoke(ended_id, terminate=True), Over)

    assert await seeds.all_values() == data_before
