"""Retries that a receiver of Celery's `task_retry` signal records. A retry is recorded once, and only for the process
that holds the run."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import CANCELED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import Claim, Unchanged, claim_run
from a2a_celery.store.runs.release import Released, RetriedByCelery, read_retry, release_run, retry_run
from a2a_celery.store.tasks.commands import request_cancel
from tests.support.store.seeds import ANN, CONTEXT, LEASE_US, Seeds, status

REF = RunRef("t", 1)
RUNNER = "here.1."
OPTIONS = b'{"retries":1}'


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    return Seeds(store, keys)


def claim(keys: Keys, retries: int = 0, runner: str = f"{RUNNER}x", **more: Any) -> Any:
    """Return the operation that claims the run after `retries` retries."""
    return claim_run(
        keys, REF, token=f"token {retries}", runner=runner, lease_us=LEASE_US, working=True, retries=retries, **more
    )


def retry(keys: Keys) -> Any:
    """Return the operation with which the receiver of Celery's ``task_retry`` signal records the first retry."""
    event = status(WORKING, attempt=2)
    return retry_run(keys, REF, runner=RUNNER, event=event, options=OPTIONS, retries=1, delay_us=0)


async def states(seeds: Seeds) -> list[int]:
    return [entry.event.status.state for entry in (await seeds.log("t"))[1:] if hasattr(entry.event, "status")]


async def test_the_run_waits_for_its_next_attempt(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    await seeds.create_task(task_id="t")
    await store.run(claim(keys))
    read_operation = read_retry(keys, REF, runner=RUNNER, retries=1)
    assert await store.run(read_operation) == RetriedByCelery(CONTEXT, b"")

    for _ in range(2):  # the second call is a repetition
        assert isinstance(await store.run(retry(keys)), Released)

    assert await store.run(read_operation) is None
    assert await store.redis.zscore(keys.dispatch, REF.name) is not None
    assert await store.redis.zscore(keys.leases, REF.name) is None
    new_claim = await store.run(claim(keys, retries=1))
    assert isinstance(new_claim, Claim)
    assert new_claim.options == OPTIONS
    assert await states(seeds) == [WORKING, WORKING]


async def _other_process(store: AsyncStore, keys: Keys) -> None:
    await store.run(claim(keys, runner="here.10.x"))


async def _record_by_run(store: AsyncStore, keys: Keys) -> None:
    """Let the run itself record the retry."""
    await store.run(claim(keys))
    event = status(WORKING, attempt=2)
    await store.run(
        release_run(keys, REF, token="token 0", written_count=0, events=[event], options=OPTIONS, retries=1, delay_us=0)
    )


async def _next_attempt(store: AsyncStore, keys: Keys) -> None:
    """Claim the run and then its next attempt, as if the message of the retry had arrived at this process before
    Celery's ``task_retry`` signal."""
    await store.run(claim(keys))
    await store.run(claim(keys, retries=1, retried=status(WORKING, attempt=2)))


@pytest.mark.parametrize("seed", [_other_process, _record_by_run, _next_attempt], ids=lambda seed: seed.__name__[1:])
async def test_a_repeated_or_foreign_retry_changes_nothing(
    store: AsyncStore, keys: Keys, seeds: Seeds, seed: Any
) -> None:
    await seeds.create_task(task_id="t")
    await seed(store, keys)
    data_before = await seeds.all_values()

    assert await store.run(read_retry(keys, REF, runner=RUNNER, retries=1)) is None
    if seed is not _record_by_run:  # after `_record_by_run`, the call counts as repeated
        assert isinstance(await store.run(retry(keys)), Unchanged)
    else:
        await store.run(retry(keys))

    assert await seeds.all_values() == data_before


async def test_a_run_that_a_client_cancelled_is_not_retried(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    await seeds.create_task(task_id="t")
    await store.run(claim(keys))
    await store.run(request_cancel(keys, ANN, "t", CONTEXT))

    await store.run(retry(keys))

    assert (await states(seeds))[-1] == CANCELED
