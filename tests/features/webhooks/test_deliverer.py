"""Webhook deliverer of a watcher. Deliveries to a dead host do not delay other deliveries."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from a2a.types import TaskPushNotificationConfig

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.crypto.sealing import Sealer
from a2a_celery.errors import BlobsUnavailable
from a2a_celery.features.webhooks import keys as webhook_keys
from a2a_celery.features.webhooks.deliverer import (
    DELIVERY_LIMITS,
    LOG_PAGE_BYTES,
    LOG_PAGE_ENTRIES,
    Deliverer,
    DeliveryLimits,
    max_lease,
)
from a2a_celery.lifecycle import EventId
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.push import Backoff, CircuitBreaker, Poster, Subscription
from a2a_celery.push.circuit_breaker import FAILURE_THRESHOLD, MAX_POSTS_PER_HOST
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys, Operation
from a2a_celery.store.log.pubsub import PubSubListener
from a2a_celery.watcher.metrics import WatcherMetrics
from a2a_celery.watcher.role_loop import RoleLoop
from tests.support.clocks import ManualClock
from tests.support.receivers.posts import SECRET_KEY
from tests.support.receivers.receiver import HANG_UP, Receiver, once_set, receiver, silent
from tests.support.store.delivery_cursors import Webhooks
from tests.support.store.seeds import ANN, BOB, Seeds, chunk, run_concurrently, status
from tests.support.waiting import eventually_async

SETTINGS = Settings(store_url="redis://nowhere", secret_key=SECRET_KEY, allow_networks=["127.0.0.0/8"])
ROOT = Path(__file__).parents[3]
T = TypeVar("T")
DEAD_WEBHOOKS = 1_200
PER_TASK = 10

TICK_INTERVAL = 0.05
"""Seconds between two scans of a deliverer."""


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    return Seeds(store, keys)


class WebhookSeeds:
    """Test helper that adds webhooks to tasks. It seals configs as a gateway does."""

    def __init__(self, seeds: Seeds) -> None:
        self.seeds = seeds
        self.sealer = Sealer(SETTINGS.secret_keys)
        self.webhooks = Webhooks(seeds.store, seeds.keys)

    async def add(self, task_id: str, url: str, config_id: str = "c", protocol: str = "1.0") -> None:
        """Add a webhook of a client with the A2A version `protocol` to a task."""
        config = TaskPushNotificationConfig(id=config_id, task_id=task_id, url=url)
        sealed_config = self.sealer.seal(Subscription(config, protocol).to_bytes(), task_id, config_id)
        await self.webhooks.save_config(task_id, config_id, sealed_config)

    async def with_due_events(self, url: str, count: int = 1) -> str:
        """Create a task with `count` webhooks, each with a due event."""
        task_id = await self.seeds.create_task()
        await run_concurrently(*(self.add(task_id, url, f"c{number}") for number in range(count)))
        await self.seeds.claim_run(task_id)
        return task_id


@pytest.fixture
def hook_seeds(seeds: Seeds) -> WebhookSeeds:
    return WebhookSeeds(seeds)


@pytest.fixture
def live_receiver() -> Iterator[Receiver]:
    with receiver() as hooks:
        yield hooks


@pytest.fixture
def dead_receiver() -> Iterator[Receiver]:
    """Server that accepts connections but never responds."""
    with receiver() as hooks:
        hooks.plan("/hook", [], then=silent())
        yield hooks


def deliverer_of(
    hook_seeds: WebhookSeeds,
    poster: Poster,
    backoff: Backoff | None = None,
    limits: DeliveryLimits = DELIVERY_LIMITS,
    store: AsyncStore | None = None,
) -> Deliverer:
    secrets, seeds = SETTINGS.secret_keys, hook_seeds.seeds
    return Deliverer(store or seeds.store, seeds.keys, Sealer(secrets), poster, secrets, 1.0, backoff, limits=limits)


@asynccontextmanager
async def delivering(
    hook_seeds: WebhookSeeds,
    hosts: CircuitBreaker | None = None,
    backoff: Backoff | None = None,
    subscriber: PubSubListener | None = None,
    every: float = TICK_INTERVAL,
) -> AsyncIterator[None]:
    """Run a deliverer that scans every `every` seconds. With a subscriber, the deliverer also scans after each
    notification."""
    role = deliverer_of(hook_seeds, Poster(SETTINGS.push_networks, circuit_breaker=hosts), backoff)
    role.every = every
    loop = RoleLoop(
        role,
        subscriber.listen(webhook_keys.delivery_notifications(hook_seeds.seeds.keys))
        if subscriber is not None
        else None,
    )
    loop.start()
    yield
    await loop.stop()
    await role.aclose()


async def test_many_deliveries_to_a_dead_host_delay_no_other(
    hook_seeds: WebhookSeeds, live_receiver: Receiver, dead_receiver: Receiver
) -> None:
    await run_concurrently(
        *(hook_seeds.with_due_events(dead_receiver.url(), PER_TASK) for _ in range(DEAD_WEBHOOKS // PER_TASK))
    )
    redis, due = hook_seeds.seeds.store.redis, webhook_keys.deliveries(hook_seeds.seeds.keys)

    async def only_the_dead_wait() -> bool:
        return bool(await redis.zcard(due) == DEAD_WEBHOOKS)

    async with delivering(hook_seeds, hosts=CircuitBreaker(first_cooldown=3600, max_cooldown=3600)):  # without a probe
        for number in range(20):
            await hook_seeds.with_due_events(live_receiver.url(f"/{number}"))

            async def has_come(path: str = f"/{number}") -> bool:
                return bool(live_receiver.requests(path))

            await eventually_async(has_come, what=f"the post to the live host, number {number}")
        await eventually_async(only_the_dead_wait)

    assert 0 < len(dead_receiver.requests()) < FAILURE_THRESHOLD + MAX_POSTS_PER_HOST


async def test_an_event_is_posted_at_once(
    hook_seeds: WebhookSeeds, live_receiver: Receiver, subscriber: PubSubListener
) -> None:
    async with delivering(hook_seeds, subscriber=subscriber, every=600.0):
        for number in range(5):
            await hook_seeds.with_due_events(live_receiver.url(f"/{number}"))
            await asyncio.to_thread(live_receiver.wait_for, f"/{number}", 1, 30)


@pytest.mark.parametrize(("protocol", "unreadable"), [("1.0", "read_log"), ("0.3", "read_task")])
async def test_an_event_whose_large_part_is_lost_is_a_failure_and_is_given_up_in_the_end(
    hook_seeds: WebhookSeeds,
    live_receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
    unreadable: str,
) -> None:
    task_id = await hook_seeds.seeds.create_task()
    await hook_seeds.add(task_id, live_receiver.url("/lost"), protocol=protocol)
    await hook_seeds.seeds.claim_run(task_id)
    run, given_up = hook_seeds.seeds.store.run, webhook_keys.dead_deliveries(hook_seeds.seeds.keys)

    async def without_blobs(operation: Operation[Any]) -> Any:
        if operation.script.name == unreadable:
            raise BlobsUnavailable("a blob is not there")
        return await run(operation)

    monkeypatch.setattr(hook_seeds.seeds.store, "run", without_blobs)

    async def is_given_up() -> bool:
        return bool(await hook_seeds.seeds.store.redis.zcard(given_up))

    async with delivering(hook_seeds, backoff=Backoff(first=0.01, give_up_after=0.05)):
        await eventually_async(is_given_up)

    assert live_receiver.requests("/lost") == []
    assert (await hook_seeds.webhooks.delivery(task_id)).attempts[-1].outcome == "failed"


async def test_deliveries_that_only_wait_for_a_dead_host_are_given_up_too(
    hook_seeds: WebhookSeeds, dead_receiver: Receiver
) -> None:
    dead_receiver.plan("/hook", [], then=HANG_UP)
    task_ids = [await hook_seeds.with_due_events(dead_receiver.url(), PER_TASK) for _ in range(3)]
    redis, given_up = hook_seeds.seeds.store.redis, webhook_keys.dead_deliveries(hook_seeds.seeds.keys)

    clock = ManualClock()
    poster = Poster(
        SETTINGS.push_networks,
        circuit_breaker=CircuitBreaker(max_per_host=1, failure_threshold=1, clock=clock),
        clock=clock,
    )
    role = deliverer_of(hook_seeds, poster, Backoff(give_up_after=60.0))

    for _ in range(3):  # the first attempt, one during the cooldown, and one after the deliveries are too old
        await role.tick()
        await asyncio.gather(*role.deliveries)
        clock.advance(120)
        await hook_seeds.webhooks.pass_time(120)
    await role.aclose()

    assert await redis.zcard(given_up) == 3 * PER_TASK
    assert len(dead_receiver.requests()) < 3 * PER_TASK
    delivery = [await hook_seeds.webhooks.delivery(task_ids[0], f"c{number}") for number in range(PER_TASK)]
    assert all(line.failure["reason"] for line in delivery)


async def test_a_delivery_to_a_host_in_cooldown_is_released_until_the_cooldown_ends(
    hook_seeds: WebhookSeeds, dead_receiver: Receiver
) -> None:
    dead_receiver.plan("/hook", [], then=HANG_UP)
    await hook_seeds.with_due_events(dead_receiver.url())
    role = deliverer_of(
        hook_seeds,
        Poster(SETTINGS.push_networks, circuit_breaker=CircuitBreaker(failure_threshold=1, first_cooldown=60)),
    )
    await role.tick()
    await asyncio.gather(*role.deliveries)

    task_id = await hook_seeds.with_due_events(dead_receiver.url())
    await role.tick()
    await asyncio.gather(*role.deliveries)
    await role.aclose()

    delivery = await hook_seeds.webhooks.delivery(task_id, "c0")
    assert (delivery.is_leased, delivery.failures) == (False, 0)
    assert delivery.due_us > delivery.now_us + 10 * 1_000_000
    assert len(dead_receiver.requests()) == 1


async def test_a_deliverer_that_stops_during_an_acquisition_releases_the_cursors(
    hook_seeds: WebhookSeeds, live_receiver: Receiver
) -> None:
    task_id = await hook_seeds.with_due_events(live_receiver.url(), PER_TASK)
    role = deliverer_of(hook_seeds, Poster(SETTINGS.push_networks))

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(role.tick(), 1e-9)
    await role.aclose()

    delivery = [await hook_seeds.webhooks.delivery(task_id, f"c{number}") for number in range(PER_TASK)]
    assert not any(line.is_leased for line in delivery)
    assert all(line.due_us <= line.now_us for line in delivery)


async def test_a_post_of_a_killed_watcher_is_repeated_within_the_bound(
    hook_seeds: WebhookSeeds, live_receiver: Receiver, dead_receiver: Receiver
) -> None:
    task_id = await hook_seeds.with_due_events(dead_receiver.url())
    store, keys, secrets = hook_seeds.seeds.store, hook_seeds.seeds.keys, SETTINGS.secret_keys
    killed_deliverer = Deliverer(
        store, keys, Sealer(secrets), Poster(SETTINGS.push_networks), secrets, SETTINGS.lease_ttl
    )
    await killed_deliverer.tick()
    await asyncio.to_thread(dead_receiver.wait_for, "/hook", 1, 30)
    delivery = await hook_seeds.webhooks.delivery(task_id, "c0")
    bound_us = max_lease(SETTINGS.lease_ttl) * 1e6

    assert delivery.is_leased
    assert delivery.now_us < delivery.due_us <= delivery.now_us + bound_us
    dead_receiver.plan("/hook", [], then=200)
    [name] = await store.redis.zrange(webhook_keys.deliveries(keys), 0, -1)
    await store.redis.zincrby(webhook_keys.deliveries(keys), -bound_us, name)  # as if the lease had expired
    async with delivering(hook_seeds):
        [first, second] = await asyncio.to_thread(dead_receiver.wait_for, "/hook", 2, 30)
    await killed_deliverer.aclose()

    assert second.headers["webhook-id"] == first.headers["webhook-id"]


@pytest.mark.parametrize("lost_posts", [0, 1, 3])
async def test_events_that_replace_lost_ones_are_posted_with_other_ids(
    hook_seeds: WebhookSeeds, seeds: Seeds, live_receiver: Receiver, lost_posts: int
) -> None:
    """The store loses events and the record of their posts while the deliverer waits for a response."""
    claim = await seeds.claim_run(max_attempts=2)
    task_id = claim.ref.task_id
    await hook_seeds.add(task_id, live_receiver.url())
    await seeds.append_events(claim, chunk("kept"))
    may_continue, is_released = threading.Event(), threading.Event()
    live_receiver.plan("/hook", [once_set(may_continue), *[200] * (lost_posts - 1), once_set(is_released)])
    async with delivering(hook_seeds):
        await asyncio.to_thread(live_receiver.wait_for, "/hook", 1)
        backup = await seeds.backup()
        await seeds.append_events(claim, *(chunk(f"lost {n}") for n in range(4)), written_count=1)
        lost_entries = (await seeds.log(task_id))[-4:]
        if lost_posts:
            may_continue.set()
            await asyncio.to_thread(live_receiver.wait_for, "/hook", 1 + lost_posts)
        await seeds.restore(backup)
        await seeds.settle_run(claim, *(chunk(f"other {n}") for n in range(5)), status(COMPLETED), written_count=1)
        may_continue.set()
        is_released.set()
        log = await seeds.log(task_id)

        async def is_over() -> bool:
            return event_ids(live_receiver)[-1] == log[-1].id

        await eventually_async(is_over, what="the end of the task is posted")

    posted_ids = list(dict.fromkeys(event_ids(live_receiver)))
    assert posted_ids == [entry.id for entry in (log[2], *lost_entries[:lost_posts], *log[3:])]


def event_ids(hooks: Receiver) -> list[EventId]:
    """Return the event ids from the headers of the received posts."""
    return [EventId.parse(post.headers["webhook-id"].rpartition("_")[2]) for post in hooks.requests("/hook")]


def test_the_bound_is_documented() -> None:
    assert max_lease(15.0) == 31.0
    text = (ROOT / "docs" / "webhooks.md").read_text(encoding="utf-8")
    assert "another watcher repeats its posts within 16 s plus `lease_ttl`, 31 s by default" in " ".join(text.split())


async def test_a_post_carries_the_time_of_the_store(hook_seeds: WebhookSeeds, live_receiver: Receiver) -> None:
    store, keys, secrets = hook_seeds.seeds.store, hook_seeds.seeds.keys, SETTINGS.secret_keys
    poster, wrong_clock = Poster(SETTINGS.push_networks), ManualClock()
    role = Deliverer(store, keys, Sealer(secrets), poster, secrets, SETTINGS.lease_ttl, clock=wrong_clock)
    await hook_seeds.with_due_events(live_receiver.url())
    start, _ = await store.redis.time()

    await role.tick()
    [post] = await asyncio.to_thread(live_receiver.wait_for, "/hook", 1, 30)

    end, _ = await store.redis.time()
    assert wrong_clock.time() < start <= int(post.headers["webhook-timestamp"]) <= end
    await role.aclose()


async def test_a_delivered_event_ends_the_failures_of_those_before_it(
    hook_seeds: WebhookSeeds, live_receiver: Receiver
) -> None:
    claim = await hook_seeds.seeds.claim_run()
    task_id = claim.task.id
    await hook_seeds.add(task_id, live_receiver.url())
    await hook_seeds.seeds.append_events(claim, chunk("a"), chunk("b"))
    since_1970 = {"c:failures": 9, "c:first_failed_at": 1}
    await hook_seeds.seeds.store.redis.hset(hook_seeds.seeds.keys.task(task_id).cursors, mapping=since_1970)
    live_receiver.plan("/hook", [200, 500])

    async with delivering(hook_seeds, backoff=Backoff(first=0.01)):
        await asyncio.to_thread(live_receiver.wait_for, "/hook", 3, 30)

    assert (await hook_seeds.webhooks.delivery(task_id)).state != "dead"


async def test_a_config_that_this_watcher_has_no_key_for_is_left_to_others(
    hook_seeds: WebhookSeeds, live_receiver: Receiver
) -> None:
    """A gateway may already use a newer key. A watcher that was not restarted must not give up the deliveries of this
    gateway's webhooks."""
    task_id = await hook_seeds.with_due_events(live_receiver.url())
    other = Settings(store_url="redis://nowhere", secret_key="x" * 32)
    store, keys = hook_seeds.seeds.store, hook_seeds.seeds.keys
    role = Deliverer(store, keys, Sealer(other.secret_keys), Poster(), other.secret_keys, 1.0)

    async def has_failed() -> bool:
        await role.tick()
        return (await hook_seeds.webhooks.delivery(task_id, "c0")).failures > 0

    await eventually_async(has_failed)
    await role.aclose()
    assert (await hook_seeds.webhooks.delivery(task_id, "c0")).state == "failing"
    await hook_seeds.webhooks.pass_time(60)
    async with delivering(hook_seeds):
        await asyncio.to_thread(live_receiver.wait_for, "/hook", 1, 30)


