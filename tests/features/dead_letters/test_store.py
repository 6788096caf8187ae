"""Dead letters: the outcomes that create a dead letter, requeueing by concurrent operators, and expiry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from a2a.types import Role, TaskState

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.features.dead_letters.dead_letter import (
    NO_DEAD_LETTER,
    AlreadyRequeued,
    DeadLetter,
    read_dead_letter,
    requeue_task,
)
from a2a_celery.lifecycle.outcomes import WORKER_LOST
from a2a_celery.lifecycle.own_metadata import own_metadata
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.refusals import Reason, Refusal
from a2a_celery.lifecycle.states import (
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    SUBMITTED,
    WORKING,
    short_name,
)
from a2a_celery.store import AsyncStore, Keys, SyncStore
from a2a_celery.store.admin.scan import TaskSummary, list_summaries, newest_tasks
from a2a_celery.store.runs.commands import Claim, claim_run, end_run
from a2a_celery.store.tasks.commands import continue_task, create_task, request_cancel
from a2a_celery.watcher.recoverer import Recoverer
from tests.support.store.replies import is_delivered
from tests.support.store.seeds import ANN, CONTEXT, LEASE_US, RETENTION, Seeds, chunk, request, run_concurrently, status

CALLER = b'{"user": "ann"}'
ROUTE = b'{"celery":{"queue":"gpu"}}'


def refusal(task_id: str, text: str) -> Refusal:
    """Return the refusal to requeue a task."""
    return Refusal(Reason.FEATURE, task_id, {"text": f"task {task_id} {text}"})


class Graveyard:
    """Test helper that creates and requeues dead letters."""

    def __init__(self, store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
        self._store, self._keys, self._seeds = store, keys, seeds

    async def lapse(self, task_id: str = "", *, run: int = 1, attempts: int = 1) -> str:
        """Create a task whose worker was lost and whose last lease has expired. Return the task's id."""
        task_id = task_id or await self.create_task()
        for attempt in range(attempts):
            if attempt:
                await Recoverer(self._store, self._keys).tick()
            ref = RunRef(task_id, run + attempt)
            claim = claim_run(self._keys, ref, token="t", runner="r", lease_us=-1, working=True, max_attempts=attempts)
            assert isinstance(await self._store.run(claim), Claim)
        return task_id

    async def create_dead_letter(self, task_id: str = "", **options: int) -> str:
        """Create a task that a watcher has failed and stored as a dead letter. Return the task's id."""
        task_id = await self.lapse(task_id, **options)
        await Recoverer(self._store, self._keys).tick()
        return task_id

    async def create_task(self) -> str:
        task_id = await self._seeds.create_task()
        record = self._keys.task(task_id).record
        await self._store.redis.hset(record, mapping={"caller": CALLER, "options": ROUTE})
        return task_id

    async def dead_letter(self, task_id: str) -> DeadLetter:
        result = await self._store.run(read_dead_letter(self._keys, task_id))
        assert isinstance(result, DeadLetter), result
        return result

    async def requeue(self, dead_letter: DeadLetter, new: str, store: AsyncStore | None = None) -> str:
        call = requeue_task(self._keys, dead_letter, new, retention=RETENTION, options=b"{}")
        return await (store or self._store).run(call)

    async def claim(self, task_id: str) -> Claim:
        call = claim_run(self._keys, RunRef(task_id, 1), token="n", runner="r", lease_us=LEASE_US, working=True)
        claim = await self._store.run(call)
        assert isinstance(claim, Claim)
        return claim


@pytest.fixture
def graveyard(store: AsyncStore, keys: Keys, seeds: Seeds) -> Graveyard:
    return Graveyard(store, keys, seeds)


