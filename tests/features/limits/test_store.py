"""Limits of tasks and bytes. A task that ends frees its slot, and a refused message writes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.features.idempotency.section import IdempotencyKey
from a2a_celery.features.limits.section import LimitedMessages
from a2a_celery.features.questions.question_section import QuestionSection, Reminder
from a2a_celery.lifecycle.execution import Activity, ExecutionState, Transition
from a2a_celery.lifecycle.journal import JournalEntry
from a2a_celery.lifecycle.outcomes import status_event
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.refusals import Reason
from a2a_celery.lifecycle.states import (
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    WORKING,
)
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.archiving import remove_archived
from a2a_celery.store.runs.commands import settle_run
from a2a_celery.store.runs.recovery import return_run
from a2a_celery.store.runs.release import release_run
from a2a_celery.store.tasks.commands import (
    continue_task,
    create_task,
    delete_task,
    request_cancel,
)
from a2a_celery.store.tasks.replies import Known
from tests.store.test_context_queue import ENDS, Ends
from tests.store.test_cost import Meter
from tests.store.test_racing_writers import stores
from tests.support.store.delivery_cursors import Webhooks
from tests.support.store.limits import limit_sections
from tests.support.store.replies import begins, is_limited, limit_of, reason_of, waits
from tests.support.store.seeds import AGENTS, ANN, BOB, CONTEXT, RETENTION, Seeds, chunk, request, status

Limits = Mapping[str, int]
"""Values of limits by name."""

ONE = {"concurrent": 1, "queued": 1}
STEP = Activity(1, 1, "r", Transition(1, ExecutionState.IDLE, ExecutionState.INITIALIZING, 1))
RESULT = JournalEntry("fetch#1", "step", "json", b"1" * 50)
EACH = [{"concurrent": 1}, {"queued": 1}]


async def try_to_create(seeds: Seeds, limits: Limits, scope: Scope = ANN, **options: Any) -> object:
    """Try to create another task, and return the result."""
    task_id = str(uuid4())
    message_request = options.pop("message_request", None) or request(task_id=task_id, context_id=CONTEXT)
    create = create_task(
        seeds.keys,
        scope,
        task_id,
        CONTEXT,
        message_request,
        caller=b"{}",
        retention=RETENTION,
        sections=[*options.pop("sections", ()), *limit_sections(seeds.keys, scope, **limits)],
        **options,
    )
    return await seeds.store.run(create)


async def single_task(seeds: Seeds, **options: Any) -> str:
    """Create the only task that the limits allow, and return its id."""
    answer = await try_to_create(seeds, ONE, **options)
    assert begins(answer), answer
    return answer.task.id


async def try_to_answer(seeds: Seeds, task_id: str, limits: Limits) -> object:
    """Send another message to the task, and return the result."""
    message_request = request("more", task_id, CONTEXT)
    sections = limit_sections(seeds.keys, **limits)
    next_message = continue_task(
        seeds.keys, ANN, task_id, message_request, "", caller=b"{}", nonce=uuid4().hex, sections=sections
    )
    return await seeds.store.run(next_message)


async def stored_bytes(seeds: Seeds, task_id: str) -> int:
    """Return the number of a task's bytes in Redis that count towards the limits."""
    redis, names = seeds.store.redis, seeds.keys.task(task_id)
    if await redis.type(names.log) == b"string":  # packed
        return int(await redis.strlen(names.log))
    lists = [names.log, names.history, names.turns, names.execution]
    lists += [names.chunks + name.decode() for name in await redis.lrange(names.artifacts, 0, -1)]
    entries = [entry for name in lists for entry in await redis.lrange(name, 0, -1)]
    fields = await redis.hmget(names.record, "request", "caller", "options", "reminders", "answer_schema")
    journal = await redis.hgetall(names.journal)
    entries += [*journal, *journal.values()]
    return sum(map(len, entries)) + sum(len(value or b"") for value in fields)


async def counted_bytes(seeds: Seeds, scope: Scope = ANN) -> int:
    """Return the store's counter of the owner's bytes."""
    return int(await seeds.store.redis.hget(seeds.keys.stored, scope.account) or 0)


@pytest.mark.parametrize("limits", EACH, ids=["concurrent", "queued"])
async def test_a_task_beyond_a_limit_writes_nothing(seeds: Seeds, limits: Limits) -> None:
    paused_id = await seeds.create_task_in(INPUT_REQUIRED)
    assert begins(await try_to_create(seeds, limits))
    data_before = await seeds.all_values()
    [limit] = limits

    refusals = [await try_to_create(seeds, limits), await try_to_answer(seeds, paused_id, limits)]

    assert [limit_of(answer) for answer in refusals] == [(limit, 1)] * 2
    assert await seeds.all_values() == data_before