async def test_a_config_that_this_release_cannot_read_is_left_to_others(hook_seeds: WebhookSeeds) -> None:
    task_id = await hook_seeds.seeds.create_task()
    await hook_seeds.webhooks.save_config(
        task_id, "c", hook_seeds.sealer.seal(b'{"config": {"more": 1}}', task_id, "c")
    )
    await hook_seeds.seeds.claim_run(task_id)

    async def has_failed() -> bool:
        return (await hook_seeds.webhooks.delivery(task_id)).failures > 0

    async with delivering(hook_seeds):
        await eventually_async(has_failed)

    assert "cannot read" in str((await hook_seeds.webhooks.delivery(task_id)).failure)


async def test_a_busy_deliverer_does_not_count_as_hanging(hook_seeds: WebhookSeeds, dead_receiver: Receiver) -> None:
    """A scan ends when fewer deliveries are due than the deliverer can acquire, which may be hours after an outage."""
    for _ in range(2):
        await hook_seeds.with_due_events(dead_receiver.url())
    metrics, poster, secrets = WatcherMetrics(), Poster(SETTINGS.push_networks), SETTINGS.secret_keys
    role = Deliverer(
        hook_seeds.seeds.store,
        hook_seeds.seeds.keys,
        Sealer(secrets),
        poster,
        secrets,
        lease_ttl=1.0,
        metrics=metrics,
        limits=DeliveryLimits(max_cursors=1),
    )
    looking = asyncio.create_task(role.tick())
    await asyncio.to_thread(dead_receiver.wait_for, "/hook", 1, 30)

    assert not looking.done()
    assert "deliverer" in metrics.tick_ages()

    looking.cancel()
    await role.aclose()