async def dead_letters(store: AsyncStore, keys: Keys) -> list[str]:
    return [tag.decode() for tag in await store.redis.zrange(keys.resubmittable, 0, -1)]


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_task_without_further_attempts_leaves_a_dead_letter(
    store: AsyncStore, keys: Keys, graveyard: Graveyard, attempts: int
) -> None:
    task_id = await graveyard.lapse(attempts=attempts)
    assert await dead_letters(store, keys) == []

    await run_concurrently(*(Recoverer(store, keys).tick() for _ in range(4)))

    assert await dead_letters(store, keys) == [task_id]
    dead_letter = await graveyard.dead_letter(task_id)
    assert (dead_letter.agent, dead_letter.scope, dead_letter.options) == (ANN.agent, ANN, ROUTE)
    assert dead_letter.request.message.parts[0].text == "hello"
    assert dead_letter.task.status.message.parts[0].text == WORKER_LOST


async def test_a_requeued_task_begins_with_the_message_of_its_turn(
    store: AsyncStore, keys: Keys, graveyard: Graveyard
) -> None:
    task_id = await graveyard.lapse()
    for text in ("and this", "and that"):
        message_request = request(text, task_id, CONTEXT)
        steering = continue_task(keys, ANN, task_id, message_request, "", caller=CALLER, nonce=text, on_message="steer")
        assert is_delivered(await store.run(steering))
    await Recoverer(store, keys).tick()

    assert await graveyard.requeue(await graveyard.dead_letter(task_id), "new") == "requeued"

    claim = await graveyard.claim("new")
    assert claim.turn.request.message.parts[0].text == "hello"
    assert [message.parts[0].text for message in claim.task.history] == ["hello"]


@pytest.mark.parametrize(("is_lost", "dies"), [(True, True), (False, False)])
async def test_an_external_end_leaves_a_dead_letter_if_its_worker_was_lost(
    store: AsyncStore, keys: Keys, seeds: Seeds, is_lost: bool, dies: bool
) -> None:
    claim = await seeds.claim_run()
    end = end_run(keys, claim.ref, runner="runner", event=status(FAILED, "over"), lost=is_lost)

    first = await store.run(end)
    data_before = await seeds.all_values()

    assert await store.run(end) == first
    assert await seeds.all_values() == data_before
    assert await dead_letters(store, keys) == [claim.ref.task_id] * dies


@pytest.mark.parametrize("state", [COMPLETED, FAILED, CANCELED, REJECTED])
async def test_an_end_by_the_agent_leaves_no_dead_letter(
    store: AsyncStore, keys: Keys, seeds: Seeds, state: TaskState
) -> None:
    task_id = await seeds.create_task_in(state)

    assert await dead_letters(store, keys) == []
    assert await store.run(read_dead_letter(keys, task_id)) == refusal(
        task_id, f"is {short_name(state)}: {NO_DEAD_LETTER}"
    )


@pytest.mark.parametrize("by", ["watcher", "worker"])
async def test_a_task_with_a_cancel_request_leaves_no_dead_letter(
    store: AsyncStore, keys: Keys, graveyard: Graveyard, by: str
) -> None:
    task_id = await graveyard.lapse()
    await store.run(request_cancel(keys, ANN, task_id, CONTEXT))

    if by == "watcher":
        await Recoverer(store, keys).tick()
    else:
        await store.run(end_run(keys, RunRef(task_id, 1), runner="r", event=status(FAILED), lost=True))

    assert await store.run(read_dead_letter(keys, task_id)) == refusal(task_id, f"is CANCELED: {NO_DEAD_LETTER}")
    assert await dead_letters(store, keys) == []


async def test_reading_another_task_as_a_dead_letter_returns_its_state(
    store: AsyncStore, keys: Keys, seeds: Seeds, graveyard: Graveyard
) -> None:
    waiting_id, paused_id = await seeds.create_task(), await seeds.create_task_in(INPUT_REQUIRED)
    requeued_id = await graveyard.create_dead_letter()
    await graveyard.requeue(await graveyard.dead_letter(requeued_id), "new")

    expected = {
        "missing": Refusal(Reason.MISSING, "missing"),
        waiting_id: refusal(waiting_id, "has not ended (SUBMITTED): only a dead letter can be requeued"),
        paused_id: refusal(paused_id, "has not ended (INPUT_REQUIRED): only a dead letter can be requeued"),
        requeued_id: AlreadyRequeued("new"),
    }
    assert {task_id: await store.run(read_dead_letter(keys, task_id)) for task_id in expected} == expected


