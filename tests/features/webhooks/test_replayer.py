"""Replays and pings that the owner of a webhook requests. A watcher posts them to a real receiver and records the
results."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from a2a.types import TaskPushNotificationConfig

from a2a_celery.crypto.sealing import Sealer
from a2a_celery.features.webhooks import keys as webhook_keys
from a2a_celery.features.webhooks.deliverer import LOG_PAGE_BYTES, Deliverer
from a2a_celery.features.webhooks.deliveries import PING, Delivery, request_post
from a2a_celery.features.webhooks.push_configs import delete_push_config
from a2a_celery.features.webhooks.replayer import MAX_CURSORS, Replayer
from a2a_celery.lifecycle import EventId
from a2a_celery.lifecycle.references import Scope
from a2a_celery.push import Backoff, CircuitBreaker, Poster, Subscription
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.watcher.role_loop import RoleLoop
from tests.support.receivers.posts import SECRET, SECRET_KEY, require_signed, version_of
from tests.support.receivers.receiver import Receiver, once_set, receiver, silent, writes
from tests.support.store.delivery_cursors import Webhooks
from tests.support.store.seeds import ANN, BOB, Seeds, chunk
from tests.support.waiting import eventually_async

SECRETS = [SECRET_KEY.encode()]
SETTINGS = Settings(store_url="redis://nowhere", secret_key=SECRET_KEY, allow_networks=["127.0.0.0/8"])

TICK_INTERVAL = 0.05
"""Seconds between two ticks of a role."""


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    return Seeds(store, keys)


@pytest.fixture
def hooks() -> Iterator[Receiver]:
    with receiver() as hooks:
        yield hooks


class Scene:
    """Test helper with a task, the task's webhook, and the requests of the webhook's owner."""

    def __init__(self, seeds: Seeds, sealer: Sealer) -> None:
        self.seeds, self.sealer = seeds, sealer
        self.webhooks = Webhooks(seeds.store, seeds.keys)
        self.scope, self.task_id = ANN, ""

    async def begin(self, url: str, scope: Scope = ANN) -> None:
        """Create a task with a webhook whose second event is due."""
        self.scope, self.task_id = scope, await self.seeds.create_task(scope)
        await self.save_config(url)
        await self.seeds.claim_run(self.task_id)

    async def save_config(self, url: str) -> None:
        """Save the config of the webhook, or replace it."""
        config = TaskPushNotificationConfig(id="c", task_id=self.task_id, url=url, token=SECRET)
        sealed_config = self.sealer.seal(Subscription(config).to_bytes(), self.task_id, "c")
        await self.webhooks.save_config(self.task_id, "c", sealed_config)

    async def ask(self, post: EventId | str) -> None:
        """Request a post as the webhook's owner."""
        request = request_post(self.seeds.keys, self.scope, self.task_id, "c", post)
        assert await self.seeds.store.run(request) == "requested"

    async def event_id(self, version: int) -> EventId:
        return (await self.seeds.log(self.task_id))[version - 1].id

    async def delivery(self) -> Delivery:
        return await self.webhooks.delivery(self.task_id)

    async def attempts(self, count: int) -> list[tuple[str, str, int | None]]:
        """Wait for `count` attempts. Return the post, the outcome and the status of each attempt, newest first."""

        async def are_recorded() -> bool:
            return len((await self.delivery()).attempts) >= count

        await eventually_async(are_recorded, what=f"{count} attempts are recorded")
        return [(attempt.post, attempt.outcome, attempt.status) for attempt in (await self.delivery()).attempts]


@pytest.fixture
def scene(seeds: Seeds) -> Scene:
    return Scene(seeds, Sealer(SECRETS))


