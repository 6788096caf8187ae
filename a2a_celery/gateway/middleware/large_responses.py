"""Middleware that bounds the memory of large responses; see ``store.blobs.memory_budget``."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...store.blobs.memory_budget import reserve_memory

PIECE = 256 * 1024
"""Maximum number of bytes in one send. If the client is slow, the server delays the next send."""


class LargeResponseMiddleware:
    """ASGI middleware that sends large bodies in pieces, so that the server does not buffer a second copy.

    Memory for large parts stays reserved until the last piece is sent. In a stream, the memory stays reserved until the
    next frame is sent.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, and send its response bodies in pieces."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with reserve_memory() as reservation:
            is_stream = True

            async def send_in_pieces(message: Message) -> None:
                nonlocal is_stream
                if message["type"] != "http.response.body":
                    is_stream = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
                    await send(message)
                    return
                for piece in _pieces(message):
                    await send(piece)
                if is_stream or not message.get("more_body", False):
                    reservation.release()

            await self._app(scope, receive, send_in_pieces)


def _pieces(message: Message) -> Iterator[Message]:
    body = message.get("body", b"")
    if len(body) <= PIECE:
        yield message
        return
    more = message.get("more_body", False)
    for start in range(0, len(body), PIECE):
        last = start + PIECE >= len(body)
        yield {"type": message["type"], "body": body[start : start + PIECE], "more_body": more or not last}
