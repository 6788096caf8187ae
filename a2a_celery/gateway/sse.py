"""Streams over HTTP: server-sent events, as many to a write as are ready.

In place of the response of sse-starlette that the SDK makes, which holds four tasks for each stream and writes its
events one by one. What a client sees is the same.

Source: HTML standard 9.2 (server-sent events).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..clock import SYSTEM_CLOCK, Clock
from ..lifecycle import Event
from .leaving import Leaving
from .streams import Shown

PING_AFTER = 10.0
"""Seconds of silence after which something is written when a stream's source has looked and found nothing, which it
does every `store.wake.LOOK_EVERY`: proxies hang up on what is silent."""

PING = ": ping\n\n"

WRITE = 64 * 1024
"""Characters behind which a write ends: the server holds no more of what its client does not take."""


def frame(data: str, version: int | None = None, event: str | None = None) -> str:
    """An event of a stream; `data` is one line, and `version` is what a client may come back with."""
    numbered = "" if version is None else f"id: {version}\n"
    named = "" if event is None else f"event: {event}\n"
    return f"{numbered}{named}data: {data}\n\n"


async def frames_of(
    pages: AsyncGenerator[list[Shown], None], say: Callable[[Event], Awaitable[str]], fault: Callable[[Exception], str]
) -> AsyncGenerator[str, None]:
    """What an `EventStream` writes of `pages`: each event as `say` has it, and an error behind the first of them, which
    ends them, as `fault` does."""
    async with aclosing(pages):
        first = await anext(pages, None)
        if first is None:
            return
        writes = _writes(first, say)
        del first
        async for some in writes:
            yield some
            del some
        del writes
        try:
            async for page in pages:
                async for some in _writes(page, say):
                    yield some
                    del some
                del page
        except Exception as e:
            yield frame(fault(e), event="error")


async def _writes(page: list[Shown], say: Callable[[Event], Awaitable[str]]) -> AsyncGenerator[str, None]:
    ready: list[str] = []
    size = 0
    for one in page:
        ready.append(frame(await say(one.event), one.version))
        size += len(ready[-1])
        if size >= WRITE:
            yield "".join(ready)
            ready, size = [], 0
    if ready or not page:
        yield "".join(ready)


class EventStream(Response):
    """Writes `first`, and what `frames` give: some frames, or "" for a sign of life. Closes them, however it ends."""

    media_type = "text/event-stream"

    def __init__(
        self, first: str | None, frames: AsyncGenerator[str, None], leaving: Leaving, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-store", "Connection": "keep-alive", "X-Accel-Buffering": "no"})
        self.is_empty = first is None
        """Whether the frames ended before the first."""
        self._first = first or ""
        self._frames = frames
        self._leaving = leaving
        self._clock = clock

    @classmethod
    async def begun(
        cls, frames: AsyncGenerator[str, None], leaving: Leaving, clock: Clock = SYSTEM_CLOCK
    ) -> EventStream:
        """With the first of the `frames` at hand: what they raise before it is the caller's to answer."""
        return cls(await anext(frames, None), frames, leaving, clock)

    async def discard(self) -> None:
        """Close the frames, of which none is written."""
        await self._frames.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Writes until there is no more, or the client goes away, or the server stops."""
        with self._leaving.streaming() as cut:
            gone = asyncio.create_task(_gone(receive), name="a2a-client-gone")
            gone.add_done_callback(cut)
            try:
                async with aclosing(self._frames):
                    await self._write(send)
            finally:
                gone.remove_done_callback(cut)
                gone.cancel()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if self._first:
            await send({"type": "http.response.body", "body": self._first.encode(), "more_body": True})
        self._first, written_at = "", self._clock.monotonic()
        async for some in self._frames:
            if some or self._clock.monotonic() - written_at > PING_AFTER:
                await send({"type": "http.response.body", "body": (some or PING).encode(), "more_body": True})
                written_at = self._clock.monotonic()
            del some
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
