"""A request leaves no reference cycle: a caller that repeats refused requests must not cause garbage collections."""

from __future__ import annotations

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.gateway import protocol_errors
from a2a_celery.store import AsyncStore, Keys
from tests.support.clocks import ManualClock
from tests.support.garbage import cyclic_garbage
from tests.support.limited import Limited, limited

REQUESTS = 20
STRAY = REQUESTS // 2
"""Number of objects of one class, or of frames of one function, below which they do not come from each request, but
from timers of the gateway or of redis-py."""

GATEWAY_TYPES = {"Request", "ServerCallContext", "LimitExceededError", "TaskNotFoundError"}
"""Classes of the gateway's objects. The test's own client leaves cycles of other classes."""


def is_of_gateway(name: str) -> bool:
    """Return whether objects with this name in `Garbage.types` may come from the gateway."""
    return name in GATEWAY_TYPES or name.startswith(("frame of ", "traceback of "))


async def missing_task(gateway: Limited, binding: str) -> int:
    """Return the HTTP status of a request for a task that does not exist."""
    headers = {"A2A-Version": "1.0"}
    if binding == "HTTP+JSON":
        return (await gateway.http.get("/tasks/none", headers=headers)).status_code
    body = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "none"}}
    return (await gateway.http.post("/", json=body, headers=headers)).status_code


@pytest.mark.parametrize("binding", ["HTTP+JSON", "JSONRPC"])
@pytest.mark.parametrize("rate", [1_000.0, 0.01], ids=["answered", "refused"])
async def test_a_request_leaves_no_cycles(
    binding: str,
    rate: float,
    store: AsyncStore,
    redis_server: EmbeddedRedis,
    keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol_errors, "MAX_DELAYED", 0)
    async with limited(store, redis_server.store_url, keys, ManualClock(), owner_requests_per_second=rate) as gateway:
        statuses = {await missing_task(gateway, binding) for _ in range(REQUESTS)}
        with cyclic_garbage() as garbage:
            for _ in range(REQUESTS):
                statuses.add(await missing_task(gateway, binding))

    assert (429 in statuses) == (rate < 1)
    left = {name for name, count in garbage.types.items() if count >= STRAY and is_of_gateway(name)}
    assert left <= {"Request"}
    assert garbage.types["Request"] <= REQUESTS, "the client's own, and none of the server's"
