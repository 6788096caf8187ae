"""At-least-once deliveries in order while watchers are killed."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from a2a_celery.client.receiver import Notification, receiver_app
from a2a_celery.features.webhooks.deliveries import deliveries
from a2a_celery.lifecycle import Event
from a2a_celery.store import Keys, SyncStore
from tests.support.clients.bindings import message_json, rpc
from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.processes.serving import serve_app
from tests.support.receivers.posts import (
    DELIVERING,
    SECRET,
    body_with_config,
    require_all,
    require_signed,
    visible_events,
)
from tests.support.receivers.receiver import Receiver, Reply, Step, receiver
from tests.support.waiting import eventually, eventually_async

TASKS = 300
KILLED_EVERY = 300
"""Number of posts between two kills."""
KILLS = 3
"""Minimum number of kills."""

TIMEOUT = 240.0
"""Maximum duration in seconds. The deliveries of a killed watcher are due again after 18 s: the timeout of a post, and
`lease_ttl`."""
AGENTS = (("count", "12"), ("echo", "hello"), ("full", "hi"), ("ask", ""), ("sync-count", "3"), ("fail", ""))
SLOW = Reply(200, wait=0.03)


@pytest.fixture
def delivery_fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Fleet with short leases that may post to this machine."""
    with running_fleet(tmp_path, **DELIVERING) as fleet:
        yield fleet


@pytest.fixture
def store(delivery_fleet: Fleet) -> Iterator[SyncStore]:
    store = SyncStore(delivery_fleet.redis.store_url)
    yield store
    store.close()


@pytest.fixture
def hosts() -> Iterator[list[Receiver]]:
    """Three receivers, because a watcher limits the concurrent posts to each host."""
    with receiver() as first, receiver() as second, receiver() as third:
        yield [first, second, third]


def send_with_webhook(gateway: Gateway, agent: str, text: str, url: str) -> str:
    """Send a message with a webhook. Return the task's id without waiting for the turn."""
    body = body_with_config(message_json(text) | {"configuration": {"returnImmediately": True}}, url)
    task_id: str = rpc(gateway, "SendMessage", body, agent=agent)["result"]["task"]["id"]
    return task_id


def all_delivered(gateway: Gateway, store: SyncStore, task_by_path: dict[str, str]) -> bool:
    """Return True if all tasks are terminal or interrupted, and no delivery is outstanding."""
    if any(deliveries(store, Keys("a2a"))):
        return False
    states = [
        rpc(gateway, "GetTask", {"id": t}, agent=agent)["result"]["status"]["state"]
        for t, agent in task_by_path.items()
    ]
    return not {"TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"} & set(states) and not any(deliveries(store, Keys("a2a")))


@contextmanager
def watchers_that_are_killed(fleet: Fleet, hosts: list[Receiver]) -> Iterator[list[int]]:
    """Run two watchers, and replace one of them after every `KILLED_EVERY` posts. Yield a list with the number of posts
    at each kill."""
    watchers, kills, over = [fleet.watcher(), fleet.watcher()], [], threading.Event()

    def kill_repeatedly() -> None:
        while not over.wait(0.01):
            posts = sum(len(hooks.requests()) for hooks in hosts)
            if posts >= (kills[-1] if kills else 0) + KILLED_EVERY:
                watchers.pop(0).kill()
                kills.append(posts)
                watchers.append(fleet.watcher())

    with ThreadPoolExecutor(1) as pool:
        killer = pool.submit(kill_repeatedly)
        try:
            yield kills
        finally:
            over.set()
            killer.result(60)


@pytest.mark.nightly
def test_every_event_of_300_tasks_comes_in_order_while_watchers_are_killed(
    delivery_fleet: Fleet, store: SyncStore, hosts: list[Receiver]
) -> None:
    gateway = delivery_fleet.gateway()
    delivery_fleet.worker(pool="threads", concurrency=8)
    tasks: dict[str, tuple[str, Receiver, str]] = {}
    plans: dict[str, list[Step]] = {}

    def begin(number: int) -> None:
        agent, text = AGENTS[number % len(AGENTS)]
        hooks, path = hosts[number % len(hosts)], f"/{number}"
        chance = random.Random(number)
        plans[path] = [500 if chance.random() < 0.02 else SLOW for _ in range(100)]
        hooks.plan(path, plans[path])
        tasks[send_with_webhook(gateway, agent, text, hooks.url(path))] = agent, hooks, path

    with watchers_that_are_killed(delivery_fleet, hosts) as kills:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(begin, range(TASKS)))
        agents = {task_id: agent for task_id, (agent, *_) in tasks.items()}
        eventually(lambda: all_delivered(gateway, store, agents), what="all events are delivered")

    repetition_count = 0
    for task_id, (_, hooks, path) in tasks.items():
        posts = hooks.requests(path)
        require_signed(posts)
        require_all(posts, visible_events(store, task_id))
        taken_ids = [got.headers["webhook-id"] for got, step in zip(posts, plans[path], strict=False) if step is SLOW]
        repetition_count += len(taken_ids) - len(set(taken_ids))
    assert len(tasks) == TASKS
    assert len(kills) >= KILLS
    assert repetition_count, "no watcher was killed with a post under way"


async def test_what_handles_notifications_sees_each_event_once_while_watchers_are_killed(
    delivery_fleet: Fleet, store: SyncStore
) -> None:
    handled_events: defaultdict[str, list[tuple[int, Event]]] = defaultdict(list)

    async def handle(notification: Notification) -> None:
        await asyncio.sleep(0.05)
        handled_events[notification.task_id].append((notification.version, notification.event))

    async def so_many(number: int) -> None:
        async def has_enough() -> bool:
            return sum(map(len, handled_events.values())) >= number

        await eventually_async(has_enough, what=f"{number} are handled")

    gateway = await asyncio.to_thread(delivery_fleet.gateway)
    await asyncio.to_thread(delivery_fleet.worker, pool="threads", concurrency=8)
    async with serve_app(receiver_app(handle, secrets=[SECRET])) as url:
        tasks = {
            await asyncio.to_thread(send_with_webhook, gateway, "count", "20", f"{url}/hook"): "count"
            for _ in range(10)
        }
        for kill in (1, 2):
            watcher = await asyncio.to_thread(delivery_fleet.watcher)
            await so_many(50 * kill)
            await asyncio.to_thread(watcher.kill)
        await asyncio.to_thread(delivery_fleet.watcher)

        async def over() -> bool:
            return await asyncio.to_thread(all_delivered, gateway, store, tasks)

        await eventually_async(over, what="all events are delivered")

    for task_id in tasks:
        assert handled_events[task_id] == sorted(visible_events(store, task_id).items())
