"""Recovery of lost runs. A lost run is recovered once, up to the agent's maximum of attempts, and never while its
worker is alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar, cast

import pytest
from a2a.types import TaskArtifactUpdateEvent, TaskState

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.dispatch import Call, Publisher, RunOptions
from a2a_celery.errors import StoreUnavailable
from a2a_celery.features.sessions.section import SessionSection, checkpoint, session_prefix
from a2a_celery.lifecycle import LogEntry
from a2a_celery.lifecycle.outcomes import CANCELED_BY_CLIENT
from a2a_celery.lifecycle.own_metadata import ATTEMPT, MAX_ATTEMPTS, own_metadata
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import AUTH_REQUIRED, CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys, Operation
from a2a_celery.store.runs.commands import Claim, RunLost, append, claim_run, settle_run
from a2a_celery.store.runs.recovery import GivenUp, Lapse, Lapsed, lapse_run, lapsed_runs, left_open, return_run
from a2a_celery.store.runs.release import delegate_to_canvas
from a2a_celery.store.runs.renewal import renew_runs
from a2a_celery.store.tasks.commands import continue_task, create_task, request_cancel
from a2a_celery.watcher.recoverer import RETRY_AFTER, Recoverer, delay_after
from tests.store.test_cost import Meter
from tests.support.clocks import ManualClock, StoreTime
from tests.support.processes.moved_clock import MovedClock
from tests.support.processes.restarts import allow_writes, mortal_redis, refuse_writes, suspend_server
from tests.support.store.replies import is_delivered
from tests.support.store.seeds import ANN, CONTEXT, LEASE_US, RETENTION, Seeds, chunk, request, run_concurrently, status

T = TypeVar("T")

LEASE_TTL = 20.0
"""Duration of the leases in seconds. Half of it is the time for which a watcher waits for workers."""


async def lose_run(store: AsyncStore, keys: Keys, seeds: Seeds, *, max_attempts: int = 1) -> Claim:
    """Claim a run and let its lease expire."""
    task_id = await seeds.create_task()
    ref = RunRef(task_id, 1)
    claim = await store.run(
        claim_run(keys, ref, token="t", runner="r", lease_us=-1, working=True, max_attempts=max_attempts)
    )
    assert isinstance(claim, Claim)
    return claim


async def test_several_watchers_fail_the_task_of_a_lost_run_once(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await lose_run(store, keys, seeds)

    await run_concurrently(*(Recoverer(store, keys).tick() for _ in range(4)))

    states = await seeds.states(claim.ref.task_id)
    assert states[-1] == FAILED
    assert states.count(FAILED) == 1
    assert (await seeds.task(claim.ref.task_id)).status.message.parts[0].text == "The worker was lost."
    await seeds.require_consistent(claim.ref.task_id)


async def test_a_worker_that_lost_its_run_can_write_nothing(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await lose_run(store, keys, seeds, max_attempts=2)
    await Recoverer(store, keys).tick()

    answer = await store.run(append(keys, claim.ref, token=claim.token, written_count=0, events=[status(COMPLETED)]))

    assert answer == RunLost()
    assert (await seeds.task(claim.ref.task_id)).status.state == WORKING


NOT_AFTER = datetime(2030, 1, 1, tzinfo=UTC)
CALL = Call("tasks.resize", {"call": {"task": "x"}, "not_after_us": 1, "text": ',"not_after_us":2'})
TRACE = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": 'x=",\\"not_after_us\\":3'}


@pytest.mark.parametrize(
    "options",
    [
        RunOptions(not_after=NOT_AFTER),
        RunOptions({"queue": "gpu"}, not_after=NOT_AFTER),
        RunOptions({"priority": 3}, NOT_AFTER, NOT_AFTER, CALL, retries=1, trace=TRACE),
        RunOptions(call=CALL),
        RunOptions(trace=TRACE),
        RunOptions(),
    ],
)
@pytest.mark.parametrize("is_returned", [False, True])
async def test_the_latest_start_limits_the_first_attempt_only(
    store: AsyncStore, keys: Keys, seeds: Seeds, options: RunOptions, is_returned: bool
) -> None:
    """Otherwise, the task of a lost run would be rejected because "the run did not begin in time"."""
    task_id, head = "t", (CONTEXT, request(task_id="t"))
    create = create_task(keys, ANN, task_id, *head, caller=b"{}", retention=RETENTION, options=options.to_json())
    await store.run(create)
    claim = await seeds.claim_run(task_id, max_attempts=2)
    if is_returned:
        lost = status(FAILED)
        assert isinstance(await store.run(return_run(keys, claim.ref, runner="runner", loss=lost)), GivenUp)

    lapse = await seeds.recover_run(claim.ref)

    assert RunOptions.from_json(lapse.next_options) == replace(options, not_after=None)
    assert (await seeds.claim_run(task_id, run=2, max_attempts=2)).options == lapse.next_options


class SelectiveStore(AsyncStore):
    """Store that cannot execute `script` for the task `unusable`, and is unavailable after `scans` reads of lapsed
    runs."""

    script = "read_task"
    unusable = ""
    scans = 1000

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.failed: list[str] = []

    async def run(self, operation: Operation[T]) -> T:
        if operation.script.name == self.script and self.unusable and self.unusable in operation.keys[0]:
            self.failed.append(operation.keys[0].partition("{")[2].partition("}")[0])
            raise StoreUnavailable("it took too long")
        if operation.script.name == "lapsed_runs":
            self.scans -= 1
            if self.scans < 0:
                raise StoreUnavailable("away")
        return await super().run(operation)


@pytest.mark.parametrize("script", ["read_task", "lapse_run"], ids=["read", "written"])
async def test_a_task_that_cannot_be_read_or_written_does_not_stop_the_recovery_of_others(
    redis_server: EmbeddedRedis, store: AsyncStore, keys: Keys, seeds: Seeds, script: str
) -> None:
    first, *others = [(await lose_run(store, keys, seeds)).ref.task_id for _ in range(4)]
    selective, clock = SelectiveStore(redis_server.store_url), ManualClock()
    selective.script, selective.unusable = script, first
    recoverer = Recoverer(selective, keys, clock=clock)

    await recoverer.tick()
    assert [(await seeds.states(task_id))[-1] for task_id in (first, *others)] == [WORKING, FAILED, FAILED, FAILED]

    assert set(selective.failed) == {first}
    selective.unusable = ""
    await recoverer.tick()
    assert (await seeds.states(first))[-1] == WORKING, "not at once: its reading may take long"
    clock.advance(RETRY_AFTER)
    await recoverer.tick()
    assert (await seeds.states(first))[-1] == FAILED
    await selective.aclose()


async def test_an_unavailable_store_stops_the_scan_at_once(
    redis_server: EmbeddedRedis, store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    claims = [await lose_run(store, keys, seeds) for _ in range(2)]
    selective = SelectiveStore(redis_server.store_url)
    selective.unusable = "{"  # any task
    selective.scans = 1

    with pytest.raises(StoreUnavailable, match="away"):
        await Recoverer(selective, keys).tick()

    assert selective.failed == [claims[0].ref.task_id]
    await selective.aclose()


async def test_the_contents_of_a_task_are_not_read_to_fail_it(
    redis_server: EmbeddedRedis, store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    claim = await lose_run(store, keys, seeds)
    await seeds.append_events(claim, chunk("x" * 100_000, append=False))
    meter, recording = Meter(store), Recoverer(store, keys)

    bytes_before = await meter.bytes_sent()
    await recording.tick()

    assert await meter.bytes_sent() - bytes_before < 20_000
    assert (await seeds.states(claim.ref.task_id))[-1] == FAILED


async def test_an_agent_runs_again_up_to_its_maximum_of_attempts(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await lose_run(store, keys, seeds, max_attempts=3)
    for attempt in (2, 3):
        await Recoverer(store, keys).tick()
        task = await seeds.task(claim.ref.task_id)
        assert dict(task.metadata) == own_metadata({ATTEMPT: attempt, MAX_ATTEMPTS: 3})
        result = await store.run(
            claim_run(
                keys,
                RunRef(claim.ref.task_id, attempt),
                token="t",
                runner="r",
                lease_us=-1,
                working=True,
                max_attempts=3,
            )
        )
        assert isinstance(result, Claim)
        assert (result.turn.attempt, result.turn.number) == (attempt, 1)

    await Recoverer(store, keys).tick()

    assert (await seeds.task(claim.ref.task_id)).status.state == FAILED
    await seeds.require_consistent(claim.ref.task_id)


async def test_open_artifacts_of_a_lost_run_are_removed(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await lose_run(store, keys, seeds, max_attempts=2)
    whole_chunk = chunk("whole", "w", append=False)
    whole_chunk.last_chunk = True
    await seeds.append_events(claim, whole_chunk, chunk("half", "h", append=False), chunk(" more", "h"))

    await Recoverer(store, keys).tick()

    assert [artifact.artifact_id for artifact in (await seeds.task(claim.ref.task_id)).artifacts] == ["w"]
    await seeds.require_consistent(claim.ref.task_id)


async def steer(store: AsyncStore, keys: Keys, claim: Claim) -> None:
    """Send a message to the claimed run of an agent with ``on_message="steer"``."""
    message = continue_task(
        keys,
        ANN,
        claim.ref.task_id,
        request("left", claim.ref.task_id, CONTEXT),
        "",
        caller=b"{}",
        nonce="n",
        on_message="steer",
    )
    assert is_delivered(await store.run(message))


async def test_open_artifacts_of_a_lost_run_are_removed_despite_a_message(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    claim = await seeds.claim_run(max_attempts=2)
    await seeds.append_events(claim, chunk("half", append=False))
    await steer(store, keys, claim)

    assert (await seeds.recover_run(claim.ref)).outcome == "again"

    assert not (await seeds.task(claim.ref.task_id)).artifacts
    await seeds.require_consistent(claim.ref.task_id)


@pytest.mark.parametrize("state", [COMPLETED, INPUT_REQUIRED])
@pytest.mark.parametrize("text", ["", "done"])
async def test_artifacts_of_the_turn_before_an_unread_message_are_kept(
    store: AsyncStore, keys: Keys, seeds: Seeds, state: TaskState, text: str
) -> None:
    claim = await seeds.claim_run()
    await steer(store, keys, claim)
    await seeds.append_events(claim, chunk("the result", append=False))
    await seeds.settle_run(claim, status(state, text), written_count=1)
    next_claim = await seeds.claim_run(claim.ref.task_id, run=2, max_attempts=2)
    await seeds.append_events(next_claim, chunk("half", "b", append=False))

    assert (await seeds.recover_run(next_claim.ref)).outcome == "again"

    assert [artifact.artifact_id for artifact in (await seeds.task(claim.ref.task_id)).artifacts] == ["a"]
    await seeds.require_consistent(claim.ref.task_id)


async def test_a_cancel_request_of_a_lost_run_is_carried_out(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await lose_run(store, keys, seeds, max_attempts=5)
    await store.run(request_cancel(keys, ANN, claim.ref.task_id, CONTEXT))

    await Recoverer(store, keys).tick()

    assert (await seeds.task(claim.ref.task_id)).status.state == CANCELED
    assert await seeds.status_text(claim.ref.task_id) == CANCELED_BY_CLIENT


async def restore_half(seeds: Seeds, **options: int) -> Claim:
    """Claim a run, append six events, and restore a backup that lacks the last three. The lease continues."""
    claim = await seeds.claim_run(**options)
    await seeds.append_events(claim, *(chunk(str(n)) for n in range(3)))
    backup = await seeds.backup()
    await seeds.append_events(claim, *(chunk(str(n)) for n in range(3, 6)), written_count=3)
    await seeds.restore(backup)
    return claim


LAST_CHUNK, END = [chunk("6")], [chunk("6"), status(COMPLETED)]


@pytest.mark.parametrize(
    "write",
    [
        lambda keys, claim: append(keys, claim.ref, token=claim.token, written_count=6, events=LAST_CHUNK),
        lambda keys, claim: append(keys, claim.ref, token=claim.token, written_count=6, events=END),
        lambda keys, claim: settle_run(keys, claim.ref, token=claim.token, written_count=6, events=END),
        lambda keys, claim: settle_run(
            keys,
            claim.ref,
            token=claim.token,
            written_count=6,
            events=END,
            sections=[SessionSection.of(keys, 0, b"{}")],
        ),
        lambda keys, claim: delegate_to_canvas(
            keys, claim.ref, token=claim.token, written_count=6, events=[], canvas="{}"
        ),
        lambda keys, claim: checkpoint(
            keys, claim.ref, token=claim.token, confirmed=6, sections=[SessionSection.of(keys, 0, b"{}")]
        ),
    ],
    ids=["append", "append the end", "settle", "settle with a session", "release", "checkpoint"],
)
@pytest.mark.parametrize(("max_attempts", "state"), [(1, FAILED), (2, WORKING)])
async def test_a_run_whose_confirmed_events_the_store_lost_lapses(
    store: AsyncStore,
    keys: Keys,
    seeds: Seeds,
    write: Callable[[Keys, Claim], Operation[object]],
    max_attempts: int,
    state: TaskState,
) -> None:
    claim = await restore_half(seeds, max_attempts=max_attempts)

    first, second = await store.run(write(keys, claim)), await store.run(write(keys, claim))
    await Recoverer(store, keys).tick()

    assert (first, second) == (RunLost(missing=3), RunLost())
    task = await seeds.task(claim.ref.task_id)
    assert task.status.state == state
    assert dict(task.metadata).get("attempt", 1) == max_attempts
    assert not [key async for key in store.redis.scan_iter(f"{session_prefix(keys)}*")]
    await seeds.require_consistent(claim.ref.task_id)


async def test_a_cancel_applies_to_a_run_whose_confirmed_events_the_store_lost(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    claim = await restore_half(seeds)
    await store.run(request_cancel(keys, ANN, claim.ref.task_id, CONTEXT))

    await store.run(settle_run(keys, claim.ref, token=claim.token, written_count=6, events=END))
    await Recoverer(store, keys).tick()

    assert (await seeds.task(claim.ref.task_id)).status.state == CANCELED


class SentEvents:
    """Publisher that records Celery events."""

    def __init__(self) -> None:
        self.of: list[tuple[str, str, bool]] = []
        self.calls: dict[str, str] = {}

    def lost_soon(self, agent: str, task_id: str, run: int, worker: str, *, canceled: bool, call: str = "") -> None:
        self.of.append((f"{task_id}.{run}", worker, canceled))
        self.calls[task_id] = call or agent


async def test_celery_events_are_sent_once_if_the_worker_sends_events(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    refs = [RunRef(await seeds.create_task(), 1) for _ in range(4)]
    for ref, worker in zip(refs, ("celery@a", "celery@a", "", "celery@a"), strict=True):
        lease = 1 if ref == refs[3] else -1
        claim = claim_run(
            keys, ref, token="t", runner="r.1.x", lease_us=lease, working=True, max_attempts=2, worker=worker
        )
        await store.run(claim)
    await store.run(request_cancel(keys, ANN, refs[1].task_id, CONTEXT))
    await store.run(return_run(keys, refs[3], runner="r.1.", loss=status(FAILED)))
    publisher = SentEvents()

    await run_concurrently(*(Recoverer(store, keys, publisher=cast(Publisher, publisher)).tick() for _ in range(4)))

    assert sorted(publisher.of) == sorted([(refs[0].name, "celery@a", False), (refs[1].name, "celery@a", True)])
    assert [(await seeds.task(ref.task_id)).status.state for ref in refs] == [WORKING, CANCELED, WORKING, WORKING]


async def test_celery_events_name_the_lost_task(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    """The worker's own Celery events can be lost with the worker, so the watcher's event names the task."""
    call = Call("tasks.größer", {"text": '"call":{"task":"another"} \ud800'})
    options_by_name = {
        "plain": RunOptions({"queue": "far"}, call=call).to_json(),
        "routed": b'{"celery":{"queue":"far"}}',
    }
    for task_id, options in {**options_by_name, "neither": b""}.items():
        message_request = request(task_id=task_id, context_id=CONTEXT)
        await store.run(
            create_task(
                keys, ANN, task_id, CONTEXT, message_request, caller=b"{}", retention=RETENTION, options=options
            )
        )
        await store.run(
            claim_run(keys, RunRef(task_id, 1), token="t", runner="r", lease_us=-1, working=True, worker="celery@a")
        )
    events = SentEvents()

    await Recoverer(store, keys, publisher=cast(Publisher, events)).tick()

    assert events.calls == {"plain": "tasks.größer", "routed": ANN.agent, "neither": ANN.agent}


async def test_a_valid_lease_is_respected(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    task = await seeds.task(claim.ref.task_id)

    assert (await store.run(lapsed_runs(keys, limit=10))).runs == []
    lapsed_run = Lapsed(claim.ref, "agent", 1, 1)
    assert await store.run(lapse_run(keys, lapsed_run, task, claim.snapshot.version, delay_us=0)) == Lapse("over")


async def test_a_task_that_changed_during_the_recovery_is_read_again(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    claim = await lose_run(store, keys, seeds)
    [lapsed_run] = (await store.run(lapsed_runs(keys, limit=10))).runs
    await seeds.append_events(claim, chunk("late"))

    stale = lapse_run(keys, lapsed_run, claim.task, claim.snapshot.version, delay_us=0)

    assert await store.run(stale) == Lapse("changed")
    await Recoverer(store, keys).tick()
    assert (await seeds.task(claim.ref.task_id)).status.state == FAILED


@pytest.mark.parametrize(
    ("events", "open_ids"),
    [
        ([chunk("a", append=False)], {"a"}),
        ([chunk("a", append=False), chunk("b")], {"a"}),
        ([chunk("x", "x", append=False), chunk("y", "y", append=False)], {"x", "y"}),
        ([status(WORKING)], set()),
    ],
)
def test_open_artifacts_are_begun_and_not_finished(events: list[TaskArtifactUpdateEvent], open_ids: set[str]) -> None:
    assert left_open([LogEntry(n, n, event) for n, event in enumerate(events, 1)]) == open_ids


def test_open_artifacts_of_an_earlier_attempt_do_not_count() -> None:
    log = [chunk("a", append=False), status(WORKING, attempt=2), chunk("b", "b", append=False)]

    assert left_open([LogEntry(n, n, event) for n, event in enumerate(log, 1)]) == {"b"}


async def test_after_its_start_a_watcher_gives_workers_time_to_renew(
    tmp_path: Path, keys: Keys, wall_clock: MovedClock
) -> None:
    with mortal_redis(tmp_path / "store", wall_clock) as server:
        store, clock = AsyncStore(server.store_url), StoreTime(wall_clock)
        seeds = Seeds(store, keys)
        claim = await lose_run(store, keys, seeds)
        recoverer = Recoverer(store, keys, LEASE_TTL, clock=clock)

        for _ in range(2):
            await recoverer.tick()
            assert (await seeds.task(claim.ref.task_id)).status.state == WORKING
            clock.advance(5)
        await recoverer.tick()

        assert (await seeds.task(claim.ref.task_id)).status.state == FAILED
        await store.aclose()


async def test_a_store_that_refused_writes_gives_the_workers_time_to_renew(
    tmp_path: Path, keys: Keys, wall_clock: MovedClock
) -> None:
    with mortal_redis(tmp_path / "store", wall_clock) as server:
        store, clock = AsyncStore(server.store_url), StoreTime(wall_clock)
        seeds = Seeds(store, keys)
        claim = await lose_run(store, keys, seeds)
        recoverer = Recoverer(store, keys, LEASE_TTL, clock=clock)
        await recoverer.tick()  # the first tick, after which the grace period applies too
        refuse_writes(server, "OOM")
        for _ in range(4):  # the grace period after the first refusal ends between two ticks
            clock.advance(6)
            with pytest.raises(StoreUnavailable):
                await recoverer.tick()
        allow_writes(server)

        clock.advance(5)
        await recoverer.tick()

        assert (await seeds.task(claim.ref.task_id)).status.state == WORKING
        for _ in range(2):
            clock.advance(6)
            await recoverer.tick()
        assert (await seeds.task(claim.ref.task_id)).status.state == FAILED
        await store.aclose()


async def test_another_attempt_still_knows_which_pause_its_message_answers(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    first = await seeds.claim_run()
    task_id = first.ref.task_id
    await seeds.settle_run(first, status(AUTH_REQUIRED, "who?"))
    message_request = request("me", task_id, CONTEXT)
    await store.run(continue_task(keys, ANN, task_id, message_request, "", caller=b"{}", nonce="n"))
    options = {"runner": "r", "working": True, "max_attempts": 2}

    answering = await store.run(claim_run(keys, RunRef(task_id, 2), token="t", lease_us=-1, **options))
    await Recoverer(store, keys).tick()
    next_claim = await store.run(claim_run(keys, RunRef(task_id, 3), token="t", lease_us=LEASE_US, **options))

    assert first.turn.interrupted_state is None
    assert answering.turn.interrupted_state == next_claim.turn.interrupted_state == AUTH_REQUIRED
    assert next_claim.turn.attempt == 2


async def test_a_store_that_was_silent_for_longer_than_leases_costs_no_run(
    tmp_path: Path, keys: Keys, wall_clock: MovedClock
) -> None:
    with mortal_redis(tmp_path / "store", wall_clock) as server:
        store, clock = AsyncStore(server.store_url), StoreTime(wall_clock)
        seeds = Seeds(store, keys)
        recoverer = Recoverer(store, keys, LEASE_TTL, clock=clock)
        await recoverer.tick()  # the first tick, after which the grace period applies too
        clock.advance(10)
        claim = await lose_run(store, keys, seeds)

        with suspend_server(server):
            tick = asyncio.create_task(recoverer.tick())
            await asyncio.sleep(0)  # the tick waits for the reply
            clock.advance(11)
        await tick

        renewal = await store.run(renew_runs(keys, [(claim.ref, claim.token)], lease_us=-1))
        assert renewal.lost == frozenset()
        clock.advance(5)
        await recoverer.tick()
        assert (await seeds.task(claim.ref.task_id)).status.state == WORKING
        clock.advance(5)  # no worker renews the lease
        await recoverer.tick()
        assert (await seeds.task(claim.ref.task_id)).status.state == FAILED
        await store.aclose()


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 0.5), (2, 1), (3, 2), (7, 32), (8, 60), (40, 60)])
def test_the_delay_doubles_with_each_attempt_up_to_a_minute(attempt: int, seconds: float) -> None:
    assert delay_after(attempt) == seconds * 1_000_000
