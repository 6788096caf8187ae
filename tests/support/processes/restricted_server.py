"""ASGI middleware that removes features from an A2A server."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from a2a_celery.gateway.page import shell_routes

Card = dict[str, Any]
CARD = "/.well-known/agent-card.json"


class RestrictedServer:
    """Middleware that serves the operator's page and restricts an A2A server.

    Args:
        methods: JSON-RPC methods for which the server returns "method not found".
        card: Function that changes the agent card.
        token: Bearer token that JSON-RPC requests need, or "" for none.
    """

    def __init__(
        self, methods: Collection[str] = (), card: Callable[[Card, str], Card] = lambda card, _: card, token: str = ""
    ) -> None:
        self._methods = methods
        self._card = card
        self._token = token

    def __call__(self, app: ASGIApp) -> Starlette:
        """Wrap `app`."""

        async def rpc(request: Request) -> Response:
            body = json.loads(await request.body())
            if self._token and request.headers.get("authorization") != f"Bearer {self._token}":
                return JSONResponse({"error": {"code": 401, "message": "Who is it?"}}, status_code=401)
            if body["method"] in self._methods:
                return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "error": {"code": -32601, "message": "No."}})
            return _ReplayingResponse(app, await request.body())

        async def card(request: Request) -> Response:
            body = await _read_body(app, request)
            return JSONResponse(self._card(json.loads(body), str(request.base_url)))

        return Starlette(
            routes=[*shell_routes(), Route("/", rpc, methods=["POST"]), Route(CARD, card), Mount("/", app)]
        )


class _ReplayingResponse(Response):
    """Response that calls an ASGI application with a request body that has already been read."""

    def __init__(self, app: ASGIApp, body: bytes) -> None:
        super().__init__()
        self._app = app
        self._messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def replay() -> Any:
            return self._messages.pop() if self._messages else await receive()

        await self._app(scope, replay, send)


async def _read_body(app: ASGIApp, request: Request) -> bytes:
    chunks: list[bytes] = []

    async def send(message: Any) -> None:
        chunks.append(message.get("body", b""))

    await app(dict(request.scope), request.receive, send)
    return b"".join(chunks)
