"""Connections of HTTP clients, with both of uvicorn's HTTP parsers: what ends them, and how their bytes are framed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from importlib.util import find_spec
from math import inf
from typing import Any

import pytest
import uvicorn
from a2a.utils.errors import InvalidRequestError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.importer import import_from_string

from a2a_celery.cli.serve.gateway import H11, HTTPTOOLS
from a2a_celery.cli.serve.h11_protocol import DISCARD_RATE, DiscardPace, HeadTimeout
from a2a_celery.gateway.middleware.bodies import read_bounded
from tests.support.processes.serving import address_of, running_server
from tests.support.waiting import LIMIT, eventually_async

TOO_MUCH = 1 << 23
"""Number of bytes that a server must not accept in one head or trailer. It allows for the kernel's buffers."""

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"


async def echo(request: Request) -> Response:
    """Return the size of the body and the names of the headers."""
    body = await read_bounded(request, TOO_MUCH)
    return JSONResponse({"size": len(body), "headers": sorted(request.headers)})


def with_body_timeout(min_rate: float) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that waits 50 ms for the body, and a second longer for each `min_rate` bytes."""

    async def read(request: Request) -> Response:
        try:
            await read_bounded(request, TOO_MUCH, timeout=0.05, min_rate=min_rate)
        except InvalidRequestError as e:
            return PlainTextResponse(str(e), 400)
        return Response()

    return read


async def begin(request: Request) -> Response:
    """Record the request."""
    request.app.state.begun.append(request.method)
    return Response()


async def wait_for_release(request: Request) -> Response:
    """Record the request, and respond when the test releases it."""
    request.app.state.begun.append(request.method)
    await request.app.state.release.acquire()
    return Response()


async def stream(request: Request) -> Response:
    """Return a body whose length is unknown."""
    await request.body()

    async def frames() -> AsyncIterator[str]:
        for number in range(2):
            yield f"data: {number}\n\n"

    return StreamingResponse(frames(), media_type="text/event-stream")


async def endless(request: Request) -> Response:
    """Return a stream that ends only if its client disconnects."""
    begun = request.app.state.begun

    async def frames() -> AsyncIterator[str]:
        begun.append("endless")
        try:
            yield "data: 0\n\n"
            await asyncio.Event().wait()
        finally:
            begun.append("ended")

    return StreamingResponse(frames())


PROTOCOLS = {"h11": H11} | ({"httptools": HTTPTOOLS} if find_spec("httptools") else {})


@pytest.fixture
def begun() -> list[str]:
    """Requests that have begun, and streams that have ended."""
    return []


@pytest.fixture
def release() -> asyncio.Semaphore:
    """Semaphore that each request for /blocked acquires before its response."""
    return asyncio.Semaphore(0)


@pytest.fixture
def limits() -> dict[str, Any]:
    """Attributes of the protocol class that a test changes."""
    return {}


@pytest.fixture(params=PROTOCOLS.values(), ids=list(PROTOCOLS))
async def server(
    request: pytest.FixtureRequest, begun: list[str], release: asyncio.Semaphore, limits: dict[str, Any]
) -> AsyncIterator[uvicorn.Server]:
    """Server with each of the gateway's protocol classes."""
    protocol = type("Protocol", (import_from_string(request.param),), limits)
    routes = [
        Route("/", echo, methods=["POST"]),
        Route("/slow", with_body_timeout(min_rate=1 << 14), methods=["POST"]),
        Route("/arriving", with_body_timeout(min_rate=1), methods=["POST"]),
        Route("/begun", begin),
        Route("/blocked", wait_for_release),
        Route("/stream", stream, methods=["POST"]),
        Route("/endless", endless, methods=["POST"]),
    ]
    app = Starlette(routes=routes)
    app.state.begun, app.state.release = begun, release
    async with running_server(app, http=protocol, ws="none", log_config=None, lifespan="off") as server:
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
@pytest.mark.parametrize("limits", [{"head_timeout": 0.05}])
async def test_a_connection_without_a_head_is_closed(address: tuple[str, int], start: bytes) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(start)

    assert await until_closed(reader) == b""
    writer.close()


