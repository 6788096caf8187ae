"""Tasks that benchmarks seed. They equal the tasks that the scripts of the store write."""

from __future__ import annotations

import re
from time import time_ns
from typing import Any

from a2a.types import Message, Part, Role, SendMessageRequest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import Claim, claim_run
from a2a_celery.store.tasks.commands import create_task, list_tasks
from benchmarks.peers.seeded import seeded_context, seeded_id
from benchmarks.seeding import BATCH, TaskTemplate, seed
from tests.support.store.seeds import ANN, LEASE_US, RETENTION, Seeds, chunk, status

TIME = re.compile(r"1[78]\d{14}|\\xfb\d{8}")
"""Pattern of a time in µs in this decade, or of the last digits of such a time after the mark of packed logs. Any byte
may precede the time."""

PREFIX_SECONDS = 100
"""Seconds for which the digits that the mark represents stay the same."""


async def echo(seeds: Seeds, task_id: str, context_id: str) -> None:
    """Run a task to its end with the store's own scripts."""
    message = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="hello")])
    message.task_id, message.context_id = task_id, context_id
    request, keys, run = SendMessageRequest(message=message), seeds.keys, RunRef(task_id, 1)
    await seeds.store.run(create_task(keys, ANN, task_id, context_id, request, caller=b"{}", retention=RETENTION))
    claim_operation = claim_run(keys, run, token="t", runner="r", lease_us=LEASE_US, working=True)
    claim = await seeds.store.run(claim_operation)
    assert isinstance(claim, Claim)
    await seeds.settle_run(claim, chunk("hello", append=False), status(COMPLETED))


async def template_of(seeds: Seeds) -> TaskTemplate:
    """Run an echo, return a template of its task, and delete the task."""
    task_id, context_id = "the-template".ljust(36, "-"), "its-context".ljust(36, "-")
    await echo(seeds, task_id, context_id)
    template = await TaskTemplate.of(seeds.store.redis, seeds.keys, task_id, context_id)
    await seeds.store.redis.flushall()
    return template


async def stored_data(seeds: Seeds) -> dict[str, Any]:
    """Return, for each key, the value with masked times, the encoding, and whether the key expires after the
    retention."""
    redis = seeds.store.redis
    return {
        name: (
            TIME.sub("TIME", repr(sorted(value.items()) if isinstance(value, dict) else value)),
            await redis.object("ENCODING", name),
            RETENTION - 60 < await redis.ttl(name) <= RETENTION,
        )
        for name, value in (await seeds.all_values()).items()
    }


async def test_seeded_tasks_equal_written_ones(redis_server: EmbeddedRedis, store: AsyncStore, seeds: Seeds) -> None:
    numbers, prefix = range(7, 9), None
    while prefix != time_ns() // 10**9 // PREFIX_SECONDS:
        prefix = time_ns() // 10**9 // PREFIX_SECONDS
        await store.redis.flushall()
        for number in numbers:
            await echo(seeds, seeded_id(number), seeded_context(number))
    expected_data = await stored_data(seeds)
    await store.redis.flushall()

    await seed(redis_server.store_url, await template_of(seeds), numbers)

    assert await stored_data(seeds) == expected_data
    for number in numbers:
        await seeds.require_consistent(seeded_id(number))


async def test_seeded_tasks_are_listed_with_their_end_times(
    redis_server: EmbeddedRedis, store: AsyncStore, seeds: Seeds, keys: Keys
) -> None:
    template, count, began = await template_of(seeds), 2 * BATCH + 1, time_ns() // 1000

    await seed(redis_server.store_url, template, range(count))

    scores = dict(await store.redis.zrange(f"{keys.scope_index(ANN)}{COMPLETED}", 0, -1, withscores=True))
    assert sorted(scores) == [seeded_id(number).encode() for number in range(count)]
    assert began <= min(scores.values()) < max(scores.values()) < time_ns() // 1000 + BATCH
    page = await store.run(list_tasks(keys, ANN, retention=RETENTION, page_size=50))
    assert (page.total, len(page.tasks)) == (count, 50)
