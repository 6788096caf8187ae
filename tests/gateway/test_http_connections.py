"""Connections whose clients never complete a request, with both of uvicorn's HTTP parsers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from a2a_celery.cli.serve import h11_protocol
from a2a_celery.cli.serve.gateway import H11, HTTPTOOLS
from a2a_celery.gateway.bindings.endpoints import guard_rpc
from a2a_celery.gateway.middleware import bodies
from a2a_celery.gateway.middleware.bodies import read_bounded
from tests.support.serving import address_of, running_server
from tests.support.waiting import LIMIT, eventually_async

TOO_MUCH = 1 << 23
"""Number of bytes that a server must not accept in one head or trailer. It allows for the kernel's buffers."""

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"


async def echo(request: Request) -> Response:
    """Return the size of the body and the names of the headers."""
    body = await read_bounded(request, TOO_MUCH)
    return JSONResponse({"size": len(body), "headers": sorted(request.headers)})


async def rpc(request: Request) -> Response:
    return Response()


PROTOCOLS = {"h11": H11} | ({"httptools": HTTPTOOLS} if find_spec("httptools") else {})


@pytest.fixture(params=PROTOCOLS.values(), ids=list(PROTOCOLS))
async def server(request: pytest.FixtureRequest) -> AsyncIterator[uvicorn.Server]:
    """Server with each of the gateway's protocol classes."""
    routes = [Route("/", echo, methods=["POST"]), Route("/rpc", guard_rpc(rpc, TOO_MUCH), methods=["POST"])]
    async with running_server(Starlette(routes=routes), http=request.param, log_config=None, lifespan="off") as server:
        yield server


@pytest.fixture
def address(server: uvicorn.Server) -> tuple[str, int]:
    """Address of `server`."""
    return address_of(server)


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """Return the bytes that the server sends until it closes the connection."""
    async with asyncio.timeout(LIMIT):
        with suppress(ConnectionError):
            return await reader.read()
    return b""


