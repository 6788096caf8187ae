"""The wake line: rings reach who listens, through leaving and joining and through a Redis that dies."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.store import AsyncStore
from a2a_celery.store.log import pubsub as wake
from a2a_celery.store.log.pubsub import LogSignal, PubSubListener
from tests.support.restarts import mortal_redis
from tests.support.waiting import eventually_async

SOON = 10.0
"""Seconds a ring may take on a busy machine; less than what a listener waits that hears nothing."""


async def rings(log_signal: LogSignal) -> None:
    """Fails if the bell doesn't ring in time."""
    async with asyncio.timeout(SOON):
        await log_signal.wait(timeout=60)


async def delivers(store: AsyncStore, log_signal: LogSignal) -> bool:
    """Return whether a notification that `store` publishes on "channel" reaches `log_signal` within a second."""
    await store.redis.publish("channel", "1")
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            await log_signal.wait(timeout=None)
            return True
    return False


async def is_up(line: PubSubListener, store: AsyncStore, channel: str = "is-it-up") -> None:
    """Returns when the line is subscribed to what it listens to."""
    async with line.listen(channel):

        async def subscribed() -> bool:
            return await subscribers(store, channel) == 1

        await eventually_async(subscribed)


async def subscribers(store: AsyncStore, channel: str) -> int:
    """How many connections listen to a channel."""
    [(_, count)] = await store.redis.pubsub_numsub(channel)
    return int(count)


async def test_a_bell_rings_when_something_is_published(store: AsyncStore, line: PubSubListener) -> None:
    async with line.listen("a") as log_signal, line.listen("b") as other:
        await is_up(line, store)
        await quiet(log_signal, other)

        await store.redis.publish("a", "1")

        await rings(log_signal)
        assert not await rang_within(other, 0.05)


async def quiet(*signals: LogSignal) -> None:
    """Takes the rings that coming up brought."""
    for log_signal in signals:
        await log_signal.wait(timeout=0.01)


async def rang_within(log_signal: LogSignal, seconds: float) -> bool:
    """Whether it rang before the time was over."""
    began = asyncio.get_running_loop().time()
    await log_signal.wait(timeout=seconds)
    return asyncio.get_running_loop().time() - began < seconds


async def test_a_ring_that_nobody_waited_for_is_remembered_once(store: AsyncStore, line: PubSubListener) -> None:
    log_signal = LogSignal()
    log_signal.notify()
    log_signal.notify()

    assert await rang_within(log_signal, 5)
    assert not await rang_within(log_signal, 0.02)


async def test_every_listener_of_a_channel_is_rung(store: AsyncStore, line: PubSubListener) -> None:
    await is_up(line, store)
    async with AsyncExitStack() as stack:
        signals = [await stack.enter_async_context(line.listen("a")) for _ in range(20)]
        await quiet(*signals)

        await store.redis.publish("a", "1")

        await asyncio.gather(*(rings(log_signal) for log_signal in signals))


async def test_a_joined_listener_hears_what_is_published_from_then_on(store: AsyncStore, line: PubSubListener) -> None:
    await is_up(line, store)

    for number in range(200):  # each time with nothing between joining and publishing
        async with line.listen(f"channel-{number % 3}") as log_signal:
            await store.redis.publish(f"channel-{number % 3}", "1")
            await rings(log_signal)


async def test_no_ring_is_lost_between_leaving_and_joining_again(store: AsyncStore, line: PubSubListener) -> None:
    await is_up(line, store)

    async def come_and_go(times: int) -> None:
        for _ in range(times):
            async with line.listen("same") as log_signal:
                await store.redis.publish("same", "1")
                await rings(log_signal)

    await asyncio.gather(*(come_and_go(60) for _ in range(5)))


async def test_a_channel_nobody_listens_to_is_left(store: AsyncStore, line: PubSubListener) -> None:
    await is_up(line, store)
    async with line.listen("a"):
        assert await subscribers(store, "a") == 1

    async def left() -> bool:
        return await subscribers(store, "a") == 0

    await eventually_async(left)
    assert line.channels == 0


async def test_a_cancelled_listener_takes_nobody_along(store: AsyncStore, line: PubSubListener) -> None:
    await is_up(line, store)

    async def wait_for_ever() -> None:
        async with line.listen("a") as log_signal:
            while True:
                await log_signal.wait()

    async with line.listen("b") as log_signal:
        for _ in range(50):
            leaving = asyncio.create_task(wait_for_ever())
            await asyncio.wait({leaving}, timeout=0)
            leaving.cancel()
            await store.redis.publish("b", "1")
            await rings(log_signal)
            await asyncio.wait({leaving})


