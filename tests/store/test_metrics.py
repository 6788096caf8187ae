"""Fleet metrics by agent. A repeated write counts once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest

from a2a_celery.dispatch import Call, RunOptions
from a2a_celery.features.webhooks.deliveries import acquire_due_deliveries
from a2a_celery.lifecycle.references import RunRef, Scope
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, REJECTED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.metrics import FleetMetrics, read_metrics
from a2a_celery.store.operation import BOUNDS
from a2a_celery.store.runs.commands import append, claim_run, end_run, settle_run
from a2a_celery.store.runs.recovery import begin_next_attempt, lapsed_runs, return_run
from a2a_celery.store.tasks.commands import create_task, request_cancel
from tests.support.store.delivery_cursors import Webhooks
from tests.support.store.seeds import ANN, CONTEXT, LEASE_US, RETENTION, Seeds, chunk, request, status

from .test_activities import activity

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
LATER = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
def fleet_metrics(store: AsyncStore, keys: Keys) -> Callable[[], Awaitable[FleetMetrics]]:
    return lambda: store.run(read_metrics(keys))


ReadMetrics = Callable[[], Awaitable[FleetMetrics]]


async def test_an_empty_store_has_no_counts(fleet_metrics: ReadMetrics) -> None:
    metrics = await fleet_metrics()

    assert (metrics.counts, metrics.oldest, metrics.paused, metrics.resubmittable) == ({}, {}, 0, 0)
    assert metrics.runs == {"queued": 0, "blocked": 0, "running": 0, "delegated": 0, "suspended": 0}


async def test_each_end_is_counted_by_agent_and_state(seeds: Seeds, fleet_metrics: ReadMetrics) -> None:
    for state in (COMPLETED, COMPLETED, FAILED, REJECTED, INPUT_REQUIRED):
        await seeds.create_task_in(state)
    await seeds.create_task_in(COMPLETED, scope=Scope("odd agent/%41", "t", "o"))

    counts = (await fleet_metrics()).counted("ended")

    ann = ANN.agent
    assert counts == {
        (ann, str(int(COMPLETED))): 2,
        (ann, str(int(FAILED))): 1,
        (ann, str(int(REJECTED))): 1,
        ("odd agent/%41", str(int(COMPLETED))): 1,
    }


async def test_a_repeated_call_counts_once(
    store: AsyncStore, keys: Keys, seeds: Seeds, fleet_metrics: ReadMetrics
) -> None:
    task_id = await seeds.create_task()
    claim = claim_run(keys, RunRef(task_id, 1), token="k", runner="r", lease_us=LEASE_US, working=True)
    write = append(keys, RunRef(task_id, 1), token="k", written_count=0, events=[chunk("x")])
    settle = settle_run(keys, RunRef(task_id, 1), token="k", written_count=1, events=[status(COMPLETED)])
    for operation in (claim, write, settle):
        for _ in range(2):
            await store.run(operation)  # type: ignore[arg-type]

    metrics = await fleet_metrics()

    assert {
        kind: sum(times.buckets) for kind in ("queue", "first", "run") for times in metrics.times(kind).values()
    } == {
        "queue": 1,
        "first": 1,
        "run": 1,
    }
    assert metrics.counted("ended") == {(ANN.agent, str(int(COMPLETED))): 1}


async def test_the_waiting_time_of_a_blocked_run_starts_with_its_turn(
    store: AsyncStore, keys: Keys, seeds: Seeds, fleet_metrics: ReadMetrics
) -> None:
    first, second = await seeds.create_task(serialize_context=True), await seeds.create_task(serialize_context=True)
    record = keys.task(second).record
    await store.redis.hset(record, "at", int(await store.redis.hget(record, "at")) - 100_000_000)

    await seeds.settle_run(await seeds.claim_run(first), status(COMPLETED))

    assert (await fleet_metrics()).oldest[ANN.agent] < 50
    await seeds.claim_run(second)
    assert (await fleet_metrics()).times("queue")[ANN.agent].sum < 50


async def test_an_activity_is_no_first_event(seeds: Seeds, fleet_metrics: ReadMetrics) -> None:
    async def first_event_count() -> int:
        return sum(sum(times.buckets) for times in (await fleet_metrics()).times("first").values())

    claim = await seeds.claim_run()
    await seeds.append_events(claim, activity())
    await seeds.append_events(claim, activity(2), written_count=1)
    assert await first_event_count() == 0, "its agent has sent nothing"
    await seeds.append_events(claim, activity(3), chunk("a"), written_count=2)
    assert await first_event_count() == 1
    await seeds.append_events(claim, chunk("b"), written_count=4)
    await seeds.settle_run(claim, status(COMPLETED), written_count=5)
    assert await first_event_count() == 1

    claim = await seeds.claim_run()
    await seeds.append_events(claim, activity())
    await seeds.settle_run(claim, status(COMPLETED), written_count=1)
    assert await first_event_count() == 2


@pytest.mark.parametrize("age", [0.0, 0.02, *BOUNDS])
async def test_times_are_in_the_right_bucket(
    store: AsyncStore, keys: Keys, seeds: Seeds, fleet_metrics: ReadMetrics, age: float
) -> None:
    """The sum of the histogram contains the exact duration of the run."""
    claim = await seeds.claim_run(await seeds.create_task())
    record = keys.task(claim.ref.task_id).record
    began = int(await store.redis.hget(record, "claimed_at")) - int(age * 1_000_000)
    await store.redis.hset(record, "claimed_at", began)

    await seeds.settle_run(claim, status(COMPLETED))

    times = (await fleet_metrics()).times("run")[ANN.agent]
    assert age <= times.sum < age + 30
    place = bisect_left(BOUNDS, times.sum)
    assert times.buckets == tuple(int(at == place) for at in range(len(BOUNDS) + 1))
    assert [up_to for _, up_to in times.cumulated] == [float(at >= place) for at in range(len(BOUNDS) + 1)]
    assert times.cumulated[-1][0] == "+Inf"


async def test_a_cancel_is_timed_if_a_run_had_to_stop(
    store: AsyncStore, keys: Keys, seeds: Seeds, fleet_metrics: ReadMetrics
) -> None:
    queued_id = await seeds.create_task()
    await store.run(request_cancel(keys, ANN, queued_id, CONTEXT))
    assert (await fleet_metrics()).times("cancel") == {}

    claim = await seeds.claim_run()
    await store.run(request_cancel(keys, ANN, claim.ref.task_id, CONTEXT))
    await seeds.settle_run(claim, status(CANCELED))

    assert sum((await fleet_metrics()).times("cancel")[ANN.agent].buckets) == 1
    assert (await fleet_metrics()).counted("ended") == {(ANN.agent, str(int(CANCELED))): 2}


async def test_lost_runs_are_counted_by_outcome(
    store: AsyncStore, keys: Keys, seeds: Seeds, fleet_metrics: ReadMetrics
) -> None:
    async def claim_new_run(attempts: int) -> RunRef:
        ref = RunRef(await seeds.create_task(), 1)
        claim = claim_run(keys, ref, token="k", runner="r.1.x", lease_us=0, working=True, max_attempts=attempts)
        await store.run(claim)
        return ref

    async def recover() -> None:
        for run in (await store.run(lapsed_runs(keys, limit=10))).runs:
            await begin_next_attempt(store, keys, run, delay_us=0)

    failure = status(FAILED, "lost")
    await claim_new_run(2)
    await recover()  # again
    await claim_new_run(1)
    await recover()  # failed
    await store.run(return_run(keys, await claim_new_run(3), runner="r.1.", loss=failure))
    await recover()  # returned by its worker
    canceled = await claim_new_run(3)
    await store.run(return_run(keys, canceled, runner="r.1.", loss=failure))
    await store.run(request_cancel(keys, ANN, canceled.task_id, CONTEXT))
    await recover()  # canceled after its worker returned it
    await store.run(return_run(keys, await claim_new_run(1), runner="r.1.", loss=failure))  # failed
    await store.run(end_run(keys, await claim_new_run(1), runner="r.1.", event=failure, lost=True))  # failed
    await store.run(end_run(keys, await claim_new_run(1), runner="r.1.", event=failure))  # failed, but not lost

    assert (await fleet_metrics()).counted("lost") == {
        (ANN.agent, "again"): 1,
        (ANN.agent, "returned"): 1,
        (ANN.agent, "failed"): 3,
        (ANN.agent, "canceled"): 1,
    }
    assert (await fleet_metrics()).resubmittable == 3


async def test_open_runs_are_counted_with_the_age_of_the_oldest(
    store: AsyncStore, keys: Keys, seeds: Seeds, fleet_metrics: ReadMetrics
) -> None:
    await seeds.claim_run()
    await seeds.create_task_in(INPUT_REQUIRED)
    young, old = await seeds.create_task(), await seeds.create_task()
    record = keys.task(old).record
    await store.redis.hset(record, "at", int(await store.redis.hget(record, "at")) - 60_000_000)

    metrics = await fleet_metrics()

    assert metrics.runs == {"queued": 2, "blocked": 0, "running": 1, "delegated": 0, "suspended": 0}
    assert metrics.paused == 1
    assert metrics.oldest == {ANN.agent: pytest.approx(60, abs=5)}
    await store.run(request_cancel(keys, ANN, old, CONTEXT))
    assert (await fleet_metrics()).oldest[ANN.agent] < 30
    assert young


async def test_a_run_that_may_not_begin_yet_does_not_age(
    store: AsyncStore, keys: Keys, fleet_metrics: ReadMetrics
) -> None:
    options = RunOptions.from_json(b'{"not_before_us":9000000000000000}').to_json()
    message_request = request(task_id="t", context_id=CONTEXT)
    await store.run(
        create_task(keys, ANN, "t", CONTEXT, message_request, caller=b"{}", retention=RETENTION, options=options)
    )

    assert (await fleet_metrics()).oldest == {ANN.agent: 0}


async def test_no_metric_reads_the_message_of_a_waiting_run(
    store: AsyncStore, keys: Keys, fleet_metrics: ReadMetrics
) -> None:
    """A message may be large, and a scrape must not block the store."""
    message_request, options = (
        request(task_id="t", context_id=CONTEXT),
        RunOptions(call=Call("plain", {"words": ["word"]})),
    )
    await store.run(
        create_task(
            keys, ANN, "t", CONTEXT, message_request, caller=b"{}", retention=RETENTION, options=options.to_json()
        )
    )
    record = keys.task("t").record

    async with store.redis.monitor() as monitor:
        await fleet_metrics()
        await store.redis.echo("end")
        commands = []
        async for command in monitor.listen():
            if command["command"] == "ECHO end":
                break
            commands.append(command["command"])

    assert [command for command in commands if record in command and not command.startswith("FCALL")] == [
        f"HMGET {record} agent at begins_at unblocked_at resumed_at"
    ]


@pytest.mark.parametrize("is_ended", [False, True])
@pytest.mark.parametrize(
    ("options", "trace"),
    [
        (RunOptions(celery={"queue": "q"}, trace={"traceparent": PARENT}), PARENT),
        (RunOptions(trace={"traceparent": PARENT}, not_before=LATER), PARENT),
        (RunOptions(celery={"queue": f'{{"trace":{{"traceparent":"{PARENT}"'}), ""),
        (RunOptions(), ""),
    ],
    ids=["traced", "traced, and later", "only says so", "not traced"],
)
async def test_deliveries_know_the_trace_of_their_task(
    store: AsyncStore, keys: Keys, seeds: Seeds, options: RunOptions, trace: str, is_ended: bool
) -> None:
    """The store must keep the trace after it has deleted the run's options at the end of the task."""
    message_request = request(task_id="t", context_id=CONTEXT)
    create = create_task(
        keys, ANN, "t", CONTEXT, message_request, caller=b"{}", retention=RETENTION, options=options.to_json()
    )
    await store.run(create)
    await Webhooks(store, keys).save_config("t")
    claim = await seeds.claim_run("t")
    if is_ended:
        await seeds.settle_run(claim, status(WORKING), status(COMPLETED))
        assert not await store.redis.hexists(keys.task("t").record, "options")

    [cursor] = await store.run(acquire_due_deliveries(keys, limit=10, lease_us=1_000_000))

    assert cursor.trace == trace
