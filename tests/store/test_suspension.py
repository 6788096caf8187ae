"""Suspended runs. A run continues at a time or on a signal, and each signal is received once and in order."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from a2a_celery.lifecycle import Suspended, final_event
from a2a_celery.lifecycle.own_metadata import CONTINUES_AT, NAMESPACE, WAITS_FOR
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.refusals import Reason, Refusal
from a2a_celery.lifecycle.signals import MAX_SIGNAL_ID
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.metrics import read_metrics
from a2a_celery.store.admin.scan import scan_list
from a2a_celery.store.runs.commands import (
    Claim,
    Dropped,
    Illegal,
    RunLost,
    Unchanged,
    append,
    claim_run,
    end_run,
    revoke_run,
)
from a2a_celery.store.runs.publication import acquire_due_runs
from a2a_celery.store.runs.release import read_activities
from a2a_celery.store.runs.suspension import suspend_run, take_signal
from a2a_celery.store.tasks.commands import continue_task, request_cancel
from a2a_celery.store.tasks.replies import CanceledNow
from a2a_celery.store.tasks.signals import MAX_STORED_SIGNALS, SignalResumed, SignalStored, send_signal
from tests.support.store.limits import limit_sections
from tests.support.store.replies import is_limited, reason_of, waits
from tests.support.store.seeds import (
    ANN,
    BOB,
    CONTEXT,
    LEASE_US,
    Seeds,
    chunk,
    request,
    run_concurrently,
    status,
)
from tests.support.store.suspensions import Suspensions, received_entry, timeout_entry, timer, wait_for

HOUR_US = 3_600_000_000


@pytest.fixture
def suspensions(seeds: Seeds) -> Suspensions:
    return Suspensions(seeds)


async def test_a_sleeping_run_has_no_lease_and_no_worker(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    claim = await seeds.claim_run()

    reply = await suspensions.suspend_run(claim, timer(wait_us=HOUR_US), status(WORKING, "soon"))

    assert (reply.state, reply.next_run) == (WORKING, None)
    assert await suspensions.suspended_runs() == [f"{claim.ref.task_id}.2"]
    assert await suspensions.queued_runs() == []
    assert await store.redis.zcard(keys.leases) == 0
    assert (await store.run(read_metrics(keys))).runs["suspended"] == 1
    assert await seeds.status_text(claim.ref.task_id) == "soon"
    await seeds.require_consistent(claim.ref.task_id)


async def test_a_run_continues_at_its_time_and_not_before(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    claim = await seeds.claim_run()
    await suspensions.suspend_run(claim, timer(wait_us=HOUR_US))
    assert await suspensions.resume_runs() == 0
    await suspensions.make_due(RunRef(claim.ref.task_id, 2))

    assert await suspensions.resume_runs() == 1

    [due] = await store.run(acquire_due_runs(keys, limit=10, delay_us=HOUR_US))
    assert due.ref == RunRef(claim.ref.task_id, 2)
    next_claim = await seeds.claim_run(claim.ref.task_id, run=2)
    assert next_claim.journal.entries == {"sleep#1": timeout_entry("sleep")}
    assert (next_claim.turn.number, next_claim.turn.attempt) == (claim.turn.number, claim.turn.attempt)
    assert await suspensions.suspended_runs() == []


async def test_the_time_of_a_wait_counts_from_the_clock_of_the_store(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    claim, other = await seeds.claim_run(), await seeds.claim_run()
    seconds, micros = await store.redis.time()
    now_us = seconds * 1_000_000 + micros

    await suspensions.suspend_run(claim, timer(wait_us=HOUR_US))
    await suspensions.suspend_run(other, timer(until_us=now_us + HOUR_US))

    due = dict(await store.redis.zrange(keys.suspended, 0, -1, withscores=True))
    assert due[f"{claim.ref.task_id}.2".encode()] == pytest.approx(now_us + HOUR_US, abs=5_000_000)
    assert due[f"{other.ref.task_id}.2".encode()] == now_us + HOUR_US


async def test_a_run_whose_time_has_passed_is_queued_at_once(seeds: Seeds, suspensions: Suspensions) -> None:
    claim = await seeds.claim_run()

    reply = await suspensions.suspend_run(claim, timer(until_us=1))

    assert reply.next_run == 2
    assert await suspensions.queued_runs() == [f"{claim.ref.task_id}.2"]


async def test_a_repeated_suspension_returns_the_same_reply(seeds: Seeds, suspensions: Suspensions) -> None:
    claim = await seeds.claim_run()

    first = await suspensions.suspend_run(claim, timer(wait_us=HOUR_US), status(WORKING, "soon"))

    assert await suspensions.suspend_run(claim, timer(wait_us=HOUR_US), status(WORKING, "soon")) == first
    assert len(await seeds.log(claim.ref.task_id)) == 3


async def test_only_the_holder_of_the_claim_suspends_a_run(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    data_before = await seeds.all_values()

    reply = await store.run(
        suspend_run(keys, claim.ref, token="other", written_count=0, events=[], wait=timer(wait_us=1), options=b"")
    )

    assert reply == RunLost()
    assert await seeds.all_values() == data_before


async def test_the_old_run_of_a_suspended_task_writes_nothing(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    claim = await seeds.claim_run(max_attempts=3)
    await suspensions.suspend_run(claim, timer(wait_us=HOUR_US))
    data_before = await seeds.all_values()
    failure = status(FAILED, "lost")

    assert (
        await store.run(append(keys, claim.ref, token=claim.token, written_count=0, events=[chunk("a")])) == RunLost()
    )
    copy = claim_run(keys, claim.ref, token="copy", runner="r", lease_us=LEASE_US, working=True)
    assert isinstance(await store.run(copy), Dropped)
    assert await store.run(end_run(keys, claim.ref, runner="runner", event=failure, lost=True)) == Unchanged()
    suspended_run = RunRef(claim.ref.task_id, 2)
    assert await store.run(end_run(keys, suspended_run, runner=None, event=failure)) == Unchanged()
    early = claim_run(keys, suspended_run, token="early", runner="r", lease_us=LEASE_US, working=True)
    assert isinstance(await store.run(early), Dropped)

    assert await seeds.all_values() == data_before


async def test_an_event_that_is_illegal_suspends_nothing(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    events = [status(COMPLETED), status(WORKING)]

    reply = await store.run(
        suspend_run(
            keys, claim.ref, token=claim.token, written_count=0, events=events, wait=timer(wait_us=1), options=b""
        )
    )

    assert reply == Illegal(2, WORKING)


async def test_cancel_ends_a_suspended_task_at_once(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    claim = await seeds.claim_run()
    await suspensions.suspend_run(claim, wait_for("go", wait_us=HOUR_US))
    await suspensions.send_signal(claim.ref.task_id, "other")

    reply = await store.run(request_cancel(keys, ANN, claim.ref.task_id, CONTEXT))

    assert isinstance(reply, CanceledNow)
    assert reply.run is None, "the broker has no message to revoke"
    assert (await seeds.task(claim.ref.task_id)).status.state == CANCELED
    assert await suspensions.suspended_runs() == []
    assert await suspensions.resume_runs() == 0


async def test_a_cancel_before_the_suspension_ends_the_task(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    claim = await seeds.claim_run()
    await store.run(request_cancel(keys, ANN, claim.ref.task_id, CONTEXT))

    reply = await suspensions.suspend_run(claim, timer(wait_us=HOUR_US))

    assert (reply.state, reply.next_run) == (CANCELED, None)
    assert await suspensions.suspended_runs() == []


async def test_an_operator_revokes_a_suspended_run(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    claim = await seeds.claim_run()
    await suspensions.suspend_run(claim, timer(wait_us=HOUR_US))

    await store.run(revoke_run(keys, RunRef(claim.ref.task_id, 2), event=status(CANCELED, "stop"), terminate=False))

    assert (await seeds.task(claim.ref.task_id)).status.state == CANCELED
    assert await suspensions.suspended_runs() == []


async def test_a_message_to_a_suspended_task_waits_for_the_end_of_its_turn(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    claim = await seeds.claim_run()
    await suspensions.suspend_run(claim, timer(wait_us=HOUR_US))
    message_request = request("more", claim.ref.task_id, CONTEXT)

    reply = await store.run(continue_task(keys, ANN, claim.ref.task_id, message_request, "", caller=b"{}", nonce="n"))

    assert waits(reply)


async def test_the_task_shows_when_it_continues_until_the_next_run_begins(
    seeds: Seeds, suspensions: Suspensions
) -> None:
    claim = await seeds.claim_run()
    event = final_event(Suspended("2030-01-01T00:00:00+00:00", "go"), claim.ref.task_id, CONTEXT)
    assert event is not None

    await suspensions.suspend_run(claim, wait_for("go", wait_us=HOUR_US), event)

    metadata = dict((await seeds.task(claim.ref.task_id)).metadata)
    assert metadata == {NAMESPACE + CONTINUES_AT: "2030-01-01T00:00:00+00:00", NAMESPACE + WAITS_FOR: "go"}
    await suspensions.send_signal(claim.ref.task_id, "go")
    next_claim = await seeds.claim_run(claim.ref.task_id, run=2)
    assert dict(next_claim.task.metadata) == {}
    await seeds.require_consistent(claim.ref.task_id)


async def test_a_suspended_run_keeps_the_place_of_its_context(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    claim = await seeds.claim_run(serialize_context=True)
    other = await seeds.create_task(serialize_context=True)
    await suspensions.suspend_run(claim, wait_for("go"))
    claim_blocked = claim_run(keys, RunRef(other, 1), token="x", runner="r", lease_us=LEASE_US, working=True)
    assert isinstance(await store.run(claim_blocked), Dropped)

    reply = await suspensions.send_signal(claim.ref.task_id, "go")

    assert isinstance(reply, SignalResumed)
    assert not reply.is_blocked
    next_claim = await seeds.claim_run(claim.ref.task_id, run=2)
    await seeds.settle_run(next_claim, status(COMPLETED))
    assert isinstance(await store.run(claim_blocked), Claim)


async def test_a_signal_resumes_the_run_that_waits_for_it(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    claim = await seeds.claim_run()
    await suspensions.suspend_run(claim, wait_for("go"), options=b'{"retries":2}')

    reply = await suspensions.send_signal(claim.ref.task_id, "go", b'{"by":"ann"}')

    steps = await store.run(read_activities(keys, claim.ref.task_id))
    assert steps is not None
    assert 0 < steps.resumed_us <= steps.now_us
    assert reply == SignalResumed(RunRef(claim.ref.task_id, 2), "agent", b'{"retries":2}')
    next_claim = await seeds.claim_run(claim.ref.task_id, run=2)
    assert next_claim.journal.entries is not None
    assert next_claim.journal.entries["go#1"].content == b'{"by":"ann"}'
    assert await store.redis.exists(keys.task(claim.ref.task_id).signals) == 0


async def test_a_signal_with_another_name_waits(seeds: Seeds, suspensions: Suspensions) -> None:
    claim = await seeds.claim_run()
    await suspensions.suspend_run(claim, wait_for("go"))

    assert await suspensions.send_signal(claim.ref.task_id, "other") == SignalStored()

    assert await suspensions.suspended_runs() == [f"{claim.ref.task_id}.2"]


async def test_a_signal_before_the_wait_is_received_by_the_first_wait(seeds: Seeds, suspensions: Suspensions) -> None:
    task_id = await seeds.create_task()
    for payload in (b"1", b"2"):
        await suspensions.send_signal(task_id, "go", payload)
    await suspensions.send_signal(task_id, "other", b"3")
    claim = await seeds.claim_run(task_id)

    entries = [await suspensions.take_signal(claim, "go", number) for number in (1, 2, 3)]

    assert [entry.content for entry in entries[:2] if not isinstance(entry, RunLost | None)] == [b"1", b"2"]
    assert entries[2] is None
    assert await suspensions.take_signal(claim, "go", 1) == entries[0], "a repeated call returns the same signal"


async def test_a_signal_between_the_check_and_the_suspension_is_not_lost(
    seeds: Seeds, suspensions: Suspensions
) -> None:
    claim = await seeds.claim_run()
    assert await suspensions.take_signal(claim, "go") is None
    assert await suspensions.send_signal(claim.ref.task_id, "go", b"7") == SignalStored()

    reply = await suspensions.suspend_run(claim, wait_for("go"))

    assert reply.next_run == 2
    next_claim = await seeds.claim_run(claim.ref.task_id, run=2)
    assert next_claim.journal.entries is not None
    assert next_claim.journal.entries["go#1"].content == b"7"


async def test_two_signals_at_once_resume_the_run_once(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    claim = await seeds.claim_run()
    await suspensions.suspend_run(claim, wait_for("go"))

    replies = await run_concurrently(
        *(suspensions.send_signal(claim.ref.task_id, "go", str(n).encode()) for n in range(20))
    )

    assert sum(isinstance(reply, SignalResumed) for reply in replies) == 1
    next_claim = await seeds.claim_run(claim.ref.task_id, run=2)
    entries = [await suspensions.take_signal(next_claim, "go", number) for number in range(2, 21)]
    assert next_claim.journal.entries is not None
    payloads = [
        next_claim.journal.entries["go#1"].content,
        *(e.content for e in entries if not isinstance(e, RunLost | None)),
    ]
    assert sorted(payloads) == sorted(str(n).encode() for n in range(20))
    assert await store.redis.exists(keys.task(claim.ref.task_id).signals) == 0


async def test_a_wait_ends_either_by_its_signal_or_by_its_time(seeds: Seeds, suspensions: Suspensions) -> None:
    """The script that runs first decides. The store keeps a late signal for the next wait."""
    outcomes = set()
    for round_number in range(20):
        claim = await seeds.claim_run()
        await suspensions.suspend_run(claim, wait_for("go", wait_us=HOUR_US))
        await suspensions.make_due(RunRef(claim.ref.task_id, 2))
        calls = [suspensions.resume_runs(), suspensions.send_signal(claim.ref.task_id, "go", b"5")]
        await asyncio.gather(*(calls if round_number % 2 else reversed(calls)))

        next_claim = await seeds.claim_run(claim.ref.task_id, run=2)
        assert next_claim.journal.entries is not None
        entry, rest = next_claim.journal.entries["go#1"], await suspensions.take_signal(next_claim, "go", 2)
        is_timeout = entry == timeout_entry("go")
        assert is_timeout == (rest is not None)
        outcomes.add(is_timeout)
        await seeds.settle_run(next_claim, status(COMPLETED))
    assert outcomes == {True, False}


async def test_a_wait_that_may_not_wait_records_its_timeout(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    claim = await seeds.claim_run()
    poll = take_signal(
        keys,
        claim.ref,
        token=claim.token,
        confirmed=0,
        signal="go",
        received=received_entry("go"),
        timeout=timeout_entry("go"),
    )

    assert await store.run(poll) == timeout_entry("go")
    await suspensions.send_signal(claim.ref.task_id, "go")
    assert await store.run(poll) == timeout_entry("go"), "the result of the wait does not change"


async def test_only_the_holder_of_the_claim_takes_a_signal(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    claim = await seeds.claim_run()
    await suspensions.send_signal(claim.ref.task_id, "go")

    stolen = take_signal(keys, claim.ref, token="other", confirmed=0, signal="go", received=received_entry("go"))

    assert await store.run(stolen) == RunLost()
    assert await suspensions.take_signal(claim, "go") is not None


async def test_a_signal_with_a_known_id_has_no_effect(seeds: Seeds, suspensions: Suspensions) -> None:
    claim = await seeds.claim_run()
    await suspensions.suspend_run(claim, wait_for("go"))

    first = await suspensions.send_signal(claim.ref.task_id, "go", b"1", "id 1")
    assert isinstance(first, SignalResumed)
    assert await suspensions.send_signal(claim.ref.task_id, "go", b"1", "id 1") == first, (
        "the caller publishes the run again"
    )

    next_claim = await seeds.claim_run(claim.ref.task_id, run=2)
    assert await suspensions.send_signal(claim.ref.task_id, "go", b"1", "id 1") == SignalStored()
    assert await suspensions.take_signal(next_claim, "go", 2) is None


async def test_remembered_ids_of_signals_are_short(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    """The ids do not count towards the size of a task, so a client must not be able to store much data in them."""
    task_id = await seeds.create_task()
    ids = [f"{n}".ljust(MAX_SIGNAL_ID, "\U0001f600") for n in range(MAX_STORED_SIGNALS)]
    replies = [await suspensions.send_signal(task_id, "go", b"1", signal_id) for signal_id in ids]
    assert set(replies) == {SignalStored()}

    assert await store.redis.hstrlen(keys.task(task_id).record, "signal_ids") <= 64 * MAX_STORED_SIGNALS
    for signal_id in ids:
        assert await suspensions.send_signal(task_id, "go", b"1", signal_id) == SignalStored()
    assert await store.redis.llen(keys.task(task_id).signals) == MAX_STORED_SIGNALS


async def test_signals_that_find_no_task_or_no_room_are_refused(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    task_id, ended_id = await seeds.create_task(), await seeds.create_task_in(COMPLETED)
    results = [await suspensions.send_signal(task_id, "go", str(n).encode()) for n in range(MAX_STORED_SIGNALS)]
    assert set(results) == {SignalStored()}
    data_before = await seeds.all_values()

    assert reason_of(await suspensions.send_signal(task_id, "go", b"one more")) is Reason.TOO_MANY_SIGNALS
    assert reason_of(await suspensions.send_signal("unknown", "go")) is Reason.MISSING
    assert await suspensions.send_signal(ended_id, "go") == Refusal(
        Reason.SIGNAL_AFTER_END, ended_id, {"state": COMPLETED}
    )
    of_another = send_signal(keys, BOB, task_id, name="go", payload=b"1", signal_id="x")
    assert reason_of(await store.run(of_another)) is Reason.MISSING
    large_signal = send_signal(keys, ANN, task_id, name="go", payload=b"1", signal_id="x", max_bytes=10)
    assert reason_of(await store.run(large_signal)) is Reason.SIGNAL_TOO_LARGE
    sections = limit_sections(keys, owner_bytes=1)
    limited = send_signal(keys, ANN, task_id, name="go", payload=b"12", signal_id="x", sections=sections)
    assert is_limited(await store.run(limited))

    assert await seeds.all_values() == data_before


async def test_signals_are_kept_for_the_next_turn(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    task_id = await seeds.create_task_in(INPUT_REQUIRED)
    await suspensions.send_signal(task_id, "go", b"4")
    message_request = request("more", task_id, CONTEXT)
    await store.run(continue_task(keys, ANN, task_id, message_request, "", caller=b"{}", nonce="n"))

    entry = await suspensions.take_signal(await seeds.claim_run(task_id, run=2), "go")

    assert not isinstance(entry, RunLost | None)
    assert entry.content == b"4"


async def test_a_requeued_task_receives_the_signals_of_its_dead_letter(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    claim = await seeds.claim_run()
    await suspensions.send_signal(claim.ref.task_id, "go", b"9")
    await seeds.recover_run(claim.ref)

    task_id, result = await seeds.requeue_task(claim.ref.task_id)

    assert result == "requeued"
    entry = await suspensions.take_signal(await seeds.claim_run(task_id), "go")
    assert not isinstance(entry, RunLost | None)
    assert entry.content == b"9"


async def test_bytes_of_a_signal_count_while_it_is_stored(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    claim = await seeds.claim_run()
    record = keys.task(claim.ref.task_id).record
    sizes = [int(await store.redis.hget(record, "size"))]
    await suspensions.send_signal(claim.ref.task_id, "go", b"x" * 100)
    sizes.append(int(await store.redis.hget(record, "size")))
    await store.run(
        take_signal(keys, claim.ref, token=claim.token, confirmed=0, signal="go", received=received_entry("go"))
    )
    sizes.append(int(await store.redis.hget(record, "size")))

    assert all(sizes[0] < size for size in sizes[1:])
    assert sizes[2] - sizes[0] == await store.redis.hstrlen(keys.task(claim.ref.task_id).journal, "go#1") + len("go#1")


async def test_a_resumed_run_is_published_once_at_a_time_by_watchers(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    claims = [await seeds.claim_run() for _ in range(5)]
    for claim in claims:
        await suspensions.suspend_run(claim, timer(wait_us=HOUR_US))
        await suspensions.make_due(RunRef(claim.ref.task_id, 2))

    await run_concurrently(*(suspensions.resume_runs(2) for _ in range(6)))
    batches = await run_concurrently(*(store.run(acquire_due_runs(keys, limit=2, delay_us=HOUR_US)) for _ in range(6)))

    names = sorted(run.ref.name for batch in batches for run in batch)
    assert names == sorted(f"{claim.ref.task_id}.2" for claim in claims)
    assert all(first != second for first, second in pairwise(names))


async def test_a_suspended_run_is_listed_for_operators(
    store: AsyncStore, keys: Keys, seeds: Seeds, suspensions: Suspensions
) -> None:
    claim = await seeds.claim_run()
    await suspensions.suspend_run(claim, wait_for("go"))

    [summary] = (await store.run(scan_list(keys, keys.suspended))).tasks

    assert summary.ref == RunRef(claim.ref.task_id, 2)
    assert summary.score == float("inf")


async def test_the_entry_of_a_missing_task_leaves_the_list(
    store: AsyncStore, keys: Keys, suspensions: Suspensions
) -> None:
    await store.redis.zadd(keys.suspended, {"gone.2": 1})

    assert await suspensions.resume_runs() == 1
    assert await suspensions.suspended_runs() == []
