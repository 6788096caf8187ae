"""Republishing of runs that no worker claims. One watcher at a time publishes a run, with exponential backoff."""

from __future__ import annotations

import asyncio

import pytest

from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import FAILED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.operation import FIRST_PUBLISH_GRACE_US
from a2a_celery.store.runs.publication import (
    MAX_CLAIMED_OPTIONS,
    MAX_REDISPATCH_WAIT_US,
    ClaimedRun,
    DueRun,
    Publication,
    PublicationRecorder,
    acquire_due_runs,
    claimed_runs,
    mark_all_published,
    mark_published,
    postpone_runs,
    report_prefetched,
)
from a2a_celery.store.runs.recovery import Requeued, return_run
from a2a_celery.store.runs.release import Released, release_run
from a2a_celery.store.tasks.commands import continue_task, create_task
from tests.support.store.seeds import ANN, CONTEXT, Seeds, request, run_concurrently, status

AGAIN_US = 60_000_000


class Clock:
    """Test helper that reads and changes the due times of runs."""

    def __init__(self, store: AsyncStore, keys: Keys) -> None:
        self._store, self._keys = store, keys

    async def due_in(self, ref: RunRef) -> float:
        """Return the microseconds until the run is published again."""
        seconds, micros = await self._store.redis.time()
        score = await self._store.redis.zscore(self._keys.dispatch, ref.name)
        assert score is not None
        return float(score) - (seconds * 1_000_000 + micros)

    async def make_due(self, *refs: RunRef) -> None:
        await self._store.redis.zadd(self._keys.dispatch, {ref.name: 1 for ref in refs})

    async def take(self, limit: int = 100) -> list[DueRun]:
        """Acquire due runs, as a watcher does."""
        return await self._store.run(acquire_due_runs(self._keys, limit=limit, delay_us=AGAIN_US))


@pytest.fixture
def clock(store: AsyncStore, keys: Keys) -> Clock:
    return Clock(store, keys)


async def test_a_new_run_is_not_due_until_its_creator_had_time_to_publish_it(seeds: Seeds, clock: Clock) -> None:
    ref = RunRef(await seeds.create_task(), 1)

    due = await clock.take()

    assert due == []
    assert 0 < await clock.due_in(ref) <= FIRST_PUBLISH_GRACE_US


async def test_a_due_run_is_taken_with_its_agent(seeds: Seeds, clock: Clock) -> None:
    ref = RunRef(await seeds.create_task(), 1)
    await clock.make_due(ref)

    assert await clock.take() == [DueRun(ref, ANN.agent, b"")]


@pytest.mark.parametrize("task_id", ["a.b.7", "with space", "colon:brace{}", "ünï", "%41"])
async def test_any_task_id_is_found_again(seeds: Seeds, clock: Clock, task_id: str) -> None:
    ref = RunRef(await seeds.create_task(task_id=task_id), 1)
    await clock.make_due(ref)

    assert await clock.take() == [DueRun(ref, ANN.agent, b"")]


async def test_two_watchers_never_acquire_the_same_run(seeds: Seeds, clock: Clock) -> None:
    refs = [RunRef(await seeds.create_task(), 1) for _ in range(40)]
    await clock.make_due(*refs)

    batches = await run_concurrently(*(clock.take(limit=7) for _ in range(8)))

    assert sorted(due.ref.name for batch in batches for due in batch) == sorted(ref.name for ref in refs)
    assert max(map(len, batches)) <= 7


async def test_the_delay_doubles_up_to_a_limit(seeds: Seeds, clock: Clock) -> None:
    ref = RunRef(await seeds.create_task(), 1)

    waits = []
    for _ in range(9):
        await clock.make_due(ref)
        await clock.take()
        waits.append(await clock.due_in(ref))

    expected = [min(AGAIN_US * 2**n, MAX_REDISPATCH_WAIT_US) for n in range(9)]
    assert all(want - 20_000_000 < wait <= want for wait, want in zip(waits, expected, strict=True))
    assert expected[-1] == MAX_REDISPATCH_WAIT_US


async def test_the_next_run_of_a_task_starts_with_the_shortest_delay(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock
) -> None:
    task_id = await seeds.create_task()
    for _ in range(3):
        await clock.make_due(RunRef(task_id, 1))
        await clock.take()
    await seeds.settle_run(await seeds.claim_run(task_id), status(INPUT_REQUIRED))
    await store.run(continue_task(keys, ANN, task_id, request("x", task_id, CONTEXT), "", caller=b"{}", nonce="n"))

    await clock.make_due(RunRef(task_id, 2))
    await clock.take()

    assert await clock.due_in(RunRef(task_id, 2)) <= AGAIN_US


