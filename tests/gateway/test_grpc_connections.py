"""Connections of gRPC clients: pings, which keep silent connections alive, the number of calls, idle connections, and
metadata."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio
import pytest

from a2a_celery.gateway.bindings.grpc import CONNECTION_OPTIONS, MIN_PING_INTERVAL, GrpcServer
from tests.support.processes.fleet import free_port
from tests.support.waiting import LIMIT

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""Start of an HTTP/2 connection, with an empty SETTINGS frame."""

PING = bytes((0, 0, 8, 6, 0, 0, 0, 0, 0)) + b"12345678"
PINGS = 20
SETTINGS_TYPE, PING_TYPE, GOAWAY_TYPE = 4, 6, 7
MAX_CONCURRENT_STREAMS = 3
"""Identifier of the setting with the maximum number of streams. Source: RFC 9113, section 6.5.2."""

MAX_IDLE = "grpc.max_connection_idle_ms"


@dataclass
class Connection:
    """HTTP/2 connection to a gRPC server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def next_frame(self) -> tuple[int, bytes]:
        """Return the type and the payload of the server's next frame."""
        head = await self.reader.readexactly(9)
        return head[3], await self.reader.readexactly(int.from_bytes(head[:3]))


@asynccontextmanager
async def open_connection(options: dict[str, int]) -> AsyncIterator[Connection]:
    """Connect to a server with `options`."""
    server = grpc.aio.server(options=list(options.items()))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(PREFACE)
        async with asyncio.timeout(LIMIT):
            yield Connection(reader, writer)
    finally:
        writer.close()
        await server.stop(None)


async def frame_types_after_pings(options: dict[str, int]) -> list[int]:
    """Ping a server with `options` without a pause. Return the types of the server's frames, until all pings are
    acknowledged or the server refuses further pings."""
    types: list[int] = []
    async with open_connection(options) as connection:
        while types.count(PING_TYPE) < PINGS and GOAWAY_TYPE not in types:
            connection.writer.write(PING)
            types.append((await connection.next_frame())[0])
    return types


async def test_a_client_may_ping_every_ten_seconds() -> None:
    """A shorter interval shows that gRPC reads the channel argument. The test does not wait for the real interval."""
    assert 0 < dict(CONNECTION_OPTIONS)[MIN_PING_INTERVAL] <= 10_000

    types = await frame_types_after_pings(dict(CONNECTION_OPTIONS) | {MIN_PING_INTERVAL: 0})

    assert types.count(PING_TYPE) == PINGS
    assert GOAWAY_TYPE not in types


async def test_a_client_that_pings_without_a_pause_is_cut_off() -> None:
    assert GOAWAY_TYPE in await frame_types_after_pings(dict(CONNECTION_OPTIONS))


async def test_a_connection_has_a_maximum_number_of_calls() -> None:
    async with open_connection(dict(CONNECTION_OPTIONS)) as connection:
        frame_type, payload = await connection.next_frame()

    assert frame_type == SETTINGS_TYPE
    settings = dict(struct.iter_unpack("!HI", payload))
    assert settings[MAX_CONCURRENT_STREAMS] == 1000


async def test_a_connection_without_a_call_is_closed() -> None:
    """A shorter time shows that gRPC reads the channel argument. The test does not wait for the real time."""
    assert MAX_IDLE in dict(CONNECTION_OPTIONS)

    types: list[int] = []
    async with open_connection(dict(CONNECTION_OPTIONS) | {MAX_IDLE: 1}) as connection:
        while GOAWAY_TYPE not in types:
            types.append((await connection.next_frame())[0])


@pytest.mark.parametrize(
    ("size", "code"), [(6_000, grpc.StatusCode.UNIMPLEMENTED), (17_000, grpc.StatusCode.RESOURCE_EXHAUSTED)]
)
async def test_metadata_has_a_maximum_size(size: int, code: grpc.StatusCode) -> None:
    port = free_port()
    server = GrpcServer({}, "127.0.0.1", port, 1024)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/lf.a2a.v1.A2AService/Nothing")
            assert await call(b"", metadata=(("x-long", "x" * size),), timeout=LIMIT).code() == code
    finally:
        await server.stop(0)
