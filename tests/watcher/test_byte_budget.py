"""Byte budget of an owner for a host. Posts beyond the budget wait and arrive later."""

from __future__ import annotations

import asyncio

from a2a_celery.crypto.sealing import Sealer
from a2a_celery.push import Poster
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.webhooks.deliveries import Delivery, acquire_bytes
from a2a_celery.watcher.metrics import WatcherMetrics
from a2a_celery.watcher.webhooks.deliverer import REASON, ByteBudget, Deliverer
from tests.support.clocks import ManualClock
from tests.support.posts import SECRET_KEY
from tests.support.receiver import receiver
from tests.support.seeds import ANN, Seeds, chunk
from tests.support.waiting import eventually_async

from .test_deliverer import WebhookSeeds

SETTINGS = Settings(store_url="redis://nowhere", secret_key=SECRET_KEY, allow_networks=["127.0.0.0/8"])
PER_HOUR = 1024 * 1024


async def test_posts_beyond_the_hourly_budget_wait_visibly_and_arrive_later(store: AsyncStore, keys: Keys) -> None:
    hook_seeds, clock, metrics = WebhookSeeds(Seeds(store, keys)), ManualClock(), WatcherMetrics()
    budget = ByteBudget(store, keys, PER_HOUR, metrics, clock)
    poster = Poster(SETTINGS.push_networks, budget=budget)
    role = Deliverer(store, keys, Sealer(SETTINGS.secret_keys), poster, SETTINGS.secret_keys, 1.0, metrics=metrics)
    claim = await hook_seeds.seeds.claim_run()
    task_id = claim.ref.task_id
    with receiver() as live_receiver:
        await hook_seeds.add(task_id, live_receiver.url())
        await hook_seeds.seeds.append_events(claim, *(chunk("x" * (PER_HOUR * 3 // 5)) for _ in range(3)))

        async def waits_for_bytes() -> bool:
            return (await hook_seeds.webhooks.delivery(task_id)).failure.get("reason") == REASON

        await role.tick()
        await eventually_async(waits_for_bytes)
        waiting = await hook_seeds.webhooks.delivery(task_id)
        await hook_seeds.webhooks.pass_time(2 * 86400)  # longer than a failing delivery is retried
        await role.tick()
        await asyncio.gather(*role._deliveries)
        delivery = await hook_seeds.webhooks.delivery(task_id)

        assert [(delivery.state, delivery.delivered, delivery.failures) for delivery in (waiting, delivery)] == [
            ("waiting", 4, 0)
        ] * 2
        assert waiting.due_us - waiting.now_us > 10 * 60 * 1e6
        assert metrics.registry.get_sample_value("a2a_watcher_posts_deferred_for_bytes_total") == 2
        assert len(live_receiver.requests()) == 2

        clock.advance(3600)
        await store.redis.delete(*[key async for key in store.redis.scan_iter(f"{keys.prefix}:byte_bucket:*")])
        await hook_seeds.webhooks.pass_time(3600)
        await role.tick()
        await asyncio.gather(*role._deliveries)

        assert len(live_receiver.requests()) == 3
    last_delivery = await hook_seeds.webhooks.delivery(task_id)
    await role.aclose()
    assert (last_delivery.state, last_delivery.failure) == ("delivered", {})


async def test_a_wait_for_bytes_does_not_count_toward_the_day_of_failures(store: AsyncStore, keys: Keys) -> None:
    hook_seeds, clock = WebhookSeeds(Seeds(store, keys)), ManualClock()
    poster = Poster(SETTINGS.push_networks, budget=ByteBudget(store, keys, PER_HOUR, WatcherMetrics(), clock))
    role = Deliverer(store, keys, Sealer(SETTINGS.secret_keys), poster, SETTINGS.secret_keys, 1.0)

    async def tick() -> Delivery:
        await role.tick()
        await asyncio.gather(*role._deliveries)
        return await hook_seeds.webhooks.delivery(task_id, "c0")

    with receiver() as live_receiver:
        live_receiver.plan("/hook", [], then=500)
        task_id = await hook_seeds.with_due_events(live_receiver.url())
        failing = await tick()
        await store.run(acquire_bytes(keys, ANN.account, "127.0.0.1", 30 * PER_HOUR, per_hour=PER_HOUR))
        await hook_seeds.webhooks.pass_time(3600)
        waiting = await tick()
        wait = (waiting.due_us - waiting.now_us) / 1e6
        clock.advance(wait)
        await store.redis.delete(*[key async for key in store.redis.scan_iter(f"{keys.prefix}:byte_bucket:*")])
        await hook_seeds.webhooks.pass_time(wait + 1)
        failing_again = await tick()
    await role.aclose()

    assert wait > 22 * 3600
    assert [delivery.failures for delivery in (failing, waiting, failing_again)] == [1, 1, 2]
    assert failing_again.state == "failing"
