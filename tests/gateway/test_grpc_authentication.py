"""Authentication errors over gRPC. The log contains their cause, and the response does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from a2a.types import GetTaskRequest, SendMessageRequest, a2a_pb2_grpc

from a2a_celery.gateway.auth.authenticator import FAILURES_PER_SECOND, Authenticator
from a2a_celery.gateway.auth.grpc import peer_address
from a2a_celery.gateway.auth.schemes import (
    CredentialsRefused,
    Identity,
    KeysUnavailable,
    PresentedCredentials,
    RefusalReason,
)
from a2a_celery.gateway.bindings.grpc import GrpcServer
from a2a_celery.gateway.gate import Gate
from a2a_celery.gateway.metrics import Metrics
from a2a_celery.gateway.middleware.bodies import BODY_TIMEOUT
from a2a_celery.gateway.protocol_errors import REFUSAL_DELAY
from a2a_celery.gateway.shutdown import GatewayShutdown
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from tests.support.clients.faults import Fault, from_grpc
from tests.support.clocks import ManualClock
from tests.support.processes.fleet import free_port
from tests.support.waiting import LIMIT, eventually_async


class BrokenAuthenticator(Authenticator):
    """Authenticator that raises the given error."""

    def __init__(self, error: Exception) -> None:
        super().__init__([])
        self._error = error

    async def identify(self, presented: PresentedCredentials, **_: Any) -> Identity:
        raise self._error


class FixedAuthenticator(Authenticator):
    """Authenticator that identifies every caller as the same user."""

    async def identify(self, presented: PresentedCredentials, **_: Any) -> Identity:
        return Identity("ann")


LARGE = 4_000_000


class CountingProxy:
    """TCP proxy that counts the bytes from the clients.

    Attributes:
        port: Port of the proxy on 127.0.0.1.
        received: Number of bytes that the proxy has passed on from the clients.
    """

    port: int

    def __init__(self, target: int) -> None:
        self.received = 0
        self._target = target

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection."""
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target, limit=1)

        async def forward() -> None:
            while data := await reader.read(4096):
                to_server.write(data)
                await to_server.drain()
                self.received += len(data)

        async def back() -> None:
            while data := await from_server.read(4096):
                writer.write(data)
                await writer.drain()

        with suppress(OSError):
            await asyncio.gather(forward(), back())
        to_server.close()
        writer.close()


@asynccontextmanager
async def counting_proxy(port: int) -> AsyncIterator[CountingProxy]:
    """Forward the connections of a free port to `port`."""
    proxy = CountingProxy(port)
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0) as server:
        proxy.port = server.sockets[0].getsockname()[1]
        yield proxy


async def authentication_error(error: Exception) -> Fault:
    """Return the error that a client receives if authentication raises `error`."""
    port = free_port()
    server = GrpcServer({}, "127.0.0.1", port, 1024, BrokenAuthenticator(error))
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as exc_info:
                await a2a_pb2_grpc.A2AServiceStub(channel).GetTask(GetTaskRequest(id="some"), timeout=LIMIT)
    finally:
        await server.stop(0)
    return from_grpc(exc_info.value)


