"""Authentication errors over gRPC. The log contains their cause, and the response does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc.aio
import pytest
from a2a.types import GetTaskRequest, SendMessageRequest, a2a_pb2_grpc

from a2a_celery.gateway.auth.authenticator import Authenticator
from a2a_celery.gateway.auth.grpc import _address
from a2a_celery.gateway.auth.schemes import Identity, KeysUnavailable, PresentedCredentials
from a2a_celery.gateway.bindings.grpc import GrpcServer
from tests.support.faults import Fault, from_grpc
from tests.support.fleet import free_port
from tests.support.waiting import LIMIT


class BrokenAuthenticator(Authenticator):
    """Authenticator that raises the given error."""

    def __init__(self, error: Exception) -> None:
        super().__init__([])
        self._error = error

    async def identify(self, presented: PresentedCredentials) -> Identity:
        raise self._error


class FixedAuthenticator(Authenticator):
    """Authenticator that identifies every caller as the same user."""

    async def identify(self, presented: PresentedCredentials) -> Identity:
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

    async def identify(self, presented: PresentedCredentials) -> Identity | None:
        if not self.called.is_set():
            self.called.set()
            await asyncio.Event().wait()
        return await super().identify(presented)


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
    assert _address(peer) == address
