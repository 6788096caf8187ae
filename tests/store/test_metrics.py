"""The metrics count what was written, once: by agent, and whoever wrote it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest

from a2a_celery.dispatch import Call, RunOptions
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, REJECTED, WORKING
from a2a_celery.store import AsyncStore, Keys, Scope
from a2a_celery.store.admin.metrics import FleetMetrics, read_metrics
from a2a_celery.store.operation import BOUNDS
from a2a_celery.store.runs.commands import RunRef, append, claim_run, end_run, settle_run
from a2a_celery.store.runs.recovery import begin_next_attempt, lapsed_runs, return_run
from a2a_celery.store.tasks.commands import create_task, request_cancel
from a2a_celery.store.webhooks.deliveries import acquire_due_deliveries
from tests.support.delivery_cursors import Webhooks
from tests.support.seeds import ANN, CONTEXT, LEASE_US, RETENTION, Seeds, chunk, request, status

from .test_steps import step

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
LATER = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
def said(store: AsyncStore, keys: Keys) -> Callable[[], Awaitable[FleetMetrics]]:
    return lambda: store.run(read_metrics(keys))


Said = Callable[[], Awaitable[FleetMetrics]]


async def test_an_empty_store_has_counted_nothing(said: Said) -> None:
    found = await said()

    assert (found.counts, found.oldest, found.paused, found.dead_letters) == ({}, {}, 0, 0)
    assert found.runs == {"queued": 0, "blocked": 0, "running": 0, "delegated": 0, "suspended": 0}


async def test_each_end_is_counted_by_agent_and_state(seeds: Seeds, said: Said) -> None:
    for state in (COMPLETED, COMPLETED, FAILED, REJECTED, INPUT_REQUIRED):
        await seeds.ended(state)
    await seeds.ended(COMPLETED, scope=Scope("odd agent/%41", "t", "o"))

    counted = (await said()).counted("ended")

    ann = ANN.agent
    assert counted == {
        (ann, str(int(COMPLETED))): 2,
        (ann, str(int(FAILED))): 1,
        (ann, str(int(REJECTED))): 1,
        ("odd agent/%41", str(int(COMPLETED))): 1,
    }


async def test_a_repeated_call_counts_once(store: AsyncStore, keys: Keys, seeds: Seeds, said: Said) -> None:
    task_id = await seeds.created()
    claim = claim_run(keys, RunRef(task_id, 1), token="k", runner="r", lease_us=LEASE_US, working=True)
    write = append(keys, RunRef(task_id, 1), token="k", before=0, events=[chunk("x")])
    settle = settle_run(keys, RunRef(task_id, 1), token="k", before=1, events=[status(COMPLETED)])
    for operation in (claim, write, settle):
        for _ in range(2):
            await store.run(operation)  # type: ignore[arg-type]

    found = await said()

    assert {what: sum(times.buckets) for what in ("queue", "first", "run") for times in found.times(what).values()} == {
        "queue": 1,
        "first": 1,
        "run": 1,
    }
    assert found.counted("ended") == {(ANN.agent, str(int(COMPLETED))): 1}


async def test_who_stood_behind_another_waits_for_a_worker_from_its_turn_on(
    store: AsyncStore, keys: Keys, seeds: Seeds, said: Said
) -> None:
    first, second = await seeds.created(serialize_context=True), await seeds.created(serialize_context=True)
    record = keys.task(second).record
    await store.redis.hset(record, "at", int(await store.redis.hget(record, "at")) - 100_000_000)

    await seeds.settled(await seeds.claimed(first), status(COMPLETED))

    assert (await said()).oldest[ANN.agent] < 50
    await seeds.claimed(second)
    assert (await said()).times("queue")[ANN.agent].sum < 50


async def test_a_step_is_no_first_event(seeds: Seeds, said: Said) -> None:
    async def counted() -> int:
        return sum(sum(times.buckets) for times in (await said()).times("first").values())

    claim = await seeds.claimed()
    await seeds.appended(claim, step())
    await seeds.appended(claim, step(2), before=1)
    assert await counted() == 0, "its agent has said nothing"
    await seeds.appended(claim, step(3), chunk("a"), before=2)
    assert await counted() == 1
    await seeds.appended(claim, chunk("b"), before=4)
    await seeds.settled(claim, status(COMPLETED), before=5)
    assert await counted() == 1

    claim = await seeds.claimed()
    await seeds.appended(claim, step())
    await seeds.settled(claim, status(COMPLETED), before=1)
    assert await counted() == 2


@pytest.mark.parametrize("age", [0.0, 0.02, *BOUNDS])
async def test_times_are_in_the_bucket_that_they_belong_in(
    store: AsyncStore, keys: Keys, seeds: Seeds, said: Said, age: float
) -> None:
    """A record that says its run began so long ago; how long that was in the end, the sum says."""
    claim = await seeds.claimed(await seeds.created())
    record = keys.task(claim.ref.task_id).record
    began = int(await store.redis.hget(record, "claimed_at")) - int(age * 1_000_000)
    await store.redis.hset(record, "claimed_at", began)

    await seeds.settled(claim, status(COMPLETED))

    times = (await said()).times("run")[ANN.agent]
    assert age <= times.sum < age + 30
    place = bisect_left(BOUNDS, times.sum)
    assert times.buckets == tuple(int(at == place) for at in range(len(BOUNDS) + 1))
    assert [up_to for _, up_to in times.cumulated] == [float(at >= place) for at in range(len(BOUNDS) + 1)]
    assert times.cumulated[-1][0] == "+Inf"


async def test_a_cancel_is_timed_if_a_run_had_to_stop(store: AsyncStore, keys: Keys, seeds: Seeds, said: Said) -> None:
    queued = await seeds.created()
    await store.run(request_cancel(keys, ANN, queued, CONTEXT))
    assert (await said()).times("cancel") == {}

    claim = await seeds.claimed()
    await store.run(request_cancel(keys, ANN, claim.ref.task_id, CONTEXT))
    await seeds.settled(claim, status(CANCELED))

    assert sum((await said()).times("cancel")[ANN.agent].buckets) == 1
    assert (await said()).counted("ended") == {(ANN.agent, str(int(CANCELED))): 2}


async def test_lost_runs_are_counted_by_what_becomes_of_them(
    store: AsyncStore, keys: Keys, seeds: Seeds, said: Said
) -> None:
    async def claimed(attempts: int) -> RunRef:
        ref = RunRef(await seeds.created(), 1)
        claim = claim_run(keys, ref, token="k", runner="r.1.x", lease_us=0, working=True, max_attempts=attempts)
        await store.run(claim)
        return ref

    async def recover() -> None:
        for lapsed in await store.run(lapsed_runs(keys, limit=10)):
            await begin_next_attempt(store, keys, lapsed, again_us=0)

    lost = status(FAILED, "lost")
    await claimed(2)
    await recover()  # again
    await claimed(1)
    await recover()  # failed
    await store.run(return_run(keys, await claimed(3), runner="r.1.", lost=lost))
    await recover()  # handed back
    await store.run(return_run(keys, await claimed(1), runner="r.1.", lost=lost))  # failed
    await store.run(end_run(keys, await claimed(1), runner="r.1.", event=lost, lost=True))  # failed
    await store.run(end_run(keys, await claimed(1), runner="r.1.", event=lost))  # by a limit, say: not lost

    assert (await said()).counted("lost") == {
        (ANN.agent, "again"): 1,
        (ANN.agent, "returned"): 1,
        (ANN.agent, "failed"): 3,
    }
    assert (await said()).dead_letters == 3


async def test_what_is_open_is_counted_and_the_oldest_that_waits_is_known(
    store: AsyncStore, keys: Keys, seeds: Seeds, said: Said
) -> None:
    await seeds.claimed()
    await seeds.ended(INPUT_REQUIRED)
    young, old = await seeds.created(), await seeds.created()
    record = keys.task(old).record
    await store.redis.hset(record, "at", int(await store.redis.hget(record, "at")) - 60_000_000)

    found = await said()

    assert found.runs == {"queued": 2, "blocked": 0, "running": 1, "delegated": 0, "suspended": 0}
    assert found.paused == 1
    assert found.oldest == {ANN.agent: pytest.approx(60, abs=5)}
    await store.run(request_cancel(keys, ANN, old, CONTEXT))
    assert (await said()).oldest[ANN.agent] < 30
    assert young


async def test_a_run_that_may_not_begin_yet_does_not_age(store: AsyncStore, keys: Keys, said: Said) -> None:
    options = RunOptions.from_json(b'{"not_before_us":9000000000000000}').to_json()
    sent = request(task_id="t", context_id=CONTEXT)
    await store.run(create_task(keys, ANN, "t", CONTEXT, sent, caller=b"{}", retention=RETENTION, options=options))

    assert (await said()).oldest == {ANN.agent: 0}


async def test_no_figure_reads_what_a_waiting_run_was_sent(store: AsyncStore, keys: Keys, said: Said) -> None:
    """A message may be large, anyone may ask for metrics at any time, and the store does nothing else meanwhile."""
    sent, options = request(task_id="t", context_id=CONTEXT), RunOptions(call=Call("plain", {"words": ["word"]}))
    await store.run(
        create_task(keys, ANN, "t", CONTEXT, sent, caller=b"{}", retention=RETENTION, options=options.to_json())
    )
    record = keys.task("t").record

    async with store.redis.monitor() as monitor:
        await said()
        await store.redis.echo("end")
        commands = []
        async for command in monitor.listen():
            if command["command"] == "ECHO end":
                break
            commands.append(command["command"])

    assert [command for command in commands if record in command and not command.startswith("FCALL")] == [
        f"HMGET {record} agent at begins_at unblocked_at resumed_at"
    ]


@pytest.mark.parametrize("ended", [False, True])
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
    store: AsyncStore, keys: Keys, seeds: Seeds, options: RunOptions, trace: str, ended: bool
) -> None:
    """Also behind its end, when what its run was published with is gone."""
    sent = request(task_id="t", context_id=CONTEXT)
    create = create_task(keys, ANN, "t", CONTEXT, sent, caller=b"{}", retention=RETENTION, options=options.to_json())
    await store.run(create)
    await Webhooks(store, keys).saved("t")
    claim = await seeds.claimed("t")
    if ended:
        await seeds.settled(claim, status(WORKING), status(COMPLETED))
        assert not await store.redis.hexists(keys.task("t").record, "options")

    [line] = await store.run(acquire_due_deliveries(keys, limit=10, lease_us=1_000_000))

    assert line.trace == trace