async def test_limits_of_an_owner_span_agents(seeds: Seeds) -> None:
    limits = {"concurrent": 1}
    assert begins(await try_to_create(seeds, limits))
    assert begins(await try_to_create(seeds, limits, BOB))
    assert is_limited(await try_to_create(seeds, limits, replace(ANN, agent="other")))


async def test_limits_of_an_owner_span_tenants(seeds: Seeds) -> None:
    limits = {"concurrent": 1}
    first = await try_to_create(seeds, limits, replace(ANN, tenant="one"))
    assert begins(first)
    for scope in (ANN, replace(ANN, tenant="two"), replace(ANN, tenant="two", agent="other")):
        assert is_limited(await try_to_create(seeds, limits, scope)), scope
    assert begins(await try_to_create(seeds, limits, replace(BOB, tenant="one")))

    await seeds.store.run(request_cancel(seeds.keys, replace(ANN, tenant="one"), first.task.id, CONTEXT))
    assert not await seeds.store.redis.keys(seeds.keys.owner_index("ann") + "*")
    assert begins(await try_to_create(seeds, limits, ANN))
    assert is_limited(await try_to_create(seeds, limits, replace(ANN, tenant="two")))


async def test_anonymous_callers_are_limited_by_tenant(seeds: Seeds) -> None:
    limits = {"concurrent": 1}
    assert begins(await try_to_create(seeds, limits, Scope("agent", "one")))
    assert begins(await try_to_create(seeds, limits, Scope("agent", "two")))
    assert is_limited(await try_to_create(seeds, limits, Scope("other", "one")))


async def test_bytes_of_an_owner_count_in_all_tenants_together(seeds: Seeds) -> None:
    first = await try_to_create(seeds, {"owner_bytes": 10**9}, replace(ANN, tenant="one"))
    assert begins(first)
    size = await counted_bytes(seeds)
    assert size == await stored_bytes(seeds, first.task.id)

    refusal = await try_to_create(seeds, {"owner_bytes": size + 1}, replace(ANN, tenant="two"))

    assert limit_of(refusal) == ("owner_bytes", size + 1)
    assert begins(await try_to_create(seeds, {"owner_bytes": 10**9}, Scope("agent", "one")))


async def test_a_queue_limit_is_per_agent(seeds: Seeds) -> None:
    limits = {"queued": 1}
    assert begins(await try_to_create(seeds, limits))
    assert is_limited(await try_to_create(seeds, limits, BOB))
    assert begins(await try_to_create(seeds, limits, replace(ANN, agent="other")))


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__[1:])
async def test_every_end_of_a_task_frees_its_slot(seeds: Seeds, end: Ends) -> None:
    task_id = await single_task(seeds)
    assert is_limited(await try_to_create(seeds, ONE))

    await end(seeds, task_id)

    assert begins(await try_to_create(seeds, ONE))


