"""Tells a gateway that it is to stop when the signal comes: its server would say so only when all is answered."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any

from starlette.applications import Starlette


def told_to_stop(asgi: Starlette) -> Starlette:
    """The same application, which while it lives hears of SIGTERM and SIGINT before its server does."""
    theirs = asgi.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[Any]:
        async with theirs(app) as state:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                _precede(number, lambda: loop.call_soon_threadsafe(app.state.leaving.begin))
            yield state  # the server puts the handlers back that were there before its own

    asgi.router.lifespan_context = lifespan
    return asgi


def _precede(number: signal.Signals, tell: Any) -> None:
    """Calls `tell` before the handler that a signal has."""
    server = signal.getsignal(number)

    def handle(given: int, frame: FrameType | None) -> None:
        tell()
        if callable(server):
            server(given, frame)

    # sse-starlette, which cuts the streams, may look here for the server to see whether that stops
    setattr(handle, "__self__", getattr(server, "__self__", None))  # noqa: B010 - no function is declared to have one
    signal.signal(number, handle)
