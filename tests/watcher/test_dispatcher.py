"""The dispatcher publishes what no worker claimed: all of it, once per turn, and patiently while the broker is down."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from a2a.types import Message, Part, Role, SendMessageRequest

from a2a_celery.errors import BrokerUnavailable
from a2a_celery.lifecycle.outcomes import NOT_BEGUN_IN_TIME
from a2a_celery.lifecycle.states import REJECTED, WORKING
from a2a_celery.store import AsyncStore, Keys, Operation, Scope
from a2a_celery.store.dispatch import mark_published
from a2a_celery.store.runs import RunRef, claim_run
from a2a_celery.store.tasks import create_task, read_task
from a2a_celery.watcher.dispatcher import Dispatcher
from a2a_celery.watcher.loops import Loop
from tests.support.waiting import eventually_async

DUE_NOW_US = -1_000_000


class Broker:
    """Takes runs, or doesn't."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str, int]] = []
        self.options: dict[str, bytes] = {}
        self.down = False

    async def publish_async(self, agent: str, task_id: str, run: int, options: bytes) -> None:
        if self.down:
            raise BrokerUnavailable("down")
        self.taken.append((agent, task_id, run))
        self.options[task_id] = options


def made(keys: Keys, task_id: str, options: bytes = b"") -> Operation[Any]:
    """A task that is to be stored."""
    message = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="x")])
    request = SendMessageRequest(message=message)
    return create_task(keys, Scope("echo"), task_id, "c", request, caller=b"{}", retention=60, options=options)


@pytest.fixture
async def due(store: AsyncStore, keys: Keys) -> list[str]:
    """Three tasks whose run nobody published in time."""
    task_ids = [f"t{n}" for n in range(3)]
    for task_id in task_ids:
        await store.run(made(keys, task_id))
        await store.run(mark_published(keys, RunRef(task_id, 1), again_us=DUE_NOW_US))
    return task_ids


def dispatcher(store: AsyncStore, keys: Keys, broker: Broker, redispatch_after: float = 60) -> Dispatcher:
    return Dispatcher(store, keys, broker, redispatch_after)  # type: ignore[arg-type]


async def test_what_is_due_is_published_once(store: AsyncStore, keys: Keys, due: list[str]) -> None:
    broker = Broker()
    watchers = [dispatcher(store, keys, broker) for _ in range(4)]

    await asyncio.gather(*(watcher.tick() for watcher in watchers))
    await asyncio.gather(*(watcher.tick() for watcher in watchers))

    assert sorted(broker.taken) == [("echo", task_id, 1) for task_id in due]


async def test_a_claimed_run_is_not_published_again(store: AsyncStore, keys: Keys, due: list[str]) -> None:
    broker = Broker()
    await store.run(claim_run(keys, RunRef("t1", 1), token="t", runner="r", lease_us=10_000_000, working=True))

    await dispatcher(store, keys, broker).tick()

    assert sorted(task_id for _, task_id, _ in broker.taken) == ["t0", "t2"]


async def test_a_broker_that_is_down_loses_nothing(store: AsyncStore, keys: Keys, due: list[str]) -> None:
    broker = Broker()
    watcher = dispatcher(store, keys, broker, redispatch_after=3600)
    broker.down = True
    await watcher.tick()
    broker.down = False

    async def published() -> bool:
        await watcher.tick()
        return len(broker.taken) == len(due)

    await eventually_async(published, within=10, what="everything is published soon after the broker is back")


async def test_a_run_that_stays_unclaimed_is_published_less_and_less_often(
    store: AsyncStore, keys: Keys, due: list[str]
) -> None:
    waits = []
    for _ in range(3):
        broker = Broker()
        await dispatcher(store, keys, broker, redispatch_after=1000).tick()
        seconds, micros = await store.redis.time()
        score = await store.redis.zscore(keys.dispatch, "t0.1")
        waits.append(round((score - (seconds * 1_000_000 + micros)) / 1_000_000_000))
        for task_id in due:
            await store.redis.zadd(keys.dispatch, {f"{task_id}.1": 0})

    assert waits == [1, 2, 4]


async def test_a_tick_that_fails_does_not_end_the_loop(store: AsyncStore) -> None:
    class Shaky:
        name = "shaky"
        every = 0.001
        ticks = 0

        async def tick(self) -> None:
            self.ticks += 1
            if self.ticks < 3:
                raise RuntimeError("not yet")

    role = Shaky()
    loop = Loop(role)
    loop.start()

    async def went_on() -> bool:
        return role.ticks >= 5

    await eventually_async(went_on)
    await loop.stop()


async def test_a_run_is_published_with_the_options_it_was_stored_with(store: AsyncStore, keys: Keys) -> None:
    broker, options = Broker(), b'{"celery":{"queue":"far"}}'
    await store.run(made(keys, "t", options))
    await store.run(mark_published(keys, RunRef("t", 1), again_us=DUE_NOW_US))

    await dispatcher(store, keys, broker).tick()

    assert broker.options == {"t": options}


async def test_a_run_that_has_expired_is_rejected_and_not_published(store: AsyncStore, keys: Keys) -> None:
    broker = Broker()
    await store.run(made(keys, "late", b'{"not_after_us":1}'))
    await store.run(made(keys, "begun", b'{"not_after_us":1}'))
    for task_id in ("late", "begun"):
        await store.run(mark_published(keys, RunRef(task_id, 1), again_us=DUE_NOW_US))
    await store.run(claim_run(keys, RunRef("begun", 1), token="t", runner="r", lease_us=10_000_000, working=True))

    await dispatcher(store, keys, broker).tick()

    assert broker.taken == []
    late, begun = [(await store.run(read_task(keys, None, task_id)))[0] for task_id in ("late", "begun")]
    assert late.status.state == REJECTED
    assert late.status.message.parts[0].text == NOT_BEGUN_IN_TIME
    assert begun.status.state == WORKING
