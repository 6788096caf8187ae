"""Server for ASGI applications on the running event loop, which starts and stops at once.

``uvicorn.Server.serve`` notices a stop after up to 0.1 s, and then waits 0.1 s for its connections.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

GRACE = 5.0
"""Seconds that requests may take to end when the server stops. Then they are cancelled."""


@asynccontextmanager
async def running_server(app: ASGIApp, **options: Any) -> AsyncIterator[uvicorn.Server]:
    """Serve `app` on a free port of 127.0.0.1 and yield the server. `options` are those of ``uvicorn.Config``."""
    config = uvicorn.Config(app, **{"log_level": "warning", **options})
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.lifespan.startup()
    listener = socket.create_server(("127.0.0.1", 0))
    # asyncio does not recognize the accepted connections of this listener as TCP, so Nagle's algorithm delays responses
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    await server.startup(sockets=[listener])
    await server.on_tick(0)  # sets the default headers
    try:
        yield server
    finally:
        await _stop(server)


async def _stop(server: uvicorn.Server) -> None:
    for listener in server.servers:
        listener.close()
    for connection in list(server.server_state.connections):
        connection.shutdown()
    if tasks := list(server.server_state.tasks):
        _, pending = await asyncio.wait(tasks, timeout=GRACE)
        for task in pending:
            task.cancel()
    await server.lifespan.shutdown()


def address_of(server: uvicorn.Server) -> tuple[str, int]:
    """Return the host and port of a running server."""
    host, port = server.servers[0].sockets[0].getsockname()
    return host, port


@asynccontextmanager
async def serve_app(app: ASGIApp, **options: Any) -> AsyncIterator[str]:
    """Serve `app` like `running_server`, and yield the URL."""
    async with running_server(app, **options) as server:
        yield "http://{}:{}".format(*address_of(server))
