"""Compare the cost of a durable step with that of an event, and check that a step takes one round trip to the store.

    python -m benchmarks.steps [steps]

In alternation, one agent sends events and waits until the store has written each, and another agent executes steps.
A step is such an event with a recorded result, so the ratio is the cost of durability. CPU time is that of this process
and of Redis.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeVar

import redis.asyncio
from a2a.types import AgentCard, TaskStatus, TaskStatusUpdateEvent

from a2a_celery import Turn
from a2a_celery.agents import Agent
from a2a_celery.caller import Caller
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.execution.agents.running_agent import RunningAgent
from a2a_celery.execution.events.queue import RunEventQueue
from a2a_celery.execution.open_run import OpenRun
from a2a_celery.execution.run import begin_agent
from a2a_celery.lifecycle.states import WORKING
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys, Operation
from tests.support.store.seeds import Seeds

T = TypeVar("T")

ROUNDS = 5
LIMIT = 2.0
"""Maximum ratio of the CPU time of a step to that of an event."""


class CountingStore(AsyncStore):
    """Store client that counts the operations that it runs."""

    calls = 0

    async def run(self, operation: Operation[T]) -> T:
        self.calls += 1
        return await super().run(operation)


@dataclass
class Cost:
    """Cost of one event or step.

    Attributes:
        process: CPU time of this process in µs.
        redis: CPU time of Redis in µs.
        calls: Number of round trips to the store.
    """

    process: float
    redis: float
    calls: float

    @property
    def total(self) -> float:
        return self.process + self.redis


async def work(n: int) -> dict[str, Any]:
    """Return a small result."""
    return {"n": n, "text": "x" * 100}


async def take_steps(turn: Turn, events: RunEventQueue, count: int) -> None:
    """Execute `count` durable steps."""
    for n in range(count):
        await turn.step("work", work, n)


async def send_events(turn: Turn, events: RunEventQueue, count: int) -> None:
    """Send `count` events, and wait until the store has written each event."""
    for n in range(count):
        await events.enqueue_event(TaskStatusUpdateEvent(status=TaskStatus(state=WORKING), metadata=await work(n)))
        await events.flush()


AGENT = Agent("agent", AgentCard(name="agent"), "function", None)

Code = Callable[[Turn, RunEventQueue, int], Awaitable[None]]


async def measure(store: CountingStore, agent: Code, count: int) -> Cost:
    """Run `agent` with `count` events or steps in a new task. Return the cost of one event or step."""
    keys = Keys("benchmark")
    claim = await Seeds(store, keys).claim_run()

    caller = Caller(user="ann")
    claim = replace(claim, turn=replace(claim.turn, caller=caller.to_json()))
    settings = Settings(store_url="redis://127.0.0.1/0")
    run = OpenRun(store, keys, claim, settings, AGENT)
    events = RunEventQueue(run, hold=1)
    begin_agent(RunningAgent(run, events))
    turn = Turn(run, events, caller)
    before, calls = (processor(), await redis_processor(store.redis)), store.calls
    await agent(turn, events, count)
    after = processor(), await redis_processor(store.redis)
    await events.abandon()
    process, server = ((end - start) / count * 1e6 for start, end in zip(before, after, strict=True))
    return Cost(process, server, (store.calls - calls) / count)


def processor() -> float:
    """Return the CPU time of this process, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def redis_processor(client: redis.asyncio.Redis) -> float:
    """Return the CPU time of Redis, in seconds."""
    cpu = await client.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


async def rounds(url: str, count: int) -> int:
    store = CountingStore(url)
    costs: dict[Code, list[Cost]] = {send_events: [], take_steps: []}
    for number in range(ROUNDS + 1):
        for agent, agent_costs in costs.items():
            task = asyncio.create_task(measure(store, agent, count), context=copy_context())
            cost = await task
            if number:  # the first round warms up
                agent_costs.append(cost)
    await store.aclose()
    ratio = median(step.total / event.total for event, step in zip(costs[send_events], costs[take_steps], strict=True))
    calls = max(cost.calls for cost in costs[take_steps])
    for name, agent in (("event", send_events), ("step", take_steps)):
        process, server = median(c.process for c in costs[agent]), median(c.redis for c in costs[agent])
        print(f"  {name:<8} {process:.0f} µs of CPU time in the worker, {server:.0f} µs in Redis")
    print(f"  step / event     {ratio:.2f}   (limit {LIMIT})")
    print(f"  round trips      {calls:.2f} a step   (limit 1)")
    return 0 if ratio <= LIMIT and calls <= 1 else 1


def main(count: int) -> int:
    server = EmbeddedRedis()
    server.start()
    try:
        return asyncio.run(rounds(server.store_url, count))
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000))
