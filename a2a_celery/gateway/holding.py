"""Counts the large parts of an answer as in hand until the answer is on its way: see ``store.room``."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..store.room import guest

PIECE = 256 * 1024
"""Bytes that are sent at once; a server waits before the next as long as its client takes none."""


class HoldsLargeParts:
    """ASGI middleware, which sends what is large in pieces: the server's buffers hold no second copy of it, and what
    was read counts as in hand until the last piece has gone out. Of a stream it does until its next frame has."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with guest() as holding:
            is_stream = True

            async def sent(message: Message) -> None:
                nonlocal is_stream
                if message["type"] != "http.response.body":
                    is_stream = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
                    await send(message)
                    return
                for piece in _pieces(message):
                    await send(piece)
                if is_stream or not message.get("more_body", False):
                    holding.leave()

            await self._app(scope, receive, sent)


def _pieces(message: Message) -> Iterator[Message]:
    body = message.get("body", b"")
    if len(body) <= PIECE:
        yield message
        return
    more = message.get("more_body", False)
    for start in range(0, len(body), PIECE):
        last = start + PIECE >= len(body)
        yield {"type": message["type"], "body": body[start : start + PIECE], "more_body": more or not last}