@asynccontextmanager
async def watching(
    scene: Scene,
    *,
    allow: str = "127.0.0.0/8",
    hosts: CircuitBreaker | None = None,
    max_cursors: int = MAX_CURSORS,
) -> AsyncIterator[None]:
    """Run a deliverer and a replayer."""
    networks = Settings(store_url="redis://nowhere", secret_key=SECRET_KEY, allow_networks=[allow]).push_networks
    store, keys, poster = scene.seeds.store, scene.seeds.keys, Poster(networks, circuit_breaker=hosts)
    backoff = Backoff(first=0.01, longest=0.02)
    deliverer = Deliverer(store, keys, scene.sealer, poster, SECRETS, 1.0, backoff)
    replayer = Replayer(store, keys, scene.sealer, deliverer, 1.0, max_cursors)
    deliverer.every = replayer.every = TICK_INTERVAL
    loops = [RoleLoop(role) for role in (deliverer, replayer)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            await loop.stop()
        await replayer.aclose()
        await deliverer.aclose()


async def test_each_post_is_an_attempt_until_the_event_is_delivered(scene: Scene, hooks: Receiver) -> None:
    hooks.plan("/hook", [500, writes(b"no HTTP at all\r\n\r\n")])
    await scene.begin(hooks.url("/hook"))

    async with watching(scene):
        attempts = await scene.attempts(3)

    event = str(await scene.event_id(2))
    assert attempts == [(event, "delivered", 200), (event, "failed", None), (event, "failed", 500)]
    first, no_http, third = (await scene.delivery()).attempts
    assert (first.reason, third.reason) == ("", "answered 500")
    assert no_http.reason == "the response is not HTTP"
    assert first.next_us == 0 < third.next_us
    assert all(attempt.latency_ms is not None for attempt in (first, no_http, third))


async def test_an_event_is_replayed_unchanged_and_with_its_id(scene: Scene, hooks: Receiver) -> None:
    await scene.begin(hooks.url("/hook"))
    async with watching(scene):
        [first] = await asyncio.to_thread(hooks.wait_for, "/hook", 1)
        await scene.attempts(1)

        await scene.ask(await scene.event_id(2))

        _, second = await asyncio.to_thread(hooks.wait_for, "/hook", 2)
        event = str(await scene.event_id(2))
        assert await scene.attempts(2) == [(event, "delivered", 200), (event, "delivered", 200)]

    assert (second.body, second.headers["webhook-id"]) == (first.body, first.headers["webhook-id"])
    require_signed([first, second])
    assert (await scene.delivery()).state == "delivered"


async def test_a_ping_is_signed_and_no_event(scene: Scene, hooks: Receiver) -> None:
    await scene.begin(hooks.url("/hook"))
    await scene.ask("ping-1")
    async with watching(scene):
        await scene.attempts(2)

    ping = next(post for post in hooks.requests("/hook") if post.headers["webhook-id"].endswith("_ping-1"))
    event = next(post for post in hooks.requests("/hook") if post is not ping)
    require_signed([ping])
    body = ping.json()
    assert (body["type"], body["data"]) == ("webhook.ping", {"taskId": scene.task_id, "id": "c"})
    assert body["timestamp"].endswith("Z")
    assert ping.headers["content-type"] == "application/json"
    assert version_of(event) == 2
    assert int(ping.headers["webhook-timestamp"]) == pytest.approx(int(event.headers["webhook-timestamp"]), abs=60)


async def test_requests_are_served_by_the_successor_of_a_killed_watcher(scene: Scene, hooks: Receiver) -> None:
    hooks.plan("/hook", [200], then=silent())
    await scene.begin(hooks.url("/hook"))
    async with watching(scene):
        await scene.attempts(1)
        await scene.ask("ping-1")
        await scene.ask(await scene.event_id(1))
        await asyncio.to_thread(hooks.wait_for, "/hook", 2)  # the ping has no response when the watcher stops
    assert (await scene.delivery()).requested == ("ping-1", str(await scene.event_id(1)))

    hooks.plan("/hook", [])
    async with watching(scene):
        await scene.attempts(3)

    posted_ids = [post.headers["webhook-id"].rpartition("_")[2] for post in hooks.requests("/hook")]
    assert posted_ids[1:] == ["ping-1", "ping-1", str(await scene.event_id(1))]


async def test_a_failed_ping_is_recorded_without_other_effects(scene: Scene, hooks: Receiver) -> None:
    hooks.plan("/hook", [200, 410, 500])
    await scene.begin(hooks.url("/hook"))
    async with watching(scene):
        await scene.attempts(1)
        await scene.ask("ping-1")
        await scene.attempts(2)
        await scene.ask("ping-2")
        attempts = await scene.attempts(3)

    assert attempts[:2] == [("ping-2", "failed", 500), ("ping-1", "gone", 410)]
    delivery = await scene.delivery()
    assert (delivery.state, delivery.failures, delivery.died_us) == ("delivered", 0, 0)


async def test_a_ping_to_an_address_that_is_not_allowed_is_refused_and_names_no_address(
    scene: Scene, hooks: Receiver
) -> None:
    await scene.begin(hooks.url("/hook"))
    await scene.ask("ping-1")
    async with watching(scene, allow="10.0.0.0/8"):
        await scene.attempts(2)

    attempts = (await scene.delivery()).attempts
    assert {(attempt.outcome, attempt.status, attempt.latency_ms) for attempt in attempts} == {("refused", None, None)}
    assert {attempt.reason for attempt in attempts} == {"its host was not found or is forbidden for webhooks"}
    assert hooks.requests("/hook") == []


async def test_a_name_that_is_not_found_looks_like_one_that_is_forbidden(scene: Scene) -> None:
    await scene.begin("https://no-such-host.invalid/hook")
    async with watching(scene):
        await scene.attempts(1)

    attempt = (await scene.delivery()).attempts[-1]
    assert (attempt.outcome, attempt.latency_ms) == ("refused", None)
    assert attempt.reason == "its host was not found or is forbidden for webhooks"


async def test_a_ping_of_an_unreadable_config_is_recorded_as_such(scene: Scene, hooks: Receiver) -> None:
    await scene.begin(hooks.url("/hook"))
    await scene.ask("ping-1")
    scene.sealer = Sealer([b"another key of 32 bytes, or more"])
    async with watching(scene):
        await scene.attempts(2)

    reasons = {attempt.reason for attempt in (await scene.delivery()).attempts}
    assert reasons == {"this service cannot read the event or the configuration"}


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_no_further_post_is_sent_after_the_config_was_deleted_or_replaced(
    scene: Scene, hooks: Receiver, is_replaced: bool
) -> None:
    may_respond = threading.Event()
    hooks.plan("/hook", [once_set(may_respond)])
    await scene.begin(hooks.url("/hook"))
    await scene.ask("ping-1")
    await scene.ask(await scene.event_id(1))
    store, keys = scene.seeds.store, scene.seeds.keys
    deliverer = Deliverer(store, keys, scene.sealer, Poster(SETTINGS.push_networks), SECRETS, 1.0)
    replayer = Replayer(store, keys, scene.sealer, deliverer, 1.0)
    await replayer.tick()
    await asyncio.to_thread(hooks.wait_for, "/hook", 1)

    if is_replaced:
        await scene.save_config(hooks.url("/other"))
    else:
        assert await store.run(delete_push_config(keys, ANN, scene.task_id, "c"))
    may_respond.set()
    await asyncio.gather(*replayer.posts)
    await replayer.aclose()
    await deliverer.aclose()

    assert [post.headers["webhook-id"].rpartition("_")[2] for post in hooks.requests("/hook")] == ["ping-1"]


async def test_a_post_that_is_requested_during_another_is_sent_at_once(scene: Scene, hooks: Receiver) -> None:
    """Otherwise, the post would wait until the lease of the cursor ends."""
    may_respond = threading.Event()
    hooks.plan("/hook", [200, once_set(may_respond)])
    await scene.begin(hooks.url("/hook"))
    async with watching(scene):
        await scene.attempts(1)
        await scene.ask("ping-1")
        await asyncio.to_thread(hooks.wait_for, "/hook", 2)
        await scene.ask("ping-2")
        may_respond.set()
        await asyncio.to_thread(hooks.wait_for, "/hook", 3, 10)


async def test_large_events_are_replayed_one_at_a_time(seeds: Seeds, hooks: Receiver) -> None:
    """Otherwise, a watcher would hold the events of `MAX_CURSORS` replays in memory."""
    may_respond = threading.Event()
    hooks.plan("/large", [once_set(may_respond)], then=200)

    async def request_replay(path: str, size: int) -> None:
        """Create a task with an event of `size` bytes, and request the replay of the event."""
        scene, claim = Scene(seeds, Sealer(SECRETS)), await seeds.claim_run()
        scene.task_id = claim.ref.task_id
        await seeds.append_events(claim, chunk("x" * size))
        await scene.save_config(hooks.url(path))  # after the event, which is therefore not due
        await scene.ask(await scene.event_id(3))

    for _ in range(2):
        await request_replay("/large", LOG_PAGE_BYTES)
    deliverer = Deliverer(seeds.store, seeds.keys, Sealer(SECRETS), Poster(SETTINGS.push_networks), SECRETS, 1.0)
    replayer = Replayer(seeds.store, seeds.keys, Sealer(SECRETS), deliverer, 1.0)
    await replayer.tick()
    await asyncio.to_thread(hooks.wait_for, "/large")
    for path in ("/small", "/small-again"):
        await request_replay(path, 10)
        await replayer.tick()
        await asyncio.to_thread(hooks.wait_for, path)
    large_posts = len(hooks.requests("/large"))
    may_respond.set()
    await asyncio.gather(*replayer.posts)
    await replayer.aclose()
    await deliverer.aclose()

    assert (large_posts, len(hooks.requests("/large"))) == (1, 2)
    assert hooks.most_at_once("/large") == 1


async def test_pings_of_one_owner_to_slow_hosts_do_not_delay_other_owners(seeds: Seeds, hooks: Receiver) -> None:
    hooks.plan("/slow", [], then=silent())
    scene = Scene(seeds, Sealer(SECRETS))
    for number in range(6):
        await scene.begin(hooks.url("/slow"))
        await scene.ask(f"{PING}{number}")
    other = Scene(seeds, Sealer(SECRETS))
    await other.begin(hooks.url("/other"), BOB)
    await seeds.store.redis.delete(webhook_keys.deliveries(seeds.keys))  # only the pings are due

    async with watching(scene, max_cursors=2):
        await asyncio.to_thread(hooks.wait_for, "/slow")
        await other.ask(f"{PING}other")
        await asyncio.to_thread(hooks.wait_for, "/other", within=10)

    assert len(hooks.requests("/slow")) == 1