async def test_an_unanswered_pause_uses_no_slot(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run(await single_task(seeds))
    await seeds.settle_run(claim, status(INPUT_REQUIRED))
    other = await single_task(seeds)
    assert is_limited(await try_to_answer(seeds, claim.ref.task_id, ONE))
    await store.run(request_cancel(keys, ANN, other, CONTEXT))
    assert begins(await try_to_answer(seeds, claim.ref.task_id, ONE))
    assert is_limited(await try_to_create(seeds, ONE))


async def test_a_message_that_waits_for_its_own_task_uses_no_slot(seeds: Seeds) -> None:
    task_id = await single_task(seeds)

    assert waits(await try_to_answer(seeds, task_id, ONE))


async def test_a_run_that_continues_elsewhere_keeps_its_slot(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run(await single_task(seeds), max_attempts=3)
    failure = status_event(claim.ref.task_id, CONTEXT, FAILED)
    assert await store.redis.zcard(keys.queue("agent")) == 0

    await store.run(
        release_run(keys, claim.ref, token=claim.token, written_count=0, events=[], options=b"", retries=1, delay_us=1)
    )
    assert is_limited(await try_to_create(seeds, {"queued": 1}))
    await store.run(return_run(keys, claim.ref, runner=None, loss=failure))
    assert is_limited(await try_to_create(seeds, {"queued": 1}))
    claim = await seeds.claim_run(claim.ref.task_id, run=2, max_attempts=3)
    await seeds.recover_run(claim.ref)

    assert is_limited(await try_to_create(seeds, {"queued": 1}))
    assert is_limited(await try_to_create(seeds, {"concurrent": 1}))


@pytest.mark.parametrize("archives", [False, True])
async def test_a_requeued_dead_letter_counts_only_its_remaining_bytes(
    store: AsyncStore, keys: Keys, seeds: Seeds, archives: bool
) -> None:
    await store.redis.hset(keys.installation, "archive", "1" if archives else "")
    answer = await try_to_create(seeds, {"owner_bytes": 10**9})
    assert begins(answer)
    claim = await seeds.claim_run(answer.task.id)
    await seeds.append_events(claim, status(WORKING, "half"), RESULT)
    await seeds.recover_run(claim.ref)

    new_id, _ = await seeds.requeue_task(answer.task.id)

    sizes = [await stored_bytes(seeds, task_id) for task_id in (answer.task.id, new_id)]
    assert await counted_bytes(seeds) == sum(sizes)
    await store.run(delete_task(keys, ANN, new_id))
    if archives:
        await store.run(remove_archived(keys, [answer.task.id]))
    else:
        [(entry, _)] = await store.redis.zrange(keys.stored_expiring, 0, -1, withscores=True)
        await store.redis.zadd(keys.stored_expiring, {entry: 1})
        await try_to_create(seeds, {"owner_bytes": 1})
    assert await counted_bytes(seeds) == 0


async def test_an_archived_dead_letter_with_undelivered_events_counts_without_its_request(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    await store.redis.hset(keys.installation, "archive", "1")
    answer = await try_to_create(seeds, {"owner_bytes": 10**9})
    assert begins(answer)
    await webhooks.save_config(answer.task.id)
    await seeds.recover_run((await seeds.claim_run(answer.task.id)).ref)

    assert await store.run(remove_archived(keys, [answer.task.id])) == 1

    assert await counted_bytes(seeds) == await stored_bytes(seeds, answer.task.id)


async def test_a_requeued_task_counts_as_queued_again(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run(await single_task(seeds))
    await seeds.recover_run(claim.ref)
    assert await store.redis.zcard(keys.queue("agent")) == 0

    new_id, _ = await seeds.requeue_task(claim.ref.task_id)

    assert await store.redis.zrange(keys.queue("agent"), 0, -1) == [new_id.encode()]
    assert is_limited(await try_to_create(seeds, ONE))


async def test_a_repeated_message_is_recognized_at_the_limit(seeds: Seeds) -> None:
    message_request, key = request(), IdempotencyKey.of(seeds.keys, ANN, "m", "digest", 60_000)
    first = await try_to_create(seeds, ONE, message_request=message_request, sections=[key])
    assert begins(first)

    second_result = await try_to_create(seeds, ONE, message_request=message_request, sections=[key])

    assert isinstance(second_result, Known)
    assert second_result.task_id == first.task.id


async def test_stale_slots_are_evicted_before_a_refusal(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    await store.redis.zadd(keys.queue("agent"), {"missing": 1})
    await store.redis.zadd(keys.scope_index(ANN) + str(int(WORKING)), {"missing": 1})
    task_id = await single_task(seeds)
    record = await store.redis.hgetall(keys.task(task_id).record)
    await store.run(request_cancel(keys, ANN, task_id, CONTEXT))
    await store.redis.zadd(keys.queue("agent"), {task_id: 1})  # as left by a worker of an older release

    assert begins(await try_to_create(seeds, ONE))
    assert record[b"queue"].decode() == keys.queue("agent")


async def test_each_byte_of_a_task_counts_until_its_keys_expire(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    limits = {"owner_bytes": 10**9}
    answer = await try_to_create(seeds, limits)
    assert begins(answer)
    task_id, names = answer.task.id, keys.task(answer.task.id)

    async def require_exact() -> None:
        assert await counted_bytes(seeds) == await stored_bytes(seeds, task_id)

    await require_exact()
    claim = await seeds.claim_run(task_id)
    await seeds.append_events(claim, chunk("a" * 100), chunk("b" * 100), status(WORKING, "half"), STEP, RESULT)
    await require_exact()
    assert waits(await try_to_answer(seeds, task_id, limits))
    await require_exact()
    await seeds.settle_run(claim, status(INPUT_REQUIRED, "?"), written_count=5)
    await require_exact()
    assert waits(await try_to_answer(seeds, task_id, limits))
    await seeds.settle_run(await seeds.claim_run(task_id, run=2), chunk("c" * 100, "b"), status(INPUT_REQUIRED, "?"))
    asking = await seeds.claim_run(task_id, run=3)
    reminders = [Reminder.of(10**9, status_event(task_id, CONTEXT, INPUT_REQUIRED))]
    question = settle_run(
        keys,
        asking.ref,
        token=asking.token,
        written_count=0,
        events=[status(INPUT_REQUIRED, "?")],
        sections=[QuestionSection('{"type": "integer"}', reminders=reminders)],
    )
    await store.run(question)
    assert await store.redis.hstrlen(names.record, "reminders") > 0  # type: ignore[misc]
    await require_exact()
    assert begins(await try_to_answer(seeds, task_id, limits))
    await require_exact()
    await seeds.settle_run(await seeds.claim_run(task_id, run=4), status(COMPLETED, "bye"))
    await require_exact()

    assert begins(await try_to_create(seeds, limits, BOB)), "of another owner"
    [(entry, at)] = await store.redis.zrange(keys.stored_expiring, 0, -1, withscores=True)
    seconds, _ = await store.redis.time()
    assert abs(at / 1e6 - seconds - await store.redis.ttl(names.record)) < 3, "when its keys expire"
    await store.redis.zadd(keys.stored_expiring, {entry: 1})
    await try_to_create(seeds, limits, BOB)
    assert await counted_bytes(seeds) == 0


async def test_bytes_of_a_task_that_is_deleted_or_archived_leave_the_sums(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    limits = {"owner_bytes": 10**9}
    first, second = [await try_to_create(seeds, limits) for _ in range(2)]
    assert begins(first)
    assert begins(second)
    await seeds.settle_run(await seeds.claim_run(first.task.id), status(COMPLETED))
    await store.redis.hset(keys.installation, "archive", "1")
    await seeds.settle_run(await seeds.claim_run(second.task.id), status(COMPLETED))
    assert await counted_bytes(seeds) > 0

    await store.run(remove_archived(keys, [second.task.id]))
    await store.run(delete_task(keys, ANN, first.task.id))

    assert not await store.redis.exists(keys.stored, keys.stored_expiring)


async def test_a_message_that_would_exceed_the_bytes_is_refused_and_a_smaller_one_is_not(seeds: Seeds) -> None:
    first = await try_to_create(seeds, {"owner_bytes": 10**9}, message_request=request("x" * 5_000))
    assert begins(first)
    size = await counted_bytes(seeds)
    tight = {"owner_bytes": size + 3_000}

    refusal = await try_to_create(seeds, tight, message_request=request("x" * 3_000))
    waiting = await try_to_answer(seeds, first.task.id, {"owner_bytes": size + 100})

    assert limit_of(refusal) == ("owner_bytes", size + 3_000)
    assert limit_of(waiting) == ("owner_bytes", size + 100)
    assert is_limited(waiting)
    assert waiting.data["retry_in"] == 60
    assert begins(await try_to_create(seeds, tight, BOB, message_request=request("x" * 3_000)))
    assert begins(await try_to_create(seeds, tight))


async def test_limits_cost_the_same_with_many_tasks(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    meter, many = Meter(store), {"concurrent": 10_000, "queued": 10_000}

    async def cost(limits: Limits, scope: Scope) -> int:
        message_request, task_id = request(), str(uuid4())
        sections = limit_sections(keys, scope, **limits)
        create = create_task(
            keys, scope, task_id, CONTEXT, message_request, caller=b"{}", retention=RETENTION, sections=sections
        )
        return sum((await meter.cost_of(create)).values())

    for scope in (ANN, BOB):
        await seeds.create_task(scope)  # the first task of a scope also records the scope
    without, early_cost = await cost({}, ANN), await cost(many, BOB)
    for _ in range(300):
        await try_to_create(seeds, many)
    late_cost = await cost(many, ANN)

    assert late_cost == early_cost == without + 2 * (len(AGENTS) + 1) + 4, (
        "whether there is room; the lists of both states, of each agent and of the owner; the queue, a place "
        "there, and its name"
    )


async def test_of_concurrent_calls_one_gets_the_last_slot(redis_server: EmbeddedRedis, keys: Keys) -> None:
    async with stores(redis_server, 4) as clients:
        limits = {"concurrent": 3}
        answers = await asyncio.gather(*(try_to_create(Seeds(clients[n % 4], keys), limits) for n in range(40)))

    assert Counter(map(reason_of, answers)) == {None: 3, Reason.LIMITED: 37}


def test_without_settings_a_message_has_no_section(keys: Keys) -> None:
    assert LimitedMessages.of(Settings(), keys, AGENTS, None) is None  # type: ignore[arg-type]


async def test_a_task_without_limits_has_no_field_of_them(seeds: Seeds) -> None:
    answer = await try_to_create(seeds, {})
    assert begins(answer)

    assert await seeds.store.redis.hmget(seeds.keys.task(answer.task.id).record, "queue", "quota_account") == [None] * 2
    assert not await seeds.store.redis.exists(seeds.keys.queue("agent"), seeds.keys.stored)
