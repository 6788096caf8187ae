"""Pub/sub subscriber. Listeners receive notifications while other listeners come and go, and after Redis restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.store import AsyncStore
from a2a_celery.store.log import pubsub as wake
from a2a_celery.store.log.pubsub import PubSubListener, Wakeup
from tests.support.clocks import ManualClock
from tests.support.processes.restarts import mortal_redis, suspend_server
from tests.support.waiting import LIMIT, eventually_async

SOON = 10.0
"""Seconds that a notification may take on a busy machine. Less than a listener's poll interval."""


async def wait_for_wakeup(wakeup: Wakeup) -> None:
    """Wait for a notification. Raise TimeoutError if no notification arrives in time."""
    async with asyncio.timeout(SOON):
        await wakeup.wait(timeout=LIMIT)


async def is_delivered(store: AsyncStore, wakeup: Wakeup) -> bool:
    """Return True if a notification that `store` publishes on "channel" reaches `wakeup` within a second."""
    await store.redis.publish("channel", "1")
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            await wakeup.wait(timeout=None)
            return True
    return False


async def is_up(subscriber: PubSubListener, store: AsyncStore, channel: str = "is-it-up") -> None:
    """Wait until the subscriber has subscribed to its channels."""
    async with subscriber.listen(channel):

        async def is_subscribed() -> bool:
            return await subscribers(store, channel) == 1

        await eventually_async(is_subscribed)


async def subscribers(store: AsyncStore, channel: str) -> int:
    """Return the number of connections that are subscribed to a channel."""
    [(_, count)] = await store.redis.pubsub_numsub(channel)
    return int(count)


async def test_a_listener_is_signalled_when_something_is_published(
    store: AsyncStore, subscriber: PubSubListener
) -> None:
    async with subscriber.listen("a") as wakeup, subscriber.listen("b") as other:
        await is_up(subscriber, store)
        await drain(wakeup, other)

        await store.redis.publish("a", "1")

        await wait_for_wakeup(wakeup)
        assert not await is_notified_within(other, 0.05)


async def drain(*wakeups: Wakeup) -> None:
    """Consume the notifications that a new connection causes."""
    for wakeup in wakeups:
        await wakeup.wait(timeout=0.01)


async def is_notified_within(wakeup: Wakeup, seconds: float) -> bool:
    """Return True if a notification arrives within `seconds`."""
    began = asyncio.get_running_loop().time()
    await wakeup.wait(timeout=seconds)
    return asyncio.get_running_loop().time() - began < seconds


async def test_signals_without_a_waiter_coalesce(store: AsyncStore, subscriber: PubSubListener) -> None:
    wakeup = Wakeup()
    wakeup.notify()
    wakeup.notify()

    assert await is_notified_within(wakeup, 5)
    assert not await is_notified_within(wakeup, 0.02)


async def test_every_listener_of_a_channel_is_signalled(store: AsyncStore, subscriber: PubSubListener) -> None:
    await is_up(subscriber, store)
    async with AsyncExitStack() as stack:
        wakeups = [await stack.enter_async_context(subscriber.listen("a")) for _ in range(20)]
        await drain(*wakeups)

        await store.redis.publish("a", "1")

        await asyncio.gather(*(wait_for_wakeup(wakeup) for wakeup in wakeups))


async def test_a_listener_gets_all_later_notifications(store: AsyncStore, subscriber: PubSubListener) -> None:
    await is_up(subscriber, store)

    for number in range(200):  # each time without a pause between subscribing and publishing
        async with subscriber.listen(f"channel-{number % 3}") as wakeup:
            await store.redis.publish(f"channel-{number % 3}", "1")
            await wait_for_wakeup(wakeup)


async def test_no_notification_is_lost_between_unsubscribing_and_subscribing(
    store: AsyncStore, subscriber: PubSubListener
) -> None:
    await is_up(subscriber, store)

    async def come_and_go(times: int) -> None:
        for _ in range(times):
            async with subscriber.listen("same") as wakeup:
                await store.redis.publish("same", "1")
                await wait_for_wakeup(wakeup)

    await asyncio.gather(*(come_and_go(60) for _ in range(5)))


async def test_a_channel_without_listeners_is_unsubscribed(store: AsyncStore, subscriber: PubSubListener) -> None:
    await is_up(subscriber, store)
    async with subscriber.listen("a"):
        assert await subscribers(store, "a") == 1

    async def has_left() -> bool:
        return await subscribers(store, "a") == 0

    await eventually_async(has_left)
    assert subscriber.channels == 0


async def test_a_cancelled_listener_does_not_affect_others(store: AsyncStore, subscriber: PubSubListener) -> None:
    await is_up(subscriber, store)

    async def wait_for_ever() -> None:
        async with subscriber.listen("a") as wakeup:
            while True:
                await wakeup.wait()

    async with subscriber.listen("b") as wakeup:
        for _ in range(50):
            waiter = asyncio.create_task(wait_for_ever())
            await asyncio.wait({waiter}, timeout=0)
            waiter.cancel()
            await store.redis.publish("b", "1")
            await wait_for_wakeup(wakeup)
            await asyncio.wait({waiter})


