"""Renewal of leases by their holders, and cancel requests to idle and running tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from a2a.types import TaskState

from a2a_celery.lifecycle.outcomes import CANCELED_BY_CLIENT, CANCELED_BY_OPERATOR
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.refusals import Reason, Refusal
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
from a2a_celery.store.log.pubsub import PubSubListener
from a2a_celery.store.runs.renewal import Renewal, renew_runs
from a2a_celery.store.tasks.commands import CanceledNow, CancelRequested, continue_task, request_cancel
from tests.support.store.seeds import ANN, BOB, CONTEXT, LEASE_US, Seeds, request, status
from tests.support.waiting import eventually_async


async def test_all_runs_of_a_process_are_renewed_in_one_call(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claims = [await seeds.claim_run() for _ in range(3)]
    leases = [(claim.ref, claim.token) for claim in claims]
    leases_before = dict(await store.redis.zrange(keys.leases, 0, -1, withscores=True))

    answer = await store.run(renew_runs(keys, leases, lease_us=LEASE_US * 10))

    leases_after = dict(await store.redis.zrange(keys.leases, 0, -1, withscores=True))
    assert answer == Renewal(frozenset(), frozenset())
    assert leases_after.keys() == leases_before.keys()
    assert all(leases_after[name] >= leases_before[name] + 8 * LEASE_US for name in leases_before)


async def test_a_renewal_returns_lost_runs_and_renews_the_others(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    current, stolen, ended_claim = [await seeds.claim_run() for _ in range(3)]
    await seeds.settle_run(ended_claim, status(COMPLETED))
    leases = [
        (current.ref, current.token),
        (stolen.ref, "not the token"),
        (ended_claim.ref, ended_claim.token),
        (RunRef("none", 1), "x"),
    ]
    leases.append((replace(current.ref, run=2), current.token))

    answer = await store.run(renew_runs(keys, leases, lease_us=LEASE_US))

    lost_names = {stolen.ref.name, ended_claim.ref.name, "none.1", f"{current.ref.task_id}.2"}
    assert answer == Renewal(frozenset(lost_names), frozenset())
    leased_names = {name.decode() for name in await store.redis.zrange(keys.leases, 0, -1)}
    assert leased_names == {current.ref.name, stolen.ref.name}


async def test_a_renewal_returns_runs_with_a_cancel_request(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claims = [await seeds.claim_run() for _ in range(2)]
    await store.run(request_cancel(keys, ANN, claims[0].ref.task_id, CONTEXT))

    answer = await store.run(renew_runs(keys, [(c.ref, c.token) for c in claims], lease_us=LEASE_US))

    assert answer == Renewal(frozenset(), frozenset({claims[0].ref.name}))


async def test_a_queued_task_is_canceled_at_once(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    task_id = await seeds.create_task()

    answer = await store.run(request_cancel(keys, ANN, task_id, CONTEXT))

    assert answer == CanceledNow(1, 2)
    assert await seeds.states(task_id) == [SUBMITTED, CANCELED]
    assert await seeds.status_text(task_id) == CANCELED_BY_CLIENT
    assert await store.redis.zcard(keys.dispatch) == 0
    await seeds.require_consistent(task_id)


@pytest.mark.parametrize("pause", [INPUT_REQUIRED, AUTH_REQUIRED])
async def test_a_paused_task_is_canceled_at_once(store: AsyncStore, keys: Keys, seeds: Seeds, pause: TaskState) -> None:
    task_id = await seeds.create_task_in(pause)

    answer = await store.run(request_cancel(keys, ANN, task_id, CONTEXT))

    assert answer == CanceledNow(None, 4)
    assert await seeds.states(task_id) == [SUBMITTED, WORKING, pause, CANCELED]
    assert await seeds.status_text(task_id) == CANCELED_BY_CLIENT
    await seeds.require_consistent(task_id)


async def test_the_worker_of_a_running_task_is_notified(
    store: AsyncStore, keys: Keys, seeds: Seeds, subscriber: PubSubListener
) -> None:
    notifications: list[bytes] = []
    await subscriber.on_message(keys.runner("runner"), notifications.append)
    claim = await seeds.claim_run()

    async def is_notified() -> bool:
        # repeated, because the subscriber may not be connected yet; a repetition changes nothing
        answer = await store.run(request_cancel(keys, ANN, claim.ref.task_id, CONTEXT))
        assert answer == CancelRequested(2)
        return bool(notifications)

    await eventually_async(is_notified)
    assert notifications[0] == claim.ref.name.encode()
    assert await seeds.states(claim.ref.task_id) == [SUBMITTED, WORKING]


@pytest.mark.parametrize("state", [COMPLETED, FAILED, CANCELED, REJECTED])
async def test_an_ended_task_can_not_be_canceled(store: AsyncStore, keys: Keys, seeds: Seeds, state: TaskState) -> None:
    task_id = await seeds.create_task_in(state)
    data_before = await seeds.all_values()

    assert await store.run(request_cancel(keys, ANN, task_id, CONTEXT)) == Refusal(
        Reason.NOT_CANCELABLE, task_id, {"state": state}
    )
    assert await seeds.all_values() == data_before


async def test_a_caller_cannot_cancel_the_task_of_another(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    task_id = await seeds.create_task()
    data_before = await seeds.all_values()

    assert await store.run(request_cancel(keys, BOB, task_id, CONTEXT)) == Refusal(Reason.MISSING, task_id)
    assert await store.run(request_cancel(keys, ANN, "none", CONTEXT)) == Refusal(Reason.MISSING, "none")
    assert await seeds.all_values() == data_before


async def test_a_repeated_cancel_is_answered_as_before(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    call = request_cancel(keys, ANN, await seeds.create_task(), CONTEXT)
    first = await store.run(call)
    data_before = await seeds.all_values()

    second_result = await store.run(call)

    assert second_result == first
    assert await seeds.all_values() == data_before


async def test_a_cancel_that_meets_a_pause_ends_the_task(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    task_id = claim.ref.task_id
    message_request = request("next", task_id, CONTEXT)
    await store.run(continue_task(keys, ANN, task_id, message_request, "", caller=b"{}", nonce="n"))
    await store.run(request_cancel(keys, ANN, task_id, CONTEXT))

    answer = await seeds.settle_run(claim, status(INPUT_REQUIRED, "which?"))  # the run paused before the notification

    assert (answer.state, answer.next_run) == (CANCELED, None)
    assert await seeds.states(task_id) == [SUBMITTED, WORKING, INPUT_REQUIRED, CANCELED]
    assert await seeds.status_text(task_id) == CANCELED_BY_CLIENT
    await seeds.require_consistent(task_id)


@pytest.mark.parametrize(
    ("ask", "by"), [({}, CANCELED_BY_CLIENT), ({"text": CANCELED_BY_OPERATOR}, CANCELED_BY_OPERATOR)]
)
async def test_an_agent_that_stops_without_a_status_is_canceled_by_the_requester(
    store: AsyncStore, keys: Keys, seeds: Seeds, ask: dict[str, str], by: str
) -> None:
    claim = await seeds.claim_run()
    await store.run(request_cancel(keys, ANN, claim.ref.task_id, CONTEXT, **ask))

    await seeds.settle_run(claim, status(CANCELED, cost=3))

    task = await seeds.task(claim.ref.task_id)
    assert await seeds.status_text(task.id) == by
    assert dict(task.metadata) == {"cost": 3}
    assert dict((await seeds.log(task.id))[-1].event.metadata) == {"cost": 3}
    await seeds.require_consistent(task.id)


async def test_the_status_text_of_a_cancelled_agent_is_kept(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    await store.run(request_cancel(keys, ANN, claim.ref.task_id, CONTEXT))

    await seeds.settle_run(claim, status(CANCELED, "rolled back"))

    assert await seeds.status_text(claim.ref.task_id) == "rolled back"