async def test_a_claimed_run_is_never_due(store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock) -> None:
    claim = await seeds.claim_run()
    await clock.make_due(claim.ref, RunRef("gone", 1), RunRef(claim.ref.task_id, 2))

    assert await clock.take() == []
    assert await store.redis.zcard(keys.dispatch) == 0


async def test_a_published_run_is_left_alone_for_a_while(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock
) -> None:
    ref = RunRef(await seeds.create_task(), 1)
    await clock.make_due(ref)

    await store.run(mark_published(keys, ref, delay_us=AGAIN_US))

    assert await clock.take() == []
    assert AGAIN_US - 20_000_000 < await clock.due_in(ref) <= AGAIN_US


async def test_a_claim_before_the_publisher_is_done_is_not_undone(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    data_before = await seeds.all_values()

    await store.run(mark_published(keys, claim.ref, delay_us=AGAIN_US))

    assert await seeds.all_values() == data_before


async def test_a_retry_before_the_publisher_is_done_is_due_at_its_time(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock
) -> None:
    claim = await seeds.claim_run()
    options, events = b'{"retries":1}', [status(WORKING)]
    release = release_run(
        keys, claim.ref, token=claim.token, written_count=0, events=events, options=options, retries=1, delay_us=0
    )
    assert isinstance(await store.run(release), Released)

    await store.run(mark_published(keys, claim.ref, delay_us=AGAIN_US))
    assert await clock.due_in(claim.ref) <= 0
    await store.run(mark_published(keys, claim.ref, delay_us=AGAIN_US, retries=1))
    assert await clock.due_in(claim.ref) > 0


async def test_a_run_with_a_start_time_is_due_again_after_it_with_its_options(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock
) -> None:
    seconds, _ = await store.redis.time()
    options = b'{"celery":{"queue":"far"},"not_before_us":%d}' % ((seconds + 3600) * 1_000_000)
    message_request, ref = request("hello", "t", CONTEXT), RunRef("t", 1)
    call = create_task(keys, ANN, "t", CONTEXT, message_request, caller=b"{}", retention=60, options=options)
    await store.run(call)
    await clock.make_due(ref)

    assert await clock.take() == [DueRun(ref, ANN.agent, options)]
    assert abs(await clock.due_in(ref) - (3600_000_000 + AGAIN_US)) < 5_000_000


async def test_each_turn_has_its_own_options(store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock) -> None:
    claim = await seeds.claim_run()
    task_id = claim.ref.task_id
    for nonce, options in (("1", b'{"celery":{}}'), ("2", b"")):
        message_request = request("x", task_id, CONTEXT)
        await store.run(
            continue_task(keys, ANN, task_id, message_request, "", caller=b"{}", nonce=nonce, options=options)
        )

    turns = []
    for run in (2, 3):
        result = await seeds.settle_run(claim, status(INPUT_REQUIRED))
        await clock.make_due(RunRef(task_id, run))
        [due] = await clock.take()
        turns.append((result.next_run, result.next_options, due.options))
        claim = await seeds.claim_run(task_id, run=run)

    assert turns == [(2, b'{"celery":{}}', b'{"celery":{}}'), (3, b"", b"")]


async def test_a_prefetched_run_is_due_when_its_worker_stops_reporting(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock
) -> None:
    ref = RunRef(await seeds.create_task(), 1)
    await store.run(mark_published(keys, ref, delay_us=AGAIN_US))

    await store.run(report_prefetched(keys, [ref], silent_us=15_000_000, delay_us=AGAIN_US))
    first = await clock.due_in(ref)
    await store.run(report_prefetched(keys, [ref], silent_us=20_000_000, delay_us=AGAIN_US))

    assert 0 < first <= 15_000_000 < await clock.due_in(ref) <= 20_000_000


async def test_a_busy_worker_does_not_delay_a_run_longer_than_a_fresh_publish(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock
) -> None:
    ref = RunRef(await seeds.create_task(), 1)
    await store.run(mark_published(keys, ref, delay_us=1_000_000))

    for _ in range(3):
        await store.run(report_prefetched(keys, [ref], silent_us=AGAIN_US, delay_us=9_000_000))

    assert 1_000_000 < await clock.due_in(ref) <= 9_000_000


async def test_a_late_publish_record_does_not_make_a_prefetched_run_due(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock
) -> None:
    ref = RunRef(await seeds.create_task(), 1)
    await store.run(report_prefetched(keys, [ref], silent_us=4_000_000, delay_us=AGAIN_US))

    await store.run(mark_published(keys, ref, delay_us=AGAIN_US))
    due_time = await clock.due_in(ref)
    await store.run(report_prefetched(keys, [ref], silent_us=30_000_000, delay_us=AGAIN_US))

    assert due_time <= 4_000_000 < FIRST_PUBLISH_GRACE_US < await clock.due_in(ref) <= 30_000_000


async def test_a_run_prefetched_before_its_publish_was_recorded_is_not_published_again(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock
) -> None:
    """The worker's prefetch report takes precedence over the short deadline of an unpublished run."""
    ref = RunRef(await seeds.create_task(), 1)
    await store.run(report_prefetched(keys, [ref], silent_us=15_000_000, delay_us=AGAIN_US))

    await store.run(mark_published(keys, ref, delay_us=AGAIN_US))

    assert FIRST_PUBLISH_GRACE_US < await clock.due_in(ref) <= 15_000_000


async def test_several_runs_are_marked_each_with_its_own_time(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock
) -> None:
    refs = [RunRef(await seeds.create_task(task_id=f"t{number}"), 1) for number in range(3)]

    await store.run(mark_all_published(keys, {refs[0]: Publication(10_000_000), refs[2]: Publication(30_000_000)}))

    assert [round((await clock.due_in(ref)) / 10_000_000) for ref in refs] == [1, 0, 3]


async def test_a_recorder_that_is_closed_during_a_write_loses_no_run(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock
) -> None:
    refs = [RunRef(await seeds.create_task(task_id=f"t{number}"), 1) for number in range(2)]
    is_writing, may_write = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        is_writing.set()
        await may_write.wait()

    store.first = hold
    recorder = PublicationRecorder(store, keys)
    recorder.add(refs[0], AGAIN_US)
    await is_writing.wait()
    recorder.add(refs[1], AGAIN_US)
    closing = asyncio.create_task(recorder.aclose())
    await asyncio.sleep(0)  # the closing begins
    may_write.set()
    await closing

    assert [round(await clock.due_in(ref) / AGAIN_US) for ref in refs] == [1, 1]


async def test_a_run_of_a_silent_worker_is_due_again_after_the_full_delay(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock
) -> None:
    ref = RunRef(await seeds.create_task(), 1)
    await store.run(mark_published(keys, ref, delay_us=1_000_000))
    await store.run(report_prefetched(keys, [ref], silent_us=0, delay_us=AGAIN_US))
    assert await clock.take() == [DueRun(ref, ANN.agent, b"")]
    assert await clock.take() == []

    await store.run(report_prefetched(keys, [ref], silent_us=30_000_000, delay_us=AGAIN_US))

    assert 1_000_000 < await clock.due_in(ref) <= 30_000_000


async def test_reporting_a_claimed_or_unknown_run_as_prefetched_does_nothing(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock
) -> None:
    claim = await seeds.claim_run()
    data_before = await seeds.all_values()

    await store.run(report_prefetched(keys, [claim.ref, RunRef("unknown", 1)], silent_us=0, delay_us=AGAIN_US))

    assert await seeds.all_values() == data_before


async def test_unreadable_options_delay_no_run(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    """Python's JSON parser accepts an unpaired surrogate, but the parser of Redis rejects it. A run with such options
    must not delay other runs."""
    unreadable, readable = await seeds.create_task(task_id="a"), await seeds.create_task(task_id="b")
    options = b'{"call":{"task":"t","kwargs":{"text":"\\ud800"}}}'
    await store.redis.hset(keys.task(unreadable).record, "options", options)
    for task_id in (unreadable, readable):
        await store.run(mark_published(keys, RunRef(task_id, 1), delay_us=0))

    due = await store.run(acquire_due_runs(keys, limit=10, delay_us=60_000_000))
    back = await store.run(return_run(keys, RunRef(unreadable, 1), runner=None, loss=status(FAILED, "lost")))

    assert [(run.ref.task_id, run.options) for run in due] == [(unreadable, options), (readable, b"")]
    assert back == Requeued(ANN.agent, 2, options)


async def test_a_due_run_has_the_time_since_which_it_may_be_queued(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock
) -> None:
    ref = RunRef(await seeds.create_task(), 1)
    await store.run(mark_published(keys, ref, delay_us=0))

    [first] = await clock.take()
    await clock.make_due(ref)
    [second] = await clock.take()

    assert first.published_us is not None
    assert first.published_us <= first.acquired_us == second.published_us, (
        "the watcher that acquired it has published it"
    )


async def test_an_unpublished_or_lost_prefetched_run_is_in_no_queue(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock
) -> None:
    unpublished_run, prefetched_run = [RunRef(await seeds.create_task(), 1) for _ in range(2)]
    await store.run(mark_published(keys, prefetched_run, delay_us=AGAIN_US))
    await store.run(report_prefetched(keys, [prefetched_run], silent_us=0, delay_us=AGAIN_US))
    await clock.make_due(unpublished_run)

    assert [run.published_us for run in await clock.take()] == [None, None]


async def test_a_run_prefetched_by_a_busy_worker_may_have_a_copy_in_its_queue(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock
) -> None:
    ref = RunRef(await seeds.create_task(), 1)
    is_in_queue = []
    for _ in range(3):
        await store.run(mark_published(keys, ref, delay_us=AGAIN_US))
        await store.run(report_prefetched(keys, [ref], silent_us=AGAIN_US, delay_us=AGAIN_US))
        await clock.make_due(ref)
        [run] = await clock.take()
        is_in_queue.append(run.published_us is not None)

    assert is_in_queue == [False, True, True]


async def test_a_run_is_published_unconditionally_after_the_longest_delay_and_its_double(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock
) -> None:
    ref = RunRef(await seeds.create_task(), 1)

    async def is_taken_as_queued(hours: float) -> bool:
        seconds, _ = await store.redis.time()
        at = int((seconds - hours * 3600) * 1_000_000)
        await store.redis.hset(keys.task(ref.task_id).record, "published_at", f"1 {at}")
        await clock.make_due(ref)
        [run] = await clock.take()
        return run.published_us is not None

    assert not await is_taken_as_queued(1.01)
    assert await is_taken_as_queued(1.9)
    assert not await is_taken_as_queued(4.01)


async def test_postponing_restores_the_state_before_the_acquisition(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock
) -> None:
    refs = [RunRef(await seeds.create_task(), 1) for _ in range(2)]
    await store.run(mark_published(keys, refs[1], delay_us=0))
    await clock.make_due(*refs)
    records = [keys.task(ref.task_id).record for ref in refs]
    fields = ("republish_count", "published_at")
    fields_before = [await store.redis.hmget(record, *fields) for record in records]

    due = await clock.take()
    await store.run(postpone_runs(keys, dict.fromkeys(due, 7_000_000)))

    fields_after = [await store.redis.hmget(record, *fields) for record in records]
    assert [(int(times or 0), at) for times, at in fields_after] == [
        (int(times or 0), at) for times, at in fields_before
    ]
    assert all([0 < await clock.due_in(ref) <= 7_000_000 for ref in refs])


async def test_postponing_a_claimed_or_an_unknown_run_does_nothing(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    data_before = await seeds.all_values()

    await store.run(postpone_runs(keys, {DueRun(ref, "", b"", 1): 1 for ref in (claim.ref, RunRef("unknown", 1))}))

    assert await seeds.all_values() == data_before


async def test_claimed_runs_are_the_active_ones_with_the_time_of_their_only_publish(
    store: AsyncStore, keys: Keys, seeds: Seeds, clock: Clock
) -> None:
    single_run, repeated_run, queued_run, unmarked_run, ended_run, large_run = [
        RunRef(await seeds.create_task(), 1) for _ in range(6)
    ]
    for ref in (single_run, repeated_run, queued_run, ended_run, large_run):
        await store.run(mark_published(keys, ref, delay_us=AGAIN_US))
    await clock.make_due(repeated_run)
    await clock.take()
    await store.redis.hset(keys.task(large_run.task_id).record, "options", "x" * (MAX_CLAIMED_OPTIONS + 1))
    for ref in (single_run, repeated_run, unmarked_run, large_run):
        await seeds.claim_run(ref.task_id)
    await seeds.settle_run(await seeds.claim_run(ended_run.task_id), status(FAILED))
    data_before = await seeds.all_values()

    [run] = await store.run(claimed_runs(keys, limit=10))

    published_at = await store.redis.hget(keys.task(single_run.task_id).record, "published_at")
    assert run == ClaimedRun(ANN.agent, b"", int(published_at.split()[1]))
    assert await seeds.all_values() == data_before


async def test_claimed_runs_of_the_newest_leases_are_read(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    refs = [RunRef(await seeds.create_task(task_id=f"t{n}"), 1) for n in range(5)]
    for ref in refs:
        await store.run(mark_published(keys, ref, delay_us=AGAIN_US))
        await seeds.claim_run(ref.task_id)
        await store.redis.hset(keys.task(ref.task_id).record, "published_at", f"1 {ref.task_id[1:]}")

    runs = await store.run(claimed_runs(keys, limit=2))

    assert [run.published_us for run in runs] == [4, 3]
