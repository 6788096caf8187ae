"""Claims of runs. Exactly one worker claims each run."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, INPUT_REQUIRED, SUBMITTED, WORKING
from a2a_celery.store import AsyncStore, Keys, Operation
from a2a_celery.store.runs.commands import Claim, Dropped, claim_run
from tests.support.store.seeds import LEASE_US, Seeds, chunk, run_concurrently, status


def claim(keys: Keys, task_id: str, *, run: int = 1, token: str = "mine", working: bool = True) -> Operation[Any]:
    return claim_run(keys, RunRef(task_id, run), token=token, runner="runner", lease_us=LEASE_US, working=working)


async def test_a_claim_shows_working_and_begins_a_lease(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    task_id = await seeds.create_task()

    answer = await store.run(claim(keys, task_id))

    assert isinstance(answer, Claim)
    assert (answer.turn.number, answer.turn.attempt, answer.snapshot.version, answer.turn.caller) == (1, 1, 2, b"{}")
    assert answer.task == await seeds.task(task_id)
    assert await seeds.states(task_id) == [SUBMITTED, WORKING]
    assert await store.redis.zrange(keys.dispatch, 0, -1) == []
    seconds, micros = await store.redis.time()
    [(run, until)] = await store.redis.zrange(keys.leases, 0, -1, withscores=True)
    assert run == f"{task_id}.1".encode()
    assert 0 < until - (seconds * 1_000_000 + micros) <= LEASE_US
    await seeds.require_consistent(task_id)


async def test_a_claim_can_leave_the_status_alone(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    task_id = await seeds.create_task()

    answer = await store.run(claim(keys, task_id, working=False))

    assert answer.snapshot.version == 1
    assert await seeds.states(task_id) == [SUBMITTED]


async def test_a_run_is_claimed_once(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    task_id = await seeds.create_task()

    answers = await run_concurrently(*(store.run(claim(keys, task_id, token=str(n))) for n in range(20)))

    assert [type(answer) for answer in answers].count(Claim) == 1
    assert answers.count(Dropped("claimed before")) == 19
    assert await seeds.states(task_id) == [SUBMITTED, WORKING]


async def test_a_repeated_claim_returns_the_same_result_and_writes_nothing(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    task_id = await seeds.create_task()
    first = await store.run(claim(keys, task_id))
    data_before = await seeds.all_values()

    second_result = await store.run(claim(keys, task_id))

    assert second_result == first
    assert await seeds.all_values() == data_before


async def test_a_claim_returns_the_state_of_earlier_turns(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    first = await seeds.claim_run()
    await seeds.settle_run(
        first, chunk("one "), chunk("two"), status(WORKING, "thinking", step=1), status(COMPLETED, "done")
    )
    snapshot = await seeds.task(first.ref.task_id)

    assert "".join(part.text for part in snapshot.artifacts[0].parts) == "one two"
    assert [message.parts[0].text for message in snapshot.history] == ["hello", "thinking"]
    assert snapshot.status.message.parts[0].text == "done"
    assert dict(snapshot.metadata) == {"step": 1}


@pytest.mark.parametrize("run", [0, 2, 7])
async def test_a_claim_of_an_older_run_is_dropped(store: AsyncStore, keys: Keys, seeds: Seeds, run: int) -> None:
    task_id = await seeds.create_task()
    data_before = await seeds.all_values()

    answer = await store.run(claim(keys, task_id, run=run))

    assert answer == Dropped("outdated: the task is at run 1")
    assert await seeds.all_values() == data_before


@pytest.mark.parametrize(
    ("state", "reason"),
    [(COMPLETED, "the task has ended"), (CANCELED, "the task has ended"), (INPUT_REQUIRED, "the run is over")],
)
async def test_a_claim_of_an_ended_run_is_dropped(
    store: AsyncStore, keys: Keys, seeds: Seeds, state: Any, reason: str
) -> None:
    task_id = await seeds.create_task_in(state)
    data_before = await seeds.all_values()

    assert await store.run(claim(keys, task_id)) == Dropped(reason)
    assert await seeds.all_values() == data_before


async def test_a_claim_of_a_missing_task_is_dropped(store: AsyncStore, keys: Keys) -> None:
    assert await store.run(claim(keys, "none")) == Dropped("no such task")