class RecordingStore(AsyncStore):
    """Store that records, at each read of a log, the number of bytes that the deliverer has reserved."""

    role: Deliverer
    reserved_sizes: list[int]

    async def run(self, operation: Operation[T]) -> T:
        if operation.script.name == "read_log":
            self.reserved_sizes.append(self.role.reserved_bytes)
        return await super().run(operation)


class PageRecordingStore(AsyncStore):
    """Store that records the number of entries and the bytes of the events of each page of a log."""

    pages: list[tuple[int, int]]

    async def run(self, operation: Operation[T]) -> T:
        result = await super().run(operation)
        if operation.script.name == "read_log":
            sizes = [entry.event.ByteSize() for entry in result.entries]  # type: ignore[attr-defined]
            self.pages.append((len(sizes), sum(sizes[:-1])))
        return result


async def test_a_page_of_a_log_has_a_maximum_of_entries_and_bytes(
    redis_server: EmbeddedRedis, hook_seeds: WebhookSeeds, live_receiver: Receiver
) -> None:
    for path, sizes in (("/many", [10] * 80), ("/large", [LOG_PAGE_BYTES // 3] * 12)):
        claim = await hook_seeds.seeds.claim_run()
        await hook_seeds.add(claim.ref.task_id, live_receiver.url(path))
        await hook_seeds.seeds.append_events(claim, *(chunk("x" * size) for size in sizes))
    store = PageRecordingStore(redis_server.store_url)
    store.pages = []
    role = deliverer_of(hook_seeds, Poster(SETTINGS.push_networks), store=store)

    async def is_delivered() -> bool:
        await role.tick()
        return not await store.redis.zcard(webhook_keys.deliveries(hook_seeds.seeds.keys))

    await eventually_async(is_delivered, what="everything is delivered")
    await role.aclose()
    await store.aclose()

    assert [len(live_receiver.requests(path)) for path in ("/many", "/large")] == [80, 12]
    assert max(count for count, _ in store.pages) == LOG_PAGE_ENTRIES
    assert max(size for _, size in store.pages) < LOG_PAGE_BYTES


async def test_large_events_are_delivered_within_the_memory_budget(
    redis_server: EmbeddedRedis, hook_seeds: WebhookSeeds, live_receiver: Receiver
) -> None:
    limits = DeliveryLimits(max_reserved_bytes=32 * LOG_PAGE_BYTES, reservation_retry_interval=0.05)
    size, count = 6 * LOG_PAGE_BYTES, 7
    for number in range(count):
        task_id = await hook_seeds.seeds.create_task()
        await hook_seeds.add(task_id, live_receiver.url(f"/{number}"))
        await hook_seeds.seeds.append_events(await hook_seeds.seeds.claim_run(task_id), chunk("x" * size))
    await hook_seeds.with_due_events(live_receiver.url("/small"))
    store = RecordingStore(redis_server.store_url)
    poster = Poster(SETTINGS.push_networks)
    role = store.role = deliverer_of(hook_seeds, poster, limits=limits, store=store)
    store.reserved_sizes = []

    async def is_delivered() -> bool:
        await role.tick()
        return not await store.redis.zcard(webhook_keys.deliveries(hook_seeds.seeds.keys))

    await eventually_async(is_delivered, what="everything is delivered")
    await asyncio.gather(*role.deliveries)

    assert {post.path for post in live_receiver.requests()} == {f"/{number}" for number in range(count)} | {"/small"}
    assert max(store.reserved_sizes) <= limits.max_reserved_bytes
    assert max(store.reserved_sizes) >= 2 * size, "several at once"
    assert role.reserved_bytes == 0
    await role.aclose()
    await store.aclose()


async def test_large_deliveries_of_one_owner_to_slow_hosts_do_not_delay_other_owners(
    hook_seeds: WebhookSeeds, live_receiver: Receiver
) -> None:
    limits = DeliveryLimits(max_reserved_bytes=4 * LOG_PAGE_BYTES, reservation_retry_interval=0.05)
    is_released = threading.Event()
    role = deliverer_of(hook_seeds, Poster(SETTINGS.push_networks), limits=limits)

    async def add_large_delivery(scope: Scope, path: str) -> None:
        claim = await hook_seeds.seeds.claim_run(scope=scope)
        await hook_seeds.add(claim.ref.task_id, live_receiver.url(path))
        await hook_seeds.seeds.append_events(claim, chunk("x" * limits.max_reserved_bytes))

    for number in range(3):
        live_receiver.plan(f"/slow/{number}", [once_set(is_released)])
        await add_large_delivery(ANN, f"/slow/{number}")
    await role.tick()
    await asyncio.to_thread(live_receiver.wait_for)
    await add_large_delivery(BOB, "/other")
    await role.tick()

    try:
        await asyncio.to_thread(live_receiver.wait_for, "/other", 1, 10)
    finally:
        is_released.set()
    assert len(live_receiver.requests()) == 2
    await role.aclose()


async def test_a_delivery_that_waits_for_the_share_of_its_owner_ends_no_delivery_of_others(
    hook_seeds: WebhookSeeds, live_receiver: Receiver
) -> None:
    limits = DeliveryLimits(max_reserved_bytes=4 * LOG_PAGE_BYTES, reservation_retry_interval=0)
    is_released, may_continue = threading.Event(), threading.Event()
    role = deliverer_of(hook_seeds, Poster(SETTINGS.push_networks), limits=limits)
    live_receiver.plan("/slow", [once_set(is_released)])
    live_receiver.plan("/other", [once_set(may_continue)])
    for scope, path in ((ANN, "/slow"), (ANN, "/slow"), (BOB, "/other")):
        claim = await hook_seeds.seeds.claim_run(scope=scope)
        await hook_seeds.add(claim.ref.task_id, live_receiver.url(path))
        events = [chunk("x" * limits.max_reserved_bytes) for _ in range(2)]
        await hook_seeds.seeds.append_events(claim, *events)

    async def two_deliveries_are_in_progress() -> bool:
        return len(role.deliveries) == 2

    await role.tick()
    for path in ("/slow", "/other"):
        await asyncio.to_thread(live_receiver.wait_for, path)
    await eventually_async(two_deliveries_are_in_progress)
    await role.tick()
    await eventually_async(two_deliveries_are_in_progress)
    may_continue.set()

    try:
        await asyncio.to_thread(live_receiver.wait_for, "/other", 2, 10)
    finally:
        is_released.set()
    await role.aclose()


async def test_a_large_delivery_to_a_slow_host_delays_no_small_one_and_frees_memory_after_a_post(
    hook_seeds: WebhookSeeds, live_receiver: Receiver
) -> None:
    limits = DeliveryLimits(max_reserved_bytes=2 * LOG_PAGE_BYTES, reservation_retry_interval=0.05)
    is_released = threading.Event()
    live_receiver.plan("/slow", [once_set(is_released)])
    role = deliverer_of(hook_seeds, Poster(SETTINGS.push_networks), limits=limits)

    async def add_large_delivery(path: str) -> str:
        claim = await hook_seeds.seeds.claim_run()
        await hook_seeds.add(claim.ref.task_id, live_receiver.url(path))
        await hook_seeds.seeds.append_events(claim, *(chunk("x" * limits.max_reserved_bytes) for _ in range(3)))
        return claim.ref.task_id

    slow_id = await add_large_delivery("/slow")
    await role.tick()
    await asyncio.to_thread(live_receiver.wait_for, "/slow", 1, 30)
    other = await add_large_delivery("/other")
    await hook_seeds.with_due_events(live_receiver.url("/small"))
    await role.tick()
    await asyncio.to_thread(live_receiver.wait_for, "/small", 1, 30)

    async def is_postponed(task_id: str) -> bool:
        delivery = await hook_seeds.webhooks.delivery(task_id)
        return not delivery.is_leased and delivery.due_us > 0

    await eventually_async(lambda: is_postponed(other), what="the other large delivery waits for memory")
    is_released.set()
    await eventually_async(lambda: is_postponed(slow_id), what="the slow delivery frees memory")

    async def has_no_reserved_bytes() -> bool:
        return role.reserved_bytes == 0

    await eventually_async(has_no_reserved_bytes)
    assert len(live_receiver.requests("/slow")) == 1
    assert (await hook_seeds.webhooks.delivery(slow_id)).failures == 0

    async def all_are_posted() -> bool:
        await role.tick()
        return not await hook_seeds.seeds.store.redis.zcard(webhook_keys.deliveries(hook_seeds.seeds.keys))

    await eventually_async(all_are_posted)
    assert [len(live_receiver.requests(path)) for path in ("/slow", "/other")] == [3, 3]
    await role.aclose()