async def test_a_thousand_listeners_share_one_connection(store: AsyncStore, line: PubSubListener) -> None:
    await is_up(line, store)
    before = await listening(store)
    async with AsyncExitStack() as stack:
        signals = [await stack.enter_async_context(line.listen(f"task-{n}")) for n in range(1000)]
        await quiet(signals[7])

        found = await listening(store)

        assert [channels for _, channels in found.items() - before.items()] == [1000]
        await store.redis.publish("task-7", "1")
        await rings(signals[7])


async def listening(store: AsyncStore) -> dict[str, int]:
    """To how many channels each connection listens that listens to any."""
    found = {client["id"]: int(client["sub"]) for client in await store.redis.client_list()}
    return {client: channels for client, channels in found.items() if channels}


async def test_messages_reach_their_handler(store: AsyncStore, line: PubSubListener) -> None:
    heard: list[bytes] = []
    await line.on_message("runner", heard.append)
    await is_up(line, store)

    await store.redis.publish("runner", "t.1")

    async def arrived() -> bool:
        return heard == [b"t.1"]

    await eventually_async(arrived)


@asynccontextmanager
async def line_to(url: str) -> AsyncIterator[PubSubListener]:
    """A line of the test's own."""
    line = PubSubListener(url)
    await line.start()
    try:
        yield line
    finally:
        await line.stop()


async def test_stopping_rings_everybody_a_last_time(store: AsyncStore, line: PubSubListener) -> None:
    await is_up(line, store)
    async with line.listen("a") as log_signal:
        await quiet(log_signal)

        async with asyncio.timeout(SOON):
            await line.stop()

        await rings(log_signal)


@pytest.mark.parametrize("turns", range(6))
async def test_stopping_right_after_a_listener_left_ends(store: AsyncStore, line: PubSubListener, turns: int) -> None:
    await is_up(line, store)
    async with line.listen("a"):
        pass
    for _ in range(turns):  # wherever its own task is just now
        await asyncio.sleep(0)

    async with asyncio.timeout(SOON):
        await line.stop()


async def test_after_redis_died_everybody_is_rung_and_the_line_works(tmp_path: Path) -> None:
    with mortal_redis(tmp_path) as server:
        store = AsyncStore(server.store_url)
        async with line_to(server.store_url) as line, line.listen("a") as log_signal:
            await is_up(line, store)
            await quiet(log_signal)

            server.die()
            async with line.listen("b") as late:  # who comes while it is down does not wait for it
                server.start()
                await rings(log_signal)
                await rings(late)
                await is_up(line, store)
                await quiet(log_signal, late)
                await store.redis.publish("a", "1")
                await store.redis.publish("b", "1")
                await rings(log_signal)
                await rings(late)
        await store.aclose()


async def test_a_line_that_starts_before_its_redis_comes_up_with_it(tmp_path: Path) -> None:
    with mortal_redis(tmp_path) as server:
        server.die()
        store = AsyncStore(server.store_url)
        async with line_to(server.store_url) as line, line.listen("a") as log_signal:
            server.start()

            await rings(log_signal)
            await is_up(line, store)
        await store.aclose()


async def test_a_line_that_went_silent_is_given_up_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "PING_EVERY", 0.1)
    monkeypatch.setattr(wake, "SILENCE", 0.5)
    server = EmbeddedRedis()
    server.start()
    store, line = AsyncStore(server.store_url), PubSubListener(server.store_url)
    try:
        async with line.listen("channel") as log_signal:
            await log_signal.wait(0.3)  # what rang when it came up
            assert server.process is not None
            server.process.send_signal(signal.SIGSTOP)
            await rings(log_signal)
            server.process.send_signal(signal.SIGCONT)

            async def is_back() -> bool:
                return await delivers(store, log_signal) and line.channels == 1

            await eventually_async(is_back, what="the line is back")
    finally:
        if server.process is not None:
            server.process.send_signal(signal.SIGCONT)
        await line.stop()
        await store.aclose()
        server.stop()


async def test_the_first_listener_starts_the_line(redis_server: EmbeddedRedis, store: AsyncStore) -> None:
    line = PubSubListener(redis_server.store_url)
    async with line.listen("channel") as log_signal:
        await eventually_async(lambda: delivers(store, log_signal), what="a line that nobody started is heard")
    await line.stop()
