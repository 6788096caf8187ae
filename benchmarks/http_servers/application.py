"""ASGI application without a framework that each HTTP server serves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

PIECE = b"x" * (1 << 16)
counts = {"sent": 0, "disconnected": 0}
"""Sent bytes of endless responses, and requests whose client has disconnected."""


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Serve the lifespan and the routes."""
    if scope["type"] == "lifespan":
        for _ in range(2):
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
        return
    await ROUTES[scope["path"]](scope, receive, send)


async def read(receive: Any) -> int:
    """Read the body of a request, and return its size."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    return size


async def begin(send: Any, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def respond(send: Any, content: object) -> None:
    """Send a response with a JSON body."""
    body = json.dumps(content).encode()
    await begin(send, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.body", "body": body})


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Respond with the size of the body and the names of the headers."""
    size = await read(receive)
    await respond(send, {"size": size, "headers": [name.decode() for name, _ in scope["headers"]]})


async def begin_first(scope: Any, receive: Any, send: Any) -> None:
    """Begin the response before the body is read, so that the client knows that the server has read the head."""
    await begin(send)
    await send({"type": "http.response.body", "body": b"begun ", "more_body": True})
    await send({"type": "http.response.body", "body": b'"size": %d' % await read(receive)})


async def stream(scope: Any, receive: Any, send: Any) -> None:
    """Respond with two pieces of a body without a length."""
    await read(receive)
    await begin(send)
    await send({"type": "http.response.body", "body": b"one", "more_body": True})
    await send({"type": "http.response.body", "body": b"two"})


async def fail(scope: Any, receive: Any, send: Any) -> None:
    """Fail after the first piece of the response."""
    await begin(send)
    await send({"type": "http.response.body", "body": b"one", "more_body": True})
    raise RuntimeError("the response is incomplete")


async def wait(scope: Any, receive: Any, send: Any) -> None:
    """Send the first piece of the response, and the second a second later."""
    await begin(send)
    await send({"type": "http.response.body", "body": b"begun ", "more_body": True})
    await asyncio.sleep(1)
    await send({"type": "http.response.body", "body": b"done"})


async def block(scope: Any, receive: Any, send: Any) -> None:
    """Send the first piece of the response, and wait until the client has disconnected."""
    await begin(send)
    await send({"type": "http.response.body", "body": b"begun ", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass
    counts["disconnected"] += 1


async def ignore(scope: Any, receive: Any, send: Any) -> None:
    """Send the first piece of the response, and never read the body."""
    await begin(send)
    await send({"type": "http.response.body", "body": b"begun ", "more_body": True})
    await asyncio.sleep(3600)


async def endless(scope: Any, receive: Any, send: Any) -> None:
    """Send pieces without an end."""
    await begin(send)
    for _ in range(1 << 12):
        await send({"type": "http.response.body", "body": PIECE, "more_body": True})
        counts["sent"] += len(PIECE)


async def show_counts(scope: Any, receive: Any, send: Any) -> None:
    await respond(send, counts)


ROUTES = {
    "/": echo,
    "/begin-first": begin_first,
    "/stream": stream,
    "/fail": fail,
    "/wait": wait,
    "/block": block,
    "/ignore": ignore,
    "/endless": endless,
    "/counts": show_counts,
}
