"""Reference cycles of requests. A caller that repeats refused requests must not cause garbage collections."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import pytest
from starlette.applications import Starlette

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.cli.serve.gateway import freeze_heap_at_start
from a2a_celery.gateway.auth.authenticator import Authenticator
from a2a_celery.gateway.auth.schemes import Identity, PresentedCredentials
from a2a_celery.gateway.bindings.grpc import GrpcServer
from a2a_celery.store import AsyncStore, Keys
from tests.support.clocks import ManualClock
from tests.support.garbage import cyclic_garbage
from tests.support.processes.fleet import free_port
from tests.support.processes.local_gateway import LocalGateway, local_gateway

REQUESTS = 20
STRAY = REQUESTS // 2
"""Number of objects of one class, or of frames of one function, from which on they count as left by requests. Timers of
the gateway and of redis-py leave fewer objects."""

GATEWAY_TYPES = {"Request", "ServerCallContext", "LimitExceededError", "TaskNotFoundError"}
"""Classes of the gateway's objects. The test's own client leaves cycles of other classes."""

GRPC_TYPES = {"traceback", "frame", "RPCState", "_ServicerContext", "AbortError", "ServerCallContext"}
"""Classes of the objects of a gRPC call. gRPC's own search for the method leaves a cycle of other classes."""


def is_of_gateway(name: str) -> bool:
    """Return True if objects with this name in `Garbage.types` may come from the gateway."""
    return name in GATEWAY_TYPES or name.startswith(("frame of ", "traceback of "))


async def missing_task(gateway: LocalGateway, binding: str) -> int:
    """Return the HTTP status of a request for a task that does not exist."""
    headers = {"A2A-Version": "1.0"}
    if binding == "HTTP+JSON":
        return (await gateway.http.get("/tasks/none", headers=headers)).status_code
    body = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "none"}}
    return (await gateway.http.post("/", json=body, headers=headers)).status_code


class StoppedClock(ManualClock):
    """Clock that does not move, and whose sleeps end at once."""

    async def sleep(self, seconds: float) -> None:
        """Return at the next turn of the event loop."""
        await asyncio.sleep(0)


@pytest.mark.parametrize("binding", ["HTTP+JSON", "JSONRPC"])
@pytest.mark.parametrize("rate", [1_000.0, 0.01], ids=["answered", "refused"])
async def test_a_request_leaves_no_cycles(
    binding: str,
    rate: float,
    store: AsyncStore,
    redis_server: EmbeddedRedis,
    keys: Keys,
) -> None:
    async with local_gateway(
        store, redis_server.store_url, keys, StoppedClock(), owner_requests_per_second=rate
    ) as gateway:
        statuses = {await missing_task(gateway, binding) for _ in range(REQUESTS)}
        with cyclic_garbage() as garbage:
            for _ in range(REQUESTS):
                statuses.add(await missing_task(gateway, binding))

    assert (429 in statuses) == (rate < 1)
    stray_types = {name for name, count in garbage.types.items() if count >= STRAY and is_of_gateway(name)}
    assert stray_types <= {"Request"}
    assert garbage.types["Request"] <= REQUESTS, "the client's own, and none of the server's"


CLIENT = """
import sys
import grpc

address, method, calls, body = sys.argv[1:]
channel = grpc.insecure_channel(address)
call = getattr(channel, "unary_stream" if "Streaming" in method else "unary_unary")(method)
for _ in range(int(calls)):
    try:
        list(call(bytes.fromhex(body), metadata=[("a2a-version", "1.0")], timeout=120))
    except grpc.RpcError as e:
        print(e.code().name)
"""
"""Program that repeats a gRPC call. The program is a separate process, because a client in the test's process leaves
cycles of the same classes as the server."""


async def repeat_over_grpc(address: str, method: str, body: bytes, calls: int) -> set[str]:
    """Make `calls` gRPC calls, one after the other, and return their statuses."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, address, method, str(calls), body.hex(), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return set(output.decode().split())


class FixedAuthenticator(Authenticator):
    """Authenticator that identifies every caller as the same user."""

    async def identify(self, presented: PresentedCredentials, **_: Any) -> Identity:
        """Return the same identity for every caller."""
        return Identity("ann")


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
@pytest.mark.parametrize("service", ["lf.a2a.v1.A2AService", "a2a.v1.A2AService"])
@pytest.mark.parametrize(
    ("authenticator", "status"),
    [(Authenticator([]), "UNAUTHENTICATED"), (FixedAuthenticator([]), "INVALID_ARGUMENT"), (None, "INVALID_ARGUMENT")],
    ids=["stranger", "malformed", "malformed, without authentication"],
)
async def test_a_refused_grpc_call_leaves_no_cycles(
    service: str, method: str, authenticator: Authenticator | None, status: str
) -> None:
    port = free_port()
    server = GrpcServer({}, "127.0.0.1", port, 1024, authenticator)
    await server.start()
    try:
        with cyclic_garbage() as garbage:
            statuses = await repeat_over_grpc(f"127.0.0.1:{port}", f"/{service}/{method}", b"\x0a\xff", REQUESTS)
    finally:
        await server.stop(0)

    assert statuses == {status}
    assert not {name for name in GRPC_TYPES if garbage.types[name] >= STRAY}


async def test_a_garbage_collection_skips_what_existed_at_the_start() -> None:
    early: list[object] = []
    app = freeze_heap_at_start(Starlette())

    def is_collected(value: object) -> bool:
        return any(each is value for each in gc.get_objects())

    assert is_collected(early)
    async with app.router.lifespan_context(app):
        late_objects: list[object] = []
        assert (is_collected(early), is_collected(late_objects)) == (False, True)