async def test_a_requeued_dead_letter_is_a_new_task_of_the_same_caller_that_refers_to_it(
    store: AsyncStore, keys: Keys, seeds: Seeds, graveyard: Graveyard
) -> None:
    dead_id = await graveyard.create_dead_letter(attempts=2)
    task_before = await seeds.task(dead_id)

    assert await graveyard.requeue(await graveyard.dead_letter(dead_id), "new") == "requeued"

    task = await seeds.task("new")
    assert (task.context_id, task.status.state) == (CONTEXT, SUBMITTED)
    assert dict(task.metadata) == own_metadata({"requeuedFrom": dead_id})
    [message] = task.history
    assert (message.task_id, message.parts[0].text) == ("new", "hello")
    assert message.message_id == task_before.history[0].message_id
    assert list(message.reference_task_ids) == [dead_id]
    assert await seeds.task(dead_id) == task_before
    assert await dead_letters(store, keys) == []
    await seeds.require_consistent("new")
    claim = await graveyard.claim("new")
    assert (claim.turn.attempt, claim.turn.number, claim.turn.caller, claim.scope) == (1, 1, CALLER, ANN)
    assert claim.turn.request.message == message
    await seeds.settle_run(claim, status(COMPLETED))
    assert await seeds.states("new") == [SUBMITTED, WORKING, COMPLETED]
    await seeds.require_consistent("new")


async def test_an_unpublished_requeued_run_becomes_due(store: AsyncStore, keys: Keys, graveyard: Graveyard) -> None:
    await graveyard.requeue(await graveyard.dead_letter(await graveyard.create_dead_letter()), "new")

    [(name, due)] = await store.redis.zrange(keys.dispatch, 0, -1, withscores=True)
    seconds, micros = await store.redis.time()
    assert name == b"new.1"
    assert 0 < due - (seconds * 1_000_000 + micros) <= 5_000_000


async def test_a_requeued_task_has_the_conversation_without_the_output_of_the_lost_run(
    store: AsyncStore, keys: Keys, seeds: Seeds, graveyard: Graveyard
) -> None:
    first = await seeds.claim_run(await graveyard.create_task())
    task_id = first.ref.task_id
    await seeds.settle_run(first, status(INPUT_REQUIRED, "Name?"))
    await store.redis.hset(keys.task(task_id).record, "ask_count", 1)
    answer = request("Ada", task_id, CONTEXT)
    await store.run(continue_task(keys, ANN, task_id, answer, "", caller=CALLER, nonce="n"))
    await graveyard.lapse(task_id, run=2)
    claim = replace(first, ref=RunRef(task_id, 2), token="t")
    await seeds.append_events(claim, status(WORKING, "busy"), status(WORKING, "busier"), chunk("half"))
    late_message = request("a message that had no turn", task_id, CONTEXT)
    await store.run(continue_task(keys, ANN, task_id, late_message, "", caller=CALLER, nonce="late"))
    await Recoverer(store, keys).tick()

    await graveyard.requeue(await graveyard.dead_letter(task_id), "new")

    claim = await graveyard.claim("new")
    assert [message.parts[0].text for message in claim.task.history] == ["hello", "Name?", "Ada"]
    assert [message.role for message in claim.task.history] == [Role.ROLE_USER, Role.ROLE_AGENT, Role.ROLE_USER]
    assert {message.task_id for message in claim.task.history} == {"new"}
    assert (claim.turn.number, claim.turn.ask_count, len(claim.task.artifacts)) == (2, 1, 0)
    assert claim.turn.interrupted_state == INPUT_REQUIRED
    await seeds.require_consistent("new")


