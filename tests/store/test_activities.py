"""Execution history of a task. The history is bounded, costs the same for each activity, and is deleted with the
task."""

from __future__ import annotations

import pytest

from a2a_celery.features.sessions.section import SessionSection
from a2a_celery.lifecycle.execution import Activity, ExecutionState, Transition, decode_activity, encode_activity
from a2a_celery.lifecycle.states import COMPLETED, FAILED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.operation import Operation
from a2a_celery.store.runs.commands import Claim, append, claim_run
from a2a_celery.store.runs.release import Activities, read_activities, release_run
from a2a_celery.store.tasks.commands import continue_task, delete_task
from tests.support.store.leaks import leaks
from tests.support.store.seeds import ANN, CONTEXT, LEASE_US, Seeds, chunk, request, status

from .test_cost import Meter

S = ExecutionState


def activity(number: int = 1, **detail: str | int | None) -> Activity:
    """Return an activity of a first run."""
    return Activity(1, 1, "host.1.x", Transition(number, S.MODEL_CALL, S.TOOL_EXECUTION, 1_000_000 + number, detail))


@pytest.mark.parametrize("detail", [{}, {"tool": "s\u00fc\u2028\n\U0001f600"}, {"n": 1, "x": None}])
def test_an_activity_is_read_as_it_was_written(detail: dict[str, str | int | None]) -> None:
    written_activity = activity(7, **detail)

    assert decode_activity(encode_activity(written_activity)) == written_activity


async def test_activities_are_stored_in_order_outside_the_log(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    await seeds.append_events(claim, activity(1), chunk("a"), activity(2))
    await seeds.settle_run(claim, activity(3), status(INPUT_REQUIRED, "?"), activity(4), written_count=3)

    history = await store.run(read_activities(keys, claim.ref.task_id))

    activities = [activity(number) for number in range(1, 5)]
    assert history == Activities(
        activities, ANN.agent, claim.task.context_id, INPUT_REQUIRED, 1, running=False, now_us=0, scope=ANN
    )
    assert len(await seeds.log(claim.ref.task_id)) == 4
    await seeds.require_consistent(claim.ref.task_id)
    assert await leaks(store, keys) == []


async def test_only_the_newest_thousand_activities_are_stored(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    for first in range(0, 1200, 100):
        await seeds.append_events(claim, *(activity(n) for n in range(first + 1, first + 101)), written_count=first)

    activities = await store.run(read_activities(keys, claim.ref.task_id))

    assert activities is not None
    assert [s.transition.number for s in activities.activities] == list(range(201, 1201))


async def test_an_activity_costs_one_push_early_and_late(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    meter, claim = Meter(store), await seeds.claim_run()

    def append_activities(version: int, *events: Activity) -> Operation[object]:
        return append(  # type: ignore[return-value]
            keys, claim.ref, token=claim.token, written_count=version, events=[*events, chunk("x")]
        )

    await seeds.append_events(claim, chunk("the first"))
    bare = await meter.cost_of(append_activities(1))
    early_cost = await meter.cost_of(append_activities(2, activity()))
    await seeds.append_events(claim, *(activity(n) for n in range(900)), written_count=4)
    late_cost = await meter.cost_of(append_activities(904, activity()))

    assert early_cost == late_cost == {**bare, "cmdstat_rpush": bare["cmdstat_rpush"] + 1}


async def test_a_repeated_append_stores_its_activities_once(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    await seeds.append_events(claim, activity(1), activity(2))
    await seeds.append_events(claim, activity(1), activity(2))

    assert await store.redis.llen(keys.task(claim.ref.task_id).execution) == 2


@pytest.mark.parametrize("ending", ["append", "settle", "delete"])
async def test_the_history_is_deleted_with_its_task(store: AsyncStore, keys: Keys, seeds: Seeds, ending: str) -> None:
    claim = await seeds.claim_run()
    names = keys.task(claim.ref.task_id)
    await seeds.append_events(claim, activity())
    assert await store.redis.ttl(names.execution) == -1
    match ending:
        case "append":
            await seeds.append_events(claim, activity(2), status(COMPLETED), written_count=1)
        case "settle":
            await seeds.settle_run(claim, activity(2), status(FAILED), written_count=1)
        case "delete":
            await store.run(delete_task(keys, ANN, claim.ref.task_id))

    if ending == "delete":
        assert not await store.redis.exists(names.execution)
        assert await store.run(read_activities(keys, claim.ref.task_id)) is None
    else:
        assert not await store.redis.exists(names.execution), "the task is packed"
        activities = await store.run(read_activities(keys, claim.ref.task_id))
        assert activities is not None
        assert [each.transition.number for each in activities.activities] == [1, 2]


async def test_the_next_attempt_is_given_the_activities_of_the_lost_one(seeds: Seeds) -> None:
    first = await seeds.claim_run(max_attempts=2)
    assert first.activities == ()
    await seeds.append_events(first, activity(1), activity(2, tool="search"))
    await seeds.recover_run(first.ref)

    next_claim = await seeds.claim_run(first.ref.task_id, run=2)

    assert next_claim.activities == (activity(1), activity(2, tool="search"))


@pytest.mark.parametrize("is_released", [True, False], ids=["released", "message first"])
async def test_a_retry_gets_the_activities_of_the_attempt_before_it(
    store: AsyncStore, keys: Keys, seeds: Seeds, is_released: bool
) -> None:
    first = await seeds.claim_run(session=True)
    await seeds.append_events(first, activity(1), activity(2, tool="search"))
    if is_released:
        retry_arguments = {"events": [status(WORKING)], "options": b'{"retries":1}', "retries": 1, "delay_us": 1}
        await store.run(release_run(keys, first.ref, token=first.token, written_count=2, **retry_arguments))  # type: ignore[arg-type]

    retry = await store.run(
        claim_run(
            keys,
            first.ref,
            token="retry",
            runner="runner",
            lease_us=LEASE_US,
            working=True,
            retries=1,
            retried=status(WORKING),
            sections=[SessionSection.of(keys)],
        )
    )

    assert isinstance(retry, Claim)
    assert (retry.turn.number, retry.turn.attempt) == (1, 1)
    assert retry.activities == (activity(1), activity(2, tool="search"))


async def test_the_next_turn_is_given_the_newest_activities(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    first = await seeds.claim_run()
    await seeds.append_events(first, *(activity(n) for n in range(1, 150)))
    await seeds.settle_run(first, status(INPUT_REQUIRED, "?"), written_count=149)
    answer = request("yes", first.ref.task_id, CONTEXT)
    await store.run(continue_task(keys, ANN, first.ref.task_id, answer, "", caller=b"{}", nonce="n"))

    claim = await seeds.claim_run(first.ref.task_id, run=2)

    assert [s.transition.number for s in claim.activities] == list(range(50, 150))
