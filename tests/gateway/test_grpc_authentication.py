"""Authentication errors over gRPC. Their cause is only in the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
import pytest
from a2a.types import GetTaskRequest, a2a_pb2_grpc

from a2a_celery.gateway.auth.authenticator import Authenticator
from a2a_celery.gateway.auth.grpc import _address
from a2a_celery.gateway.auth.schemes import Identity, KeysUnavailable, PresentedCredentials
from a2a_celery.gateway.bindings.grpc import GrpcServer
from tests.support.faults import Fault, from_grpc
from tests.support.fleet import free_port
from tests.support.waiting import LIMIT


class Broken(Authenticator):
    """Authenticator that raises the given error."""

    def __init__(self, error: Exception) -> None:
        super().__init__([])
        self._error = error

    async def identify(self, presented: PresentedCredentials) -> Identity:
        """Raise the error."""
        raise self._error


class Known(Authenticator):
    """Authenticator that identifies every caller as the same user."""

    async def identify(self, presented: PresentedCredentials) -> Identity:
        """Return the same identity for every caller."""
        return Identity("ann")


async def refused_by(error: Exception) -> Fault:
    """Return the error that a client receives if authentication raises `error`."""
    port = free_port()
    server = GrpcServer({}, "127.0.0.1", port, 1024, Broken(error))
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await a2a_pb2_grpc.A2AServiceStub(channel).GetTask(GetTaskRequest(id="some"), timeout=30)
    finally:
        await server.stop(0)
    return from_grpc(refused.value)


async def test_an_internal_error_is_reported_without_its_text() -> None:
    error = await refused_by(RuntimeError("a secret"))
    assert (error.status, error.reason, error.message) == ("INTERNAL", "INTERNAL_ERROR", "Internal error")


async def test_without_keys_it_is_for_later() -> None:
    found = await refused_by(KeysUnavailable())
    assert (found.status, found.reason) == ("UNAVAILABLE", "SERVICE_UNAVAILABLE")


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


@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_without_a_request_is_refused(streams: bool) -> None:
    port = free_port()
    server = GrpcServer({}, "127.0.0.1", port, 1024, Known([]))

    async def no_request() -> AsyncIterator[bytes]:
        for body in ():
            yield body

    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            open_call = channel.stream_stream if streams else channel.stream_unary
            call = open_call("/lf.a2a.v1.A2AService/SendMessage")(no_request(), timeout=LIMIT)
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