async def test_a_refusal_is_logged_with_its_address_and_method(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    error = await authentication_error(CredentialsRefused(RefusalReason.API_KEY))

    assert (error.status, error.reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
    line = "a request was refused: an unknown API key (/lf.a2a.v1.A2AService/GetTask from 127.0.0.1 over grpc)"
    assert [record.getMessage() for record in caplog.records if "refused" in record.getMessage()] == [line]


async def test_an_internal_error_is_reported_without_its_text() -> None:
    error = await authentication_error(RuntimeError("a secret"))
    assert (error.status, error.reason, error.message) == ("INTERNAL", "INTERNAL_ERROR", "Internal error")


async def test_without_keys_it_is_for_later() -> None:
    error = await authentication_error(KeysUnavailable())
    assert (error.status, error.reason) == ("UNAVAILABLE", "SERVICE_UNAVAILABLE")


@pytest.mark.parametrize(("method", "streams"), [("SendMessage", False), ("SendStreamingMessage", True)])
@pytest.mark.parametrize("service", ["lf.a2a.v1.A2AService", "a2a.v1.A2AService"])
async def test_a_caller_is_refused_before_its_request_is_read(service: str, method: str, streams: bool) -> None:
    port, never = free_port(), asyncio.Event()
    server = GrpcServer({}, "127.0.0.1", port, 1024, Authenticator([]))

    async def no_request() -> AsyncIterator[bytes]:
        await never.wait()
        yield b""

    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            open_call = channel.stream_stream if streams else channel.stream_unary
            call = open_call(f"/{service}/{method}")(no_request(), timeout=LIMIT)
            assert await call.code() == grpc.StatusCode.UNAUTHENTICATED
    finally:
        await server.stop(0)


class SlowAuthenticator(Authenticator):
    """Authenticator that never returns for the first caller and refuses all others."""

    def __init__(self) -> None:
        super().__init__([])
        self.called = asyncio.Event()

    async def identify(self, presented: PresentedCredentials, **_: Any) -> Identity | None:
        if not self.called.is_set():
            self.called.set()
            await asyncio.Event().wait()
        return await super().identify(presented)


class NamingAuthenticator(Authenticator):
    """Authenticator that identifies a caller by the metadata key ``name``."""

    async def identify(self, presented: PresentedCredentials, **_: Any) -> Identity:
        return Identity(presented.values("name")[0])


GET_TASK, SUBSCRIBE = "/lf.a2a.v1.A2AService/GetTask", "/lf.a2a.v1.A2AService/SubscribeToTask"


class HeaderCalls:
    """gRPC calls that send their headers only."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._never = asyncio.Event()

    def open(self, method: str = GET_TASK, name: str = "ann") -> Any:
        """Open a call of the owner `name`."""
        is_stream = method == SUBSCRIBE
        open_call = self._channel.stream_stream if is_stream else self._channel.stream_unary
        return open_call(method)(self._no_request(), metadata=(("name", name),), timeout=LIMIT)

    async def _no_request(self) -> AsyncIterator[bytes]:
        await self._never.wait()
        yield b""


@asynccontextmanager
async def serve(
    clock: ManualClock, authenticator: Authenticator | None, gate: Gate | None = None, **options: Any
) -> AsyncIterator[HeaderCalls]:
    """Serve gRPC with a clock that the test moves."""
    handler: Any = SimpleNamespace(gate=gate, agent=SimpleNamespace(name="echo"), shutdown=GatewayShutdown())
    handlers = {} if gate is None else {"echo": handler}
    port = free_port()
    server = GrpcServer(handlers, "127.0.0.1", port, 1024, authenticator, clock=clock, **options)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield HeaderCalls(channel)
    finally:
        await server.stop(0)


@pytest.mark.parametrize("method", [GET_TASK, SUBSCRIBE])
@pytest.mark.parametrize(
    "authenticator", [None, FixedAuthenticator([])], ids=["without authentication", "authenticated"]
)
async def test_a_call_whose_request_does_not_arrive_ends(authenticator: Authenticator | None, method: str) -> None:
    clock = ManualClock()
    async with serve(clock, authenticator) as calls:
        call = calls.open(method)
        await clock.until_waiting(BODY_TIMEOUT)
        clock.advance(BODY_TIMEOUT)

        assert await call.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "did not arrive in time" in await call.details()


@pytest.fixture
def gate(store: AsyncStore, keys: Keys) -> Gate:
    settings = Settings(owner_requests_per_second=0.001, owner_request_burst=1)
    return Gate(settings, store, keys, ["echo"], Metrics(store, keys, {}))


async def test_a_call_whose_request_does_not_arrive_counts_as_a_request(gate: Gate) -> None:
    clock, codes = ManualClock(), []
    async with serve(clock, NamingAuthenticator([]), gate) as calls:
        for _ in range(2):
            call = calls.open()
            await clock.until_waiting(BODY_TIMEOUT)
            clock.advance(BODY_TIMEOUT)
            codes.append(await call.code())

    assert codes == [grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED]


async def test_an_owner_occupies_a_tenth_of_the_concurrent_calls(gate: Gate) -> None:
    clock = ManualClock()
    async with serve(clock, NamingAuthenticator([]), gate, max_calls=20) as calls:
        open_calls = [calls.open(GET_TASK), calls.open(SUBSCRIBE)]
        await clock.until_waiting(BODY_TIMEOUT, BODY_TIMEOUT)

        refused_call = calls.open(SUBSCRIBE)
        assert await refused_call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await refused_call.details() == "The limit of 2 open gRPC calls is reached: close one. Retry in 10 s."
        open_calls.append(calls.open(name="bob"))
        await clock.until_waiting(BODY_TIMEOUT, BODY_TIMEOUT, BODY_TIMEOUT)
        for call in open_calls:
            call.cancel()
        await clock.until_waiting()
        calls.open(SUBSCRIBE)
        await clock.until_waiting(BODY_TIMEOUT)


async def test_a_gateway_process_has_a_maximum_number_of_concurrent_calls() -> None:
    clock = ManualClock()
    async with serve(clock, None, max_calls=3) as calls:
        open_calls = [calls.open() for _ in range(3)]
        await clock.until_waiting(*[BODY_TIMEOUT] * 3)

        assert await calls.open().code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not any(call.done() for call in open_calls)


async def test_delayed_refusals_occupy_a_tenth_of_the_concurrent_calls() -> None:
    clock = ManualClock()
    authenticator = Authenticator([], clock)
    async with serve(clock, authenticator, max_calls=20) as calls:
        for _ in range(FAILURES_PER_SECOND):
            assert await calls.open().code() == grpc.StatusCode.UNAUTHENTICATED
        delayed_calls = [calls.open(), calls.open()]

        async def are_delayed() -> bool:
            return len(clock.waits) == len(delayed_calls)

        await eventually_async(are_delayed, what="two refusals are delayed")

        assert await calls.open().code() == grpc.StatusCode.UNAUTHENTICATED
        assert not any(call.done() for call in delayed_calls)
        clock.advance(REFUSAL_DELAY)
        assert [await call.code() for call in delayed_calls] == [grpc.StatusCode.UNAUTHENTICATED] * 2


async def test_little_of_a_request_is_received_before_its_caller_is_known() -> None:
    authenticator, port = SlowAuthenticator(), free_port()
    server = GrpcServer({}, "127.0.0.1", port, 2 * LARGE, authenticator)
    await server.start()
    try:
        async with counting_proxy(port) as proxy, grpc.aio.insecure_channel(f"127.0.0.1:{proxy.port}") as channel:
            stub = a2a_pb2_grpc.A2AServiceStub(channel)
            large_call = stub.SendMessage(SendMessageRequest(tenant="x" * LARGE), timeout=LIMIT)
            await authenticator.called.wait()
            for _ in range(30):  # each round trip lets the client send what the window allows
                assert await stub.GetTask(GetTaskRequest(id="some"), timeout=LIMIT).code() == (
                    grpc.StatusCode.UNAUTHENTICATED
                )
            large_call.cancel()
    finally:
        await server.stop(0)
    assert proxy.received < LARGE / 8


@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_without_a_request_is_refused(streams: bool) -> None:
    port = free_port()
    server = GrpcServer({}, "127.0.0.1", port, 1024, FixedAuthenticator([]))

    async def no_request() -> AsyncIterator[bytes]:
        for body in ():
            yield body

    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            open_call = channel.stream_stream if streams else channel.stream_unary
            method = "SendStreamingMessage" if streams else "SendMessage"
            call = open_call(f"/lf.a2a.v1.A2AService/{method}")(no_request(), timeout=LIMIT)
            assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT
    finally:
        await server.stop(0)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.1:4711", "192.0.2.1"),
        ("ipv6:%5B2001:db8::1%5D:4711", "2001:db8::1"),
        ("ipv6:[::1]:4711", "::1"),
        ("unix:/tmp/socket", None),
        ("unix:", None),
        ("", None),
    ],
)
def test_the_address_of_a_peer(peer: str, address: str | None) -> None:
    assert peer_address(peer) == address