async def test_the_head_of_a_second_request_has_a_time_too(server: uvicorn.Server, address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    for _ in range(2):
        writer.write(HEAD + b"Content-Length: 2\r\n\r\n{}")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        await reader.readuntil(b"]}")
    [connection] = server.server_state.connections
    assert isinstance(connection, HeadTimeout)
    connection.head_timeout = 0.05  # the timer starts with the first byte of the head
    writer.write(b"POST / ")

    assert await until_closed(reader) == b""
    writer.close()


@pytest.mark.parametrize("limits", [{"head_timeout": 0.05}])
async def test_a_request_may_take_longer_than_its_head(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(HEAD + b"Content-Length: 20\r\n\r\n")
    is_over = asyncio.Event()
    asyncio.get_running_loop().call_later(0.2, is_over.set)
    await is_over.wait()
    writer.write(b"x" * 20)

    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    writer.close()


@pytest.mark.parametrize("filler", [b"a:b\r\n" * 1000, b"a" * 5000], ids=["many", "long"])
@pytest.mark.parametrize("start", [CHUNKED + b"0\r\na:", CHUNKED + b"1;a="], ids=["trailers", "chunk extension"])
@pytest.mark.parametrize("limits", [{"refusal_delay": 0.2}])  # the server does not read during the delay
async def test_framing_without_an_end_closes_the_connection(
    address: tuple[str, int], start: bytes, filler: bytes
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


async def test_a_body_that_does_not_come_is_refused(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(HEAD.replace(b"POST /", b"POST /slow") + b"Content-Length: 20\r\n\r\n{")

    async with asyncio.timeout(LIMIT):
        answer = await reader.readuntil(b"by URL")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"did not arrive in time" in answer
    writer.close()


async def test_a_body_that_arrives_has_more_time(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(HEAD.replace(b"POST /", b"POST /arriving") + b"Content-Length: 120\r\n\r\n" + b"x" * 100)
    is_over = asyncio.Event()
    asyncio.get_running_loop().call_later(0.2, is_over.set)
    await is_over.wait()
    writer.write(b"x" * 20)

    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    writer.close()


def busy_pace(**options: float) -> DiscardPace:
    """Return a pace at which other connections discard bodies until the test has ended."""
    pace = DiscardPace(**options)  # type: ignore[arg-type]
    assert pace.wait(now=1e9, size=0) == 0
    return pace


REFUSED = HEAD.replace(b"POST /", b"POST /unknown") + b"Content-Length: 10000000\r\n\r\n"


@pytest.mark.parametrize("limits", [{"discard_pace": busy_pace(max_wait=inf)}])
async def test_the_rest_of_a_refused_body_is_not_read_while_other_bodies_are_discarded(
    server: uvicorn.Server, address: tuple[str, int]
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(REFUSED)
    assert (await reader.readline()).startswith(b"HTTP/1.1 404 ")

    [connection] = server.server_state.connections
    assert isinstance(connection, HeadTimeout)
    assert connection.flow.read_paused
    writer.close()


@pytest.mark.parametrize("limits", [{"discard_pace": busy_pace()}])
async def test_a_refused_connection_is_closed_while_too_many_bodies_are_discarded(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(REFUSED)

    assert (await until_closed(reader)).startswith(b"HTTP/1.1 404 ")
    writer.close()


@pytest.mark.parametrize("limits", [{"discard_pace": DiscardPace(rate=1 << 28)}])
async def test_a_connection_is_used_again_after_a_refused_body(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(REFUSED)
    assert (await reader.readline()).startswith(b"HTTP/1.1 404 ")
    await reader.readuntil(b"Not Found")

    writer.write(b"x" * 10_000_000 + HEAD + b"Content-Length: 2\r\n\r\n{}")

    async with asyncio.timeout(LIMIT):
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_a_slow_rest_of_a_body_does_not_delay_others() -> None:
    pace = DiscardPace()
    waits = [pace.wait(1.0, size=1) for _ in range(1000)]

    assert None not in waits
    assert max(waits) < 0.001
    assert pace.wait(1.0, size=1 << 18) == pytest.approx(1 / 128, abs=0.001)
    assert pace.wait(1.0, size=DISCARD_RATE) is None


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


@pytest.mark.parametrize("limits", [{"first_request_timeout": 0.1}])
async def test_a_first_request_is_answered_after_shutdown_has_begun(
    server: uvicorn.Server, address: tuple[str, int]
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    shutdown = await begin_shutdown(server)

    writer.write(HEAD + b"Content-Length: 2\r\n\r\n{}")

    assert (await until_closed(reader)).startswith(b"HTTP/1.1 200 OK")
    writer.close()
    await shutdown


@pytest.mark.parametrize("limits", [{"first_request_timeout": 0.1}])
async def test_shutdown_closes_a_connection_without_a_request(server: uvicorn.Server, address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    shutdown = await begin_shutdown(server)

    assert await until_closed(reader) == b""
    writer.close()
    await shutdown


OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
"""Headers with which Java and Kotlin clients offer HTTP/2 in their first request to an ``http`` address."""

LAST = HEAD + b"Connection: close\r\nContent-Length: 3\r\n\r\nabc"
"""Request after which the server closes the connection."""


def replies(response_bytes: bytes) -> list[tuple[int, Any]]:
    """Return the status and the body's size, or None for other bodies, of each response in `response_bytes`."""
    parts = response_bytes.split(b"HTTP/1.1 ")[1:]
    sizes = (re.search(rb'"size":(\d+)', part) for part in parts)
    return [(int(part[:3]), size and int(size[1])) for part, size in zip(parts, sizes, strict=True)]


async def connection_of(server: uvicorn.Server) -> Any:
    """Wait until the server has read the head of a request, and return its only connection."""

    async def has_head() -> Any:
        return next((c for c in server.server_state.connections if c.cycle is not None), None)

    return await eventually_async(has_head)


@pytest.mark.parametrize("is_split", [False, True], ids=["one segment", "two segments"])
@pytest.mark.parametrize(
    ("headers", "body", "size"),
    [
        (OFFER + b"Content-Length: 5\r\n\r\n", b"hello", 5),
        (OFFER + b"Transfer-Encoding: chunked\r\n\r\n", b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", 5),
        (OFFER.replace(b"h2c", b"websocket") + b"Content-Length: 5\r\n\r\n", b"hello", 5),
        (OFFER + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n", b"hello", 5),
        (OFFER + b"Content-Length: %d\r\n\r\n" % len(LAST), LAST, len(LAST)),
        (OFFER + b"Content-Length: 0\r\n\r\n", b"", 0),
    ],
    ids=["length", "chunked", "websocket", "expect", "a request as body", "no body"],
)
async def test_an_upgrade_offer_is_not_taken(
    server: uvicorn.Server, address: tuple[str, int], headers: bytes, body: bytes, size: int, is_split: bool
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(HEAD + headers)
    if is_split:
        await connection_of(server)
    writer.write(body + LAST)

    assert [reply for reply in replies(await until_closed(reader)) if reply[0] != 100] == [(200, size), (200, 3)]
    writer.close()


async def test_an_upgrade_offer_is_not_logged(address: tuple[str, int], caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(HEAD + OFFER + b"Content-Length: 5\r\n\r\nhello" + LAST)
    await until_closed(reader)

    assert not caplog.records
    writer.close()


@pytest.mark.parametrize("keep_alive", [b"", b"Connection: keep-alive\r\n"], ids=["close", "keep-alive"])
@pytest.mark.parametrize("headers", [b"", OFFER, b"Expect: 100-continue\r\n"], ids=["plain", "upgrade", "expect"])
async def test_an_http_1_0_client_receives_no_chunks(
    address: tuple[str, int], headers: bytes, keep_alive: bytes
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"POST /stream HTTP/1.0\r\n" + keep_alive + headers + b"Content-Length: 2\r\n\r\n{}")

    head, _, body = (await until_closed(reader)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in head.lower()
    assert b"keep-alive" not in head.lower()
    assert body == b"data: 0\n\ndata: 1\n\n"
    writer.close()


async def test_an_http_1_0_client_receives_the_length_of_a_complete_body(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")

    head, _, body = (await until_closed(reader)).partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert b'"size":2' in body
    writer.close()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /begun HTTP/1.1\r\n",
        b"GET /begun HTTP/1.1\r\nHost: a\r\nHost: b\r\n",
        b"GET /begun HTTP/1.1\r\nHost: a\r\nHost: a\r\n",
        b"GET /begun HTTP/1.0\r\nHost: a\r\nHost: b\r\n",
        b"GET /begun\r\n",
        b"GET /begun\r\nHost: a\r\n",
        b"GET /begun HTTP/0.9\r\nHost: a\r\n",
        b"GET /begun HTTP/2.0\r\nHost: a\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n",
        b"GET /begun HTTP/1.1\r\n" + OFFER,
    ],
)
async def test_a_request_without_one_host_or_a_known_version_is_refused(
    address: tuple[str, int], begun: list[str], head: bytes
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(head + b"\r\n")

    assert replies(await until_closed(reader)) == [(400, None)]
    assert begun == []
    writer.close()


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 3\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    ],
)
@pytest.mark.parametrize("offer", [b"", OFFER], ids=["plain", "upgrade"])
async def test_a_request_with_ambiguous_framing_is_refused(
    address: tuple[str, int], begun: list[str], framing: bytes, offer: bytes
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    head = b"GET /begun HTTP/1.1\r\nHost: a\r\n" + offer + framing
    writer.write(head + b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + LAST)

    assert replies(await until_closed(reader)) == [(400, None)]
    assert begun == []
    writer.close()


@pytest.mark.parametrize("target", [b"http://a/", b"HTTP://a:80/?b=c", b"https://a/"])
@pytest.mark.parametrize("offer", [b"", OFFER], ids=["plain", "upgrade"])
async def test_the_target_of_a_request_may_be_in_absolute_form(
    address: tuple[str, int], target: bytes, offer: bytes
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(LAST.replace(b"/", target, 1).replace(b"Connection: close\r\n", offer or b"Connection: close\r\n"))
    writer.write(LAST if offer else b"")

    assert set(replies(await until_closed(reader))) == {(200, 3)}
    writer.close()


async def test_an_http_1_0_request_needs_no_host(address: tuple[str, int], begun: list[str]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /begun HTTP/1.0\r\n\r\n")

    assert replies(await until_closed(reader)) == [(200, None)]
    assert len(begun) == 1
    writer.close()


BLOCKED = b"GET /blocked HTTP/1.1\r\nHost: a\r\n\r\n"


async def test_reading_is_paused_while_requests_wait_for_earlier_responses(
    server: uvicorn.Server, address: tuple[str, int], begun: list[str], release: asyncio.Semaphore
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(BLOCKED * 3)
    connection = await connection_of(server)

    for count in range(1, 4):

        async def is_running(count: int = count) -> bool:
            return len(begun) == count

        await eventually_async(is_running)
        assert connection.flow.read_paused == (count < 3)
        release.release()

    async with asyncio.timeout(LIMIT):
        for _ in range(3):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_many_pipelined_requests_are_answered_in_order_and_bounded(
    server: uvicorn.Server, address: tuple[str, int], begun: list[str], release: asyncio.Semaphore
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(BLOCKED * 1000 + BLOCKED.replace(b"Host", b"Connection: close\r\nHost"))
    connection = await connection_of(server)
    assert len(getattr(connection, "pipeline", ())) <= 16
    for _ in range(1001):
        release.release()

    statuses = replies(await until_closed(reader))

    assert len(statuses) >= 16
    if hasattr(connection, "pipeline"):
        assert len(statuses) < 1001, "the connection is closed after the responses to the requests that may wait"
    assert set(statuses) == {(200, None)}
    assert len(begun) == len(statuses)
    writer.close()


async def test_requests_after_the_end_of_a_connection_are_not_executed(
    address: tuple[str, int], begun: list[str]
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(LAST + BLOCKED * 3)

    assert replies(await until_closed(reader)) == [(200, 3)]
    assert begun == []
    writer.close()


async def test_a_request_before_an_invalid_one_is_answered(
    server: uvicorn.Server, address: tuple[str, int], release: asyncio.Semaphore
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(BLOCKED + b"\x00\r\n\r\n" + BLOCKED)
    await connection_of(server)
    release.release()

    statuses = replies(await until_closed(reader))

    assert statuses[0] == (200, None)
    assert set(statuses[1:]) <= {(400, None)}
    writer.close()


async def test_a_stream_ends_although_another_request_waits_for_its_response(
    server: uvicorn.Server, address: tuple[str, int], begun: list[str]
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"POST /endless HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}" + BLOCKED)
    await reader.readuntil(b"data: 0")
    writer.transport.abort()

    async def has_ended() -> bool:
        return begun == ["endless", "ended"] and not server.server_state.tasks

    await eventually_async(has_ended)