async def test_a_repeated_call_is_answered_alike_and_writes_nothing(seeds: Seeds, graveyard: Graveyard) -> None:
    dead_letter = await graveyard.dead_letter(await graveyard.create_dead_letter())
    assert await graveyard.requeue(dead_letter, "new") == "requeued"
    data_before = await seeds.all_values()

    assert await graveyard.requeue(dead_letter, "new") == "requeued"
    assert await graveyard.requeue(dead_letter, "another") == "gone"

    assert await seeds.all_values() == data_before


@pytest.mark.parametrize("round_", range(3))
async def test_of_concurrent_requeues_one_creates_a_task(
    redis_server: EmbeddedRedis, store: AsyncStore, keys: Keys, seeds: Seeds, graveyard: Graveyard, round_: int
) -> None:
    dead_id = await graveyard.create_dead_letter()
    dead_letter = await graveyard.dead_letter(dead_id)
    others = [AsyncStore(redis_server.store_url) for _ in range(4)]

    answers = await run_concurrently(*(graveyard.requeue(dead_letter, f"new-{n}", others[n % 4]) for n in range(20)))

    for other in others:
        await other.aclose()
    assert sorted(set(answers)) == ["gone", "requeued"]
    [number] = [n for n, answer in enumerate(answers) if answer == "requeued"]
    assert await store.run(read_dead_letter(keys, dead_id)) == AlreadyRequeued(f"new-{number}")
    assert [name async for name in store.redis.scan_iter(f"{keys.prefix}:{{new-*}}:task")] == [
        keys.task(f"new-{number}").record.encode()
    ]
    assert await store.redis.zrange(keys.dispatch, 0, -1) == [f"new-{number}.1".encode()]


async def test_a_requeued_task_that_is_lost_again_is_a_dead_letter_again(
    store: AsyncStore, keys: Keys, seeds: Seeds, graveyard: Graveyard
) -> None:
    dead_id = await graveyard.create_dead_letter()
    await graveyard.requeue(await graveyard.dead_letter(dead_id), "second")
    await graveyard.create_dead_letter("second")
    await graveyard.requeue(await graveyard.dead_letter("second"), "third")

    third = await seeds.task("third")
    assert list(third.history[0].reference_task_ids) == [dead_id, "second"]
    assert dict(third.metadata) == own_metadata({"requeuedFrom": "second"})


async def test_dead_letters_expire_with_their_tasks(store: AsyncStore, keys: Keys, graveyard: Graveyard) -> None:
    dead_id = await graveyard.create_dead_letter()
    names = keys.task(dead_id)

    for key in (keys.resubmittable, names.record, names.log, names.history):
        assert RETENTION - 60 < await store.redis.ttl(key) <= RETENTION
    await store.redis.zadd(keys.resubmittable, {"over": 1})
    await graveyard.create_dead_letter()
    assert "over" not in await dead_letters(store, keys)


async def test_a_short_retention_does_not_shorten_that_of_others(
    store: AsyncStore, keys: Keys, graveyard: Graveyard
) -> None:
    long_id = await graveyard.create_dead_letter()
    message_request = request(task_id="short", context_id=CONTEXT)
    await store.run(create_task(keys, ANN, "short", CONTEXT, message_request, caller=b"{}", retention=60))

    await graveyard.create_dead_letter("short")

    assert set(await dead_letters(store, keys)) == {long_id, "short"}
    assert await store.redis.ttl(keys.resubmittable) > RETENTION - 60


@pytest.fixture
def listing(redis_server: EmbeddedRedis, keys: Keys) -> Any:
    """Function that reads the list with the key `name` and returns its tasks by id."""

    def read_summaries(name: str) -> dict[str, TaskSummary]:
        store = SyncStore(redis_server.store_url)
        try:
            return {row.ref.task_id: row for row in list_summaries(store, keys, name)}
        finally:
            store.close()

    return read_summaries


ODD_IDS = ["plain", "a:b", "with space", "{brace}", "ünï", "%41", "t.1"]