@pytest.mark.parametrize("start", [b"", b"P", HEAD])
async def test_a_connection_without_a_head_is_closed(
    address: tuple[str, int], start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(h11_protocol, "HEAD_TIMEOUT", 0.05)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(start)

    assert await until_closed(reader) == b""
    writer.close()


async def test_the_head_of_a_second_request_has_a_time_too(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    for _ in range(2):
        writer.write(HEAD + b"Content-Length: 2\r\n\r\n{}")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        await reader.readuntil(b"]}")
    monkeypatch.setattr(h11_protocol, "HEAD_TIMEOUT", 0.05)  # the timer starts with the first byte of the head
    writer.write(b"POST / ")

    assert await until_closed(reader) == b""
    writer.close()


async def test_a_request_may_take_longer_than_its_head(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(h11_protocol, "HEAD_TIMEOUT", 0.05)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(HEAD + b"Content-Length: 20\r\n\r\n")
    is_over = asyncio.Event()
    asyncio.get_running_loop().call_later(4 * h11_protocol.HEAD_TIMEOUT, is_over.set)
    await is_over.wait()
    writer.write(b"x" * 20)

    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    writer.close()


@pytest.fixture
def short_refusal_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close a connection with invalid framing after at most 0.2 s. The server does not read during the delay."""
    if "httptools" in PROTOCOLS:
        monkeypatch.setattr(import_module("a2a_celery.cli.serve.httptools_protocol"), "REFUSAL_DELAY", 0.2)


@pytest.mark.parametrize("filler", [b"a:b\r\n" * 1000, b"a" * 5000], ids=["many", "long"])
@pytest.mark.parametrize("start", [CHUNKED + b"0\r\na:", CHUNKED + b"1;a="], ids=["trailers", "chunk extension"])
async def test_framing_without_an_end_closes_the_connection(
    address: tuple[str, int], short_refusal_delay: None, start: bytes, filler: bytes
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(start)
    byte_count = 0
    with suppress(ConnectionError):
        while byte_count < TOO_MUCH:
            writer.write(filler)
            byte_count += len(filler)
            await writer.drain()

    assert byte_count < TOO_MUCH
    await until_closed(reader)
    writer.close()


async def test_trailers_are_no_headers(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(CHUNKED + b"0\r\nX-Late: a\r\n\r\n")

    answer = await reader.readuntil(b"]}")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"size":2' in answer
    assert b"x-late" not in answer
    writer.close()


async def test_a_body_in_small_chunks_is_taken(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(CHUNKED)
    for _ in range(300):
        writer.write(b"1\r\nx\r\n" * 100)
        await writer.drain()
    writer.write(b"0\r\n\r\n")

    assert b'"size":30002' in await reader.readuntil(b"]}")
    writer.close()


async def test_a_body_that_does_not_come_is_refused(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_TIMEOUT", 0.05)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(HEAD.replace(b"POST /", b"POST /rpc") + b"Content-Length: 20\r\n\r\n{")

    async with asyncio.timeout(LIMIT):
        answer = await reader.readuntil(b"}]")
    assert b"did not arrive in time" in answer
    writer.close()


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> h11_protocol.DiscardPace:
    """Pace of the connections that discard a body. No other test shares it."""
    pace = h11_protocol.DiscardPace()
    monkeypatch.setattr(h11_protocol, "DISCARD_PACE", pace)
    return pace


@pytest.fixture
async def busy_pace(pace: h11_protocol.DiscardPace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make other connections discard bodies for a minute."""
    with monkeypatch.context() as patches:
        patches.setattr(h11_protocol, "MAX_DISCARD_WAIT", 60)
        assert pace.wait(asyncio.get_running_loop().time(), 60 * h11_protocol.DISCARD_RATE) == 60


REFUSED = HEAD.replace(b"POST /", b"POST /unknown") + b"Content-Length: 10000000\r\n\r\n"


async def test_the_rest_of_a_refused_body_is_not_read_while_other_bodies_are_discarded(
    server: uvicorn.Server, address: tuple[str, int], busy_pace: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(h11_protocol, "MAX_DISCARD_WAIT", 100)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(REFUSED)
    assert (await reader.readline()).startswith(b"HTTP/1.1 404 ")

    [connection] = server.server_state.connections
    assert isinstance(connection, h11_protocol.HeadTimeout)
    assert connection.flow.read_paused
    writer.close()


async def test_a_refused_connection_is_closed_while_too_many_bodies_are_discarded(
    address: tuple[str, int], busy_pace: None
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(REFUSED)

    assert (await until_closed(reader)).startswith(b"HTTP/1.1 404 ")
    writer.close()


async def test_a_connection_is_used_again_after_a_refused_body(
    address: tuple[str, int], pace: h11_protocol.DiscardPace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(h11_protocol, "DISCARD_RATE", 1 << 28)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(REFUSED)
    assert (await reader.readline()).startswith(b"HTTP/1.1 404 ")
    await reader.readuntil(b"Not Found")

    writer.write(b"x" * 10_000_000 + HEAD + b"Content-Length: 2\r\n\r\n{}")

    async with asyncio.timeout(LIMIT):
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_a_slow_rest_of_a_body_does_not_delay_others(pace: h11_protocol.DiscardPace) -> None:
    waits = [pace.wait(1.0, size=1) for _ in range(1000)]

    assert None not in waits
    assert max(waits) < 0.001
    assert pace.wait(1.0, size=1 << 18) == pytest.approx(1 / 128, abs=0.001)
    assert pace.wait(1.0, size=h11_protocol.DISCARD_RATE) is None


async def begin_shutdown(server: uvicorn.Server) -> asyncio.Task[None]:
    """Begin the graceful shutdown of `server` while it has one connection, and return the task that shuts it down.

    The task has stopped at its first wait. If the caller sends a request before its own next wait, the server reads the
    request before any timer of the shutdown ends.
    """

    async def is_connected() -> bool:
        return len(server.server_state.connections) == 1

    await eventually_async(is_connected)
    shutdown = asyncio.create_task(server.shutdown())
    await asyncio.sleep(0)
    assert not server.servers[0].is_serving()
    return shutdown


async def test_a_first_request_is_answered_after_shutdown_has_begun(
    server: uvicorn.Server, address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(h11_protocol, "FIRST_REQUEST_TIMEOUT", 0.1)
    reader, writer = await asyncio.open_connection(*address)
    shutdown = await begin_shutdown(server)

    writer.write(HEAD + b"Content-Length: 2\r\n\r\n{}")

    assert (await until_closed(reader)).startswith(b"HTTP/1.1 200 OK")
    writer.close()
    await shutdown


async def test_shutdown_closes_a_connection_without_a_request(
    server: uvicorn.Server, address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(h11_protocol, "FIRST_REQUEST_TIMEOUT", 0.1)
    reader, writer = await asyncio.open_connection(*address)
    shutdown = await begin_shutdown(server)

    assert await until_closed(reader) == b""
    writer.close()
    await shutdown
