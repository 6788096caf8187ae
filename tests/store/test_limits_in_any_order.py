"""Counters of limits after random operations. The counters match the stored tasks."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.lifecycle.outcomes import status_event
from a2a_celery.lifecycle.states import (
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    INTERRUPTED,
    REJECTED,
    SUBMITTED,
    TERMINAL,
    WORKING,
)
from a2a_celery.store import Keys, Scope
from a2a_celery.store.operation import Operation, script
from a2a_celery.store.runs.commands import Claim, RunRef, end_run
from a2a_celery.store.runs.recovery import return_run
from a2a_celery.store.runs.release import delegate_to_canvas, end_by_result, release_run
from a2a_celery.store.tasks.commands import TaskLimits, continue_task, end_pauses, request_cancel
from a2a_celery.store.tasks.results import Created, Limited
from tests.store.test_limits import AGENTS, stored_bytes, try_to_create
from tests.store.test_racing_writers import stores
from tests.support.leaks import leaks
from tests.support.seeds import ANN, BOB, CONTEXT, Seeds, chunk, request, status


@dataclass
class World:
    """Tasks of two owners, the claims of their runs, and random operations on the tasks."""

    seeds: Seeds
    chance: random.Random
    claims: dict[str, Claim] = field(default_factory=dict)
    write_counts: Counter[str] = field(default_factory=Counter)

    async def record(self, task_id: str) -> dict[str, str]:
        fields = await self.seeds.store.redis.hgetall(self.seeds.keys.task(task_id).record)
        return {"phase": ""} | {name.decode(): value.decode(errors="replace") for name, value in fields.items()}

    async def records(self) -> dict[str, dict[str, str]]:
        """Return the records of all tasks by task id."""
        record_keys = [key async for key in self.seeds.store.redis.scan_iter(f"{self.seeds.keys.prefix}:{{*}}:task")]
        names = [key.decode().partition("{")[2].partition("}")[0] for key in record_keys]
        return {name: await self.record(name) for name in names}

    async def act(self, move: str) -> None:
        """Perform an operation on a random task. The operation may be invalid in the state of the task."""
        if move == "create":
            many = TaskLimits(AGENTS, concurrent=1000, waiting=1000, queued=1000, store_bytes=10**12)
            serialize_context = self.chance.random() < 0.5
            await try_to_create(self.seeds, many, self.chance.choice([ANN, BOB]), serialize_context=serialize_context)
            return
        records = await self.records()
        if records:
            task_id = self.chance.choice(sorted(records))
            await MOVES[move](self, task_id, records[task_id])

    async def claim(self, task_id: str, r: dict[str, str]) -> None:
        try:
            working, most = self.chance.random() < 0.5, self.chance.choice([1, 3])
            self.claims[task_id] = await self.seeds.claim_run(
                task_id, run=int(r["run"]), working=working, max_attempts=most
            )
        except AssertionError:
            return  # the task has a run or is terminal
        self.write_counts[task_id] = 0

    async def events(self, task_id: str, r: dict[str, str]) -> None:
        await self._end(task_id, [chunk("x"), status(WORKING)])

    async def end(self, task_id: str, r: dict[str, str]) -> None:
        await self._end(task_id, [status(self.chance.choice([COMPLETED, FAILED, REJECTED]))])

    async def pause(self, task_id: str, r: dict[str, str]) -> None:
        await self._end(task_id, [status(INPUT_REQUIRED)])

    async def answer(self, task_id: str, r: dict[str, str]) -> None:
        scope = Scope.parse(r["scope"])
        message_request = request("more", task_id, CONTEXT)
        limits = TaskLimits(AGENTS, queued=1000)
        next_message = continue_task(
            self.seeds.keys, scope, task_id, message_request, "", caller=b"{}", nonce=uuid4().hex, limits=limits
        )
        await self.seeds.store.run(next_message)

    async def cancel(self, task_id: str, r: dict[str, str]) -> None:
        await self.seeds.store.run(request_cancel(self.seeds.keys, Scope.parse(r["scope"]), task_id, CONTEXT))

    async def lose(self, task_id: str, r: dict[str, str]) -> None:
        if r["phase"] == "running":
            await self.seeds.recover_run(RunRef(task_id, int(r["run"])))

    async def kill(self, task_id: str, r: dict[str, str]) -> None:
        is_lost = self.chance.random() < 0.5
        event = status_event(task_id, CONTEXT, FAILED)
        ref, runner = RunRef(task_id, int(r["run"])), "runner" if r["phase"] == "running" else None
        await self.seeds.store.run(
            end_run(self.seeds.keys, ref, runner=runner or ("runner" if is_lost else None), event=event, lost=is_lost)
        )

    async def return_run(self, task_id: str, r: dict[str, str]) -> None:
        failure = status_event(task_id, CONTEXT, FAILED)
        ref, runner = RunRef(task_id, int(r["run"])), "runner" if r["phase"] == "running" else None
        await self.seeds.store.run(return_run(self.seeds.keys, ref, runner=runner, lost=failure))

    async def retry(self, task_id: str, r: dict[str, str]) -> None:
        if claim := self.claims.pop(task_id, None):
            await self.seeds.store.run(
                release_run(
                    self.seeds.keys,
                    claim.ref,
                    token=claim.token,
                    written_count=0,
                    events=[],
                    options=b"",
                    retries=1,
                    delay_us=1,
                )
            )

    async def delegate_to_canvas(self, task_id: str, r: dict[str, str]) -> None:
        if claim := self.claims.pop(task_id, None):
            await self.seeds.store.run(
                delegate_to_canvas(
                    self.seeds.keys, claim.ref, token=claim.token, written_count=0, events=[], canvas="{}"
                )
            )

    async def result(self, task_id: str, r: dict[str, str]) -> None:
        await self.seeds.store.run(
            end_by_result(self.seeds.keys, RunRef(task_id, int(r["run"])), [status_event(task_id, CONTEXT, COMPLETED)])
        )

    async def forget_pauses(self, task_id: str, r: dict[str, str]) -> None:
        if r["phase"] == "" and int(r["state"]) in INTERRUPTED:
            await self.seeds.store.redis.zadd(self.seeds.keys.pauses, {task_id: 1}, xx=True)
            await self.seeds.store.run(end_pauses(self.seeds.keys, limit=10))

    async def requeue(self, task_id: str, r: dict[str, str]) -> None:
        if await self.seeds.store.redis.zscore(self.seeds.keys.dead_letters, task_id) is not None:
            await self.seeds.requeue_task(task_id)

    async def delete(self, task_id: str, r: dict[str, str]) -> None:
        names = self.seeds.keys.task(task_id)
        await self.seeds.store.run(Operation(script("delete_task"), names, [r["scope"]], int))
        await self.seeds.store.redis.zrem(self.seeds.keys.dead_letters, task_id)
        await self.seeds.store.redis.zrem(self.seeds.keys.pauses, task_id)

    async def expire(self, task_id: str, r: dict[str, str]) -> None:
        if int(r["state"]) in TERMINAL:
            keys = [key async for key in self.seeds.store.redis.scan_iter(f"{self.seeds.keys.prefix}:{{{task_id}}}:*")]
            await self.seeds.store.redis.delete(*keys)
            await self.seeds.store.redis.zrem(self.seeds.keys.dead_letters, task_id)
            for entry in await self.seeds.store.redis.zrange(self.seeds.keys.stored_expiring, 0, -1):
                if entry.split()[0].decode() == task_id:
                    await self.seeds.store.redis.zadd(self.seeds.keys.stored_expiring, {entry: 1})

    async def _end(self, task_id: str, events: list[Any]) -> None:
        if claim := self.claims.get(task_id):
            try:
                if len(events) > 1:
                    await self.seeds.append_events(claim, *events, written_count=self.write_counts[task_id])
                    self.write_counts[task_id] += len(events)
                else:
                    await self.seeds.settle_run(claim, *events, written_count=self.write_counts[task_id])
            except AssertionError:
                pass  # the run was lost
            if len(events) == 1:
                del self.claims[task_id]


MOVES: dict[str, Callable[[World, str, dict[str, str]], Awaitable[None]]] = {
    move.__name__: move
    for move in (
        World.claim, World.events, World.end, World.pause, World.answer, World.cancel, World.lose, World.kill,
        World.return_run, World.retry, World.delegate_to_canvas, World.result, World.forget_pauses, World.requeue,
        World.delete, World.expire,
    )
}  # fmt: skip


async def require_bytes_counted(seeds: Seeds, records: dict[str, dict[str, str]]) -> None:
    """Assert that a task's counter covers its stored bytes, and that an owner's counter is the sum over the owner's
    tasks."""
    await try_to_create(seeds, TaskLimits(AGENTS, store_bytes=1))  # expired tasks leave the sums
    sums: Counter[str] = Counter()
    for task_id, record in records.items():
        assert int(record["size"]) >= await stored_bytes(seeds, task_id), record
        sums[record["scope"].partition("/")[2]] += int(record["size"])
    counters = await seeds.store.redis.hgetall(seeds.keys.stored)
    assert {owner.decode(): int(size) for owner, size in counters.items()} == (
        {**sums, "*": sums.total()} if sums else {}
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    moves=st.lists(st.sampled_from(["create", "create", "create", "claim", "claim", "claim", *MOVES]), max_size=60),
    seed=st.integers(0, 2**16),
)
def test_counters_equal_the_stored_tasks_after_any_moves(
    redis_server: EmbeddedRedis, moves: list[str], seed: int
) -> None:
    async def play() -> None:
        keys = Keys("test")
        async with stores(redis_server, 1) as [store]:
            world = World(Seeds(store, keys), random.Random(seed))
            for move in moves:
                await world.act(move)
            by_id = await world.records()
            records = by_id.values()
            await require_bytes_counted(world.seeds, by_id)
            queued_count = sum(r["phase"] == "queued" for r in records)
            assert await store.redis.zcard(keys.queue("agent")) == queued_count
            assert await leaks(store, keys) == []
            for scope in (ANN, BOB):
                states = Counter(int(r["state"]) for r in records if r["scope"] == str(scope))
                truth = {"waiting": states[SUBMITTED], "concurrent": states[SUBMITTED] + states[WORKING]}
                for limit, most in {**truth, "queued": queued_count}.items():
                    refusal = await try_to_create(world.seeds, TaskLimits(AGENTS, **{limit: most}), scope)
                    assert isinstance(refusal, Limited), (limit, most)
                    answer = await try_to_create(world.seeds, TaskLimits(AGENTS, **{limit: most + 1}), scope)
                    assert isinstance(answer, Created), (limit, most)
                    names = keys.task(answer.task.id)
                    assert await store.run(Operation(script("delete_task"), names, [str(scope)], int)) == 1

    asyncio.run(play())
