"""A place that was taken comes back, whatever becomes of who took it; and what is refused leaves nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from a2a_celery.cli.embedded import EmbeddedRedis
from a2a_celery.lifecycle.outcomes import status_event
from a2a_celery.lifecycle.states import (
    FAILED,
    INPUT_REQUIRED,
    WORKING,
)
from a2a_celery.store import AsyncStore, Keys, Scope
from a2a_celery.store.answers import Begun, Created, Known, Limited, Waiting
from a2a_celery.store.limits import TaskLimits, take_request
from a2a_celery.store.recovery import hand_back
from a2a_celery.store.release import release_run
from a2a_celery.store.tasks import Once, continue_task, create_task, request_cancel
from tests.store.test_cost import Meter
from tests.store.test_racing_writers import stores
from tests.store.test_rows import ENDS, Ends
from tests.support.seeds import ANN, BOB, CONTEXT, RETENTION, Seeds, request, status

AGENTS = ("agent", "other")
ONE = TaskLimits(AGENTS, concurrent=1, waiting=1, queued=1)
EACH = [replace(TaskLimits(AGENTS), **{name: 1}) for name in ("concurrent", "waiting", "queued")]


async def created(seeds: Seeds, limits: TaskLimits, scope: Scope = ANN, **options: Any) -> object:
    """What becomes of one more task."""
    task_id = str(uuid4())
    sent = options.pop("sent", None) or request(task_id=task_id, context_id=CONTEXT)
    create = create_task(
        seeds.keys, scope, task_id, CONTEXT, sent, caller=b"{}", retention=RETENTION, limits=limits, **options
    )
    return await seeds.store.run(create)


async def the_one(seeds: Seeds, **options: Any) -> str:
    """The one task that there may be."""
    answer = await created(seeds, ONE, **options)
    assert isinstance(answer, Created), answer
    return answer.task.id


async def answered(seeds: Seeds, task_id: str, limits: TaskLimits) -> object:
    """What becomes of a further message."""
    sent = request("more", task_id, CONTEXT)
    more = continue_task(seeds.keys, ANN, task_id, sent, "", caller=b"{}", nonce=uuid4().hex, limits=limits)
    return await seeds.store.run(more)


@pytest.mark.parametrize("limits", EACH, ids=["concurrent", "waiting", "queued"])
async def test_one_too_many_leaves_nothing(seeds: Seeds, limits: TaskLimits) -> None:
    paused = await seeds.ended(INPUT_REQUIRED)
    assert isinstance(await created(seeds, limits), Created)
    before = await seeds.everything()
    [limit] = [name for name in ("concurrent", "waiting", "queued") if getattr(limits, name)]

    refused = [await created(seeds, limits), await answered(seeds, paused, limits)]

    assert [(answer.limit, answer.most) for answer in refused if isinstance(answer, Limited)] == [(limit, 1)] * 2
    assert await seeds.everything() == before


async def test_owners_are_apart_and_agents_are_not(seeds: Seeds) -> None:
    most = TaskLimits(AGENTS, waiting=1)
    assert isinstance(await created(seeds, most), Created)
    assert isinstance(await created(seeds, most, BOB), Created)
    assert isinstance(await created(seeds, most, replace(ANN, tenant="t")), Created)
    assert isinstance(await created(seeds, most, replace(ANN, agent="other")), Limited)


async def test_a_queue_is_its_agents_whoever_waits_in_it(seeds: Seeds) -> None:
    most = TaskLimits(AGENTS, queued=1)
    assert isinstance(await created(seeds, most), Created)
    assert isinstance(await created(seeds, most, BOB), Limited)
    assert isinstance(await created(seeds, most, replace(ANN, agent="other")), Created)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__[1:])
async def test_whatever_ends_a_task_gives_its_place_back(seeds: Seeds, end: Ends) -> None:
    task_id = await the_one(seeds)
    assert isinstance(await created(seeds, ONE), Limited)

    await end(seeds, task_id)

    assert isinstance(await created(seeds, ONE), Created)


async def test_a_pause_that_nobody_answers_holds_no_place(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claimed(await the_one(seeds))
    await seeds.settled(claim, status(INPUT_REQUIRED))
    other = await the_one(seeds)
    assert isinstance(await answered(seeds, claim.ref.task_id, ONE), Limited)
    await store.run(request_cancel(keys, ANN, other, CONTEXT))
    assert isinstance(await answered(seeds, claim.ref.task_id, ONE), Begun)
    assert isinstance(await created(seeds, ONE), Limited)


async def test_a_message_that_waits_for_its_own_task_takes_no_place(seeds: Seeds) -> None:
    task_id = await the_one(seeds)

    assert isinstance(await answered(seeds, task_id, ONE), Waiting)


async def test_what_goes_on_elsewhere_keeps_its_place(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claimed(await the_one(seeds), max_attempts=3)
    lost = status_event(claim.ref.task_id, CONTEXT, FAILED)
    assert await store.redis.zcard(keys.queue("agent")) == 0

    await store.run(
        release_run(keys, claim.ref, token=claim.token, before=0, events=[], options=b"", retries=1, again_us=1)
    )
    assert isinstance(await created(seeds, TaskLimits(AGENTS, queued=1)), Limited)
    await store.run(hand_back(keys, claim.ref, runner=None, lost=lost))
    assert isinstance(await created(seeds, TaskLimits(AGENTS, queued=1)), Limited)
    claim = await seeds.claimed(claim.ref.task_id, run=2, max_attempts=3)
    await seeds.lost(claim.ref)

    assert isinstance(await created(seeds, TaskLimits(AGENTS, queued=1)), Limited)
    assert isinstance(await created(seeds, TaskLimits(AGENTS, concurrent=1)), Limited)


async def test_what_is_requeued_waits_again(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claimed(await the_one(seeds))
    await seeds.lost(claim.ref)
    assert await store.redis.zcard(keys.queue("agent")) == 0

    new, _ = await seeds.requeued(claim.ref.task_id)

    assert await store.redis.zrange(keys.queue("agent"), 0, -1) == [new.encode()]
    assert isinstance(await created(seeds, ONE), Limited)


async def test_what_was_accepted_is_known_also_where_nothing_more_is(seeds: Seeds) -> None:
    sent, once = request(), Once("m", "digest", 60_000)
    first = await created(seeds, ONE, sent=sent, once=once)
    assert isinstance(first, Created)

    again = await created(seeds, ONE, sent=sent, once=once)

    assert isinstance(again, Known)
    assert again.task_id == first.task.id


async def test_a_place_that_nobody_holds_is_found_before_anybody_is_refused(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    await store.redis.zadd(keys.queue("agent"), {"gone": 1})
    await store.redis.zadd(keys.scope_index(ANN) + str(int(WORKING)), {"gone": 1})
    task_id = await the_one(seeds)
    record = await store.redis.hgetall(keys.task(task_id).record)
    await store.run(request_cancel(keys, ANN, task_id, CONTEXT))
    await store.redis.zadd(keys.queue("agent"), {task_id: 1})  # as a worker of an older release leaves it

    assert isinstance(await created(seeds, ONE), Created)
    assert record[b"queue"].decode() == keys.queue("agent")


async def test_limits_cost_the_same_however_much_there_is(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    meter, many = Meter(store), TaskLimits(AGENTS, concurrent=10_000, waiting=10_000, queued=10_000)

    async def cost(limits: TaskLimits | None, scope: Scope) -> int:
        sent, task_id = request(), str(uuid4())
        create = create_task(keys, scope, task_id, CONTEXT, sent, caller=b"{}", retention=RETENTION, limits=limits)
        return sum((await meter.cost_of(create)).values())

    without, early = await cost(None, ANN), await cost(many, BOB)
    for _ in range(300):
        await created(seeds, many)
    late = await cost(many, ANN)

    assert late == early == without + 2 * len(AGENTS) + 4, (
        "the lists of both states; the queue, the time, a place there, and its name"
    )


async def test_of_many_at_once_the_last_place_goes_to_one(redis_server: EmbeddedRedis, keys: Keys) -> None:
    async with stores(redis_server, 4) as clients:
        most = TaskLimits(AGENTS, concurrent=3)
        answers = await asyncio.gather(*(created(Seeds(clients[n % 4], keys), most) for n in range(40)))

    assert Counter(type(answer) for answer in answers) == {Created: 3, Limited: 37}


async def test_a_bucket_gives_its_burst_and_then_one_at_a_time(store: AsyncStore, keys: Keys) -> None:
    async def take() -> float:
        return await store.run(take_request(keys, ANN, per_second=0.1, burst=3))

    taken = [await take() for _ in range(3)]
    waits = [await take() for _ in range(3)]

    assert taken == [0, 0, 0]
    assert all(1 < wait <= 10 for wait in waits), "who is refused takes nothing"
    assert await store.run(take_request(keys, BOB, per_second=0.1, burst=3)) == 0
    assert await store.run(take_request(keys, replace(ANN, agent="other"), per_second=0.1, burst=3)) > 0
    assert 20_000 < await store.redis.pttl(keys.requests(ANN)) <= 30_000


async def test_a_bucket_is_never_fuller_than_it_can_be(store: AsyncStore, keys: Keys) -> None:
    await store.redis.set(keys.requests(ANN), 2**52, px=60_000)  # by a clock that was ahead

    wait = await store.run(take_request(keys, ANN, per_second=0.1, burst=3))

    assert 9 < wait <= 10