async def test_a_thousand_listeners_share_one_connection(store: AsyncStore, subscriber: PubSubListener) -> None:
    await is_up(subscriber, store)
    channels_before = await listening(store)
    async with AsyncExitStack() as stack:
        wakeups = [await stack.enter_async_context(subscriber.listen(f"task-{n}")) for n in range(1000)]
        await drain(wakeups[7])

        channels_after = await listening(store)

        assert [channels for _, channels in channels_after.items() - channels_before.items()] == [1000]
        await store.redis.publish("task-7", "1")
        await wait_for_wakeup(wakeups[7])


async def listening(store: AsyncStore) -> dict[str, int]:
    """Return the number of channels of each connection with subscriptions."""
    connections = {client["id"]: int(client["sub"]) for client in await store.redis.client_list()}
    return {client: channels for client, channels in connections.items() if channels}


async def test_messages_reach_their_handler(store: AsyncStore, subscriber: PubSubListener) -> None:
    messages: list[bytes] = []
    await subscriber.on_message("runner", messages.append)
    await is_up(subscriber, store)

    await store.redis.publish("runner", "t.1")

    async def has_arrived() -> bool:
        return messages == [b"t.1"]

    await eventually_async(has_arrived)


@asynccontextmanager
async def running_subscriber(url: str) -> AsyncIterator[PubSubListener]:
    """Run a subscriber with its own connection to `url`."""
    subscriber = PubSubListener(url)
    await subscriber.start()
    try:
        yield subscriber
    finally:
        await subscriber.stop()


async def test_stopping_signals_all_listeners_once_more(store: AsyncStore, subscriber: PubSubListener) -> None:
    await is_up(subscriber, store)
    async with subscriber.listen("a") as wakeup:
        await drain(wakeup)

        async with asyncio.timeout(SOON):
            await subscriber.stop()

        await wait_for_wakeup(wakeup)


@pytest.mark.parametrize("turns", range(6))
async def test_stopping_right_after_a_listener_left_ends(
    store: AsyncStore, subscriber: PubSubListener, turns: int
) -> None:
    await is_up(subscriber, store)
    async with subscriber.listen("a"):
        pass
    for _ in range(turns):  # stop at any await of the background task
        await asyncio.sleep(0)

    async with asyncio.timeout(SOON):
        await subscriber.stop()


async def test_after_a_restart_of_redis_all_listeners_are_signalled_and_the_subscriber_works(tmp_path: Path) -> None:
    with mortal_redis(tmp_path) as server:
        store = AsyncStore(server.store_url)
        async with running_subscriber(server.store_url) as subscriber, subscriber.listen("a") as wakeup:
            await is_up(subscriber, store)
            await drain(wakeup)

            server.die()
            async with subscriber.listen("b") as late_wakeup:  # a new listener does not wait for the connection
                server.start()
                await wait_for_wakeup(wakeup)
                await wait_for_wakeup(late_wakeup)
                await is_up(subscriber, store)
                await drain(wakeup, late_wakeup)
                await store.redis.publish("a", "1")
                await store.redis.publish("b", "1")
                await wait_for_wakeup(wakeup)
                await wait_for_wakeup(late_wakeup)
        await store.aclose()


async def test_a_subscriber_that_starts_before_redis_connects_later(tmp_path: Path) -> None:
    with mortal_redis(tmp_path) as server:
        server.die()
        store = AsyncStore(server.store_url)
        async with running_subscriber(server.store_url) as subscriber, subscriber.listen("a") as wakeup:
            server.start()

            await wait_for_wakeup(wakeup)
            await is_up(subscriber, store)
        await store.aclose()


async def test_a_silent_connection_is_replaced() -> None:
    clock, server = ManualClock(), EmbeddedRedis()
    server.start()
    store, subscriber = AsyncStore(server.store_url), PubSubListener(server.store_url, clock, ping_interval=0.02)
    try:
        async with subscriber.listen("channel") as wakeup:
            await wakeup.wait(0.3)  # the notification of the reconnection

            async def is_signalled() -> bool:
                clock.advance(wake.SILENCE + 1)  # again, because an earlier reply may still be read
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await wakeup.wait(timeout=None)
                        return True
                return False

            with suspend_server(server):
                await eventually_async(is_signalled, what="the silent connection is closed")

            async def is_back() -> bool:
                return await is_delivered(store, wakeup) and subscriber.channels == 1

            await eventually_async(is_back, what="the subscriber is connected again")
    finally:
        await subscriber.stop()
        await store.aclose()
        server.stop()


async def test_the_first_listener_starts_the_subscriber(redis_server: EmbeddedRedis, store: AsyncStore) -> None:
    subscriber = PubSubListener(redis_server.store_url)
    async with subscriber.listen("channel") as wakeup:
        await eventually_async(lambda: is_delivered(store, wakeup), what="the first listener starts the subscriber")
    await subscriber.stop()