@pytest.mark.parametrize("task_id", ODD_IDS)
async def test_each_list_has_its_tasks(
    store: AsyncStore, keys: Keys, seeds: Seeds, graveyard: Graveyard, listing: Any, task_id: str
) -> None:
    await seeds.create_task(task_id=task_id)
    waiting_summary = listing(keys.dispatch)[task_id]
    await seeds.claim_run(task_id)
    await store.run(request_cancel(keys, ANN, task_id, CONTEXT))
    runs = listing(keys.leases)[task_id]
    await seeds.create_task_in(INPUT_REQUIRED, task_id=f"{task_id}-2")
    pauses = listing(keys.pauses)[f"{task_id}-2"]
    await seeds.create_task(task_id=f"{task_id}-3")
    await graveyard.create_dead_letter(f"{task_id}-3")
    dead_letter = listing(keys.resubmittable)[f"{task_id}-3"]

    assert (waiting_summary.state, waiting_summary.runner, waiting_summary.agent, waiting_summary.context_id) == (
        SUBMITTED,
        "",
        ANN.agent,
        CONTEXT,
    )
    assert (runs.state, runs.runner, runs.ref.run) == (WORKING, "runner", 1)
    assert waiting_summary.cancel_requested_us is None
    assert runs.since_us <= (runs.cancel_requested_us or 0) <= runs.now_us < runs.score
    assert (pauses.state, pauses.score) == (INPUT_REQUIRED, float("inf"))
    assert (dead_letter.state, dead_letter.attempt, dead_letter.max_attempts) == (FAILED, 1, 1)


@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_the_maximum_of_attempts_is_known_from_the_first_claim_of_a_turn(
    store: AsyncStore, keys: Keys, seeds: Seeds, max_attempts: int
) -> None:
    async def summary(task_id: str) -> TaskSummary:
        names = [f"{keys.scope_index(ANN)}{state}" for state in TaskState.values()]
        page = await store.run(newest_tasks(keys, names, limit=9))
        [task] = [task for task in page.tasks if task.ref.task_id == task_id]
        return task

    task_id = await seeds.create_task()
    assert (await summary(task_id)).max_attempts is None
    claim = await seeds.claim_run(task_id, max_attempts=max_attempts)
    assert (await summary(task_id)).max_attempts == max_attempts
    await seeds.settle_run(claim, status(INPUT_REQUIRED))
    assert (await summary(task_id)).max_attempts == max_attempts

    message = request("next", task_id, CONTEXT)
    await store.run(continue_task(keys, ANN, task_id, message, CONTEXT, caller=CALLER, nonce="next"))
    assert (await summary(task_id)).max_attempts is None
    claim = await seeds.claim_run(task_id, run=2, max_attempts=max_attempts)
    await seeds.settle_run(claim, status(COMPLETED))
    assert (await summary(task_id)).max_attempts == max_attempts

    cancelled_id = await seeds.create_task()
    await store.run(request_cancel(keys, ANN, cancelled_id, CONTEXT))
    assert (await summary(cancelled_id)).state == CANCELED
    assert (await summary(cancelled_id)).max_attempts is None


async def test_a_long_list_is_complete_over_its_pages(
    store: AsyncStore, keys: Keys, seeds: Seeds, listing: Any
) -> None:
    ids = await run_concurrently(*(seeds.create_task() for _ in range(900)))
    await store.redis.zadd(keys.dispatch, {"gone.1": 1, f"{ids[0]}.7": 1})

    assert set(listing(keys.dispatch)) == set(ids)
    await store.redis.zrem(keys.dispatch, "gone.1", f"{ids[0]}.7")


async def test_a_repeated_cancel_request_keeps_the_first_time(
    store: AsyncStore, keys: Keys, seeds: Seeds, listing: Any
) -> None:
    task_id = (await seeds.claim_run()).ref.task_id
    await store.run(request_cancel(keys, ANN, task_id, CONTEXT))
    first = listing(keys.leases)[task_id].cancel_requested_us
    await store.run(request_cancel(keys, ANN, task_id, CONTEXT))

    assert listing(keys.leases)[task_id].cancel_requested_us == first
