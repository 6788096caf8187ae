"""Delayed responses to callers that ignore Retry-After."""

from __future__ import annotations

import asyncio
from hashlib import sha256

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.gateway.auth.authenticator import FAILURES_PER_SECOND
from a2a_celery.gateway.protocol_errors import MANY_DELAYED, REFUSAL_DELAY, RefusalDelay
from a2a_celery.store import AsyncStore, Keys
from tests.support.clocks import ManualClock
from tests.support.processes.local_gateway import LocalGateway, local_gateway
from tests.support.waiting import eventually_async

ANN = f"ann:sha256:{sha256(b'key').hexdigest()}"


async def status_of_read(gateway: LocalGateway, tenant: str = "") -> int:
    """Return the status of a request for a task that does not exist."""
    path = f"/agents/echo/{tenant}/tasks/none" if tenant else "/tasks/none"
    return (await gateway.http.get(path, headers={"A2A-Version": "1.0"})).status_code


async def wait_until_delayed(clock: ManualClock) -> None:
    """Wait until a response is delayed."""

    async def is_delayed() -> bool:
        return any(REFUSAL_DELAY / 2 <= seconds <= REFUSAL_DELAY for seconds in clock.waits)

    await eventually_async(is_delayed, what="a response is delayed")


async def test_only_a_caller_that_does_not_wait_is_delayed(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    clock = ManualClock()
    async with local_gateway(store, redis_server.store_url, keys, clock, owner_requests_per_second=0.01) as gateway:
        immediate_statuses = [
            await status_of_read(gateway),
            await status_of_read(gateway),
            await status_of_read(gateway, "another"),
        ]
        delayed_read = asyncio.create_task(status_of_read(gateway))
        await wait_until_delayed(clock)
        assert not delayed_read.done()
        clock.advance(REFUSAL_DELAY)

        assert (immediate_statuses, await delayed_read) == ([404, 429, 404], 429)


async def test_the_delay_grows_with_the_number_of_delayed_refusals() -> None:
    clock = ManualClock()
    delay = RefusalDelay(clock)
    refusals = [asyncio.create_task(delay.wait()) for _ in range(3 * MANY_DELAYED)]
    await asyncio.sleep(0)

    waits = clock.waits
    assert len(waits) == len(refusals)
    assert waits[0] >= REFUSAL_DELAY / 2
    assert REFUSAL_DELAY < waits[-MANY_DELAYED] < waits[-1] <= 3 * REFUSAL_DELAY
    usual = [seconds for seconds in waits if seconds <= REFUSAL_DELAY]
    assert MANY_DELAYED <= len(usual) < 2 * MANY_DELAYED
    clock.advance(3 * REFUSAL_DELAY)
    await asyncio.gather(*refusals)


async def test_strangers_are_delayed_if_there_are_many(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    clock = ManualClock()

    async def knock(key: str) -> int:
        return (await gateway.http.get("/tasks", headers={"A2A-Version": "1.0", "X-API-Key": key})).status_code

    async with local_gateway(store, redis_server.store_url, keys, clock, auth_api_keys=(ANN,)) as gateway:
        immediate_statuses = [await knock("wrong") for _ in range(FAILURES_PER_SECOND)]
        delayed_knock = asyncio.create_task(knock("wrong"))
        await wait_until_delayed(clock)
        status = await knock("key")
        clock.advance(REFUSAL_DELAY)

        assert (set(immediate_statuses), status, await delayed_knock) == ({401}, 200, 401)
        assert await knock("wrong") == 401, "a second later there are few again"
