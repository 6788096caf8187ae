"""HTTP streams of server-sent events. All events that are ready are sent in one write.

This module replaces the SDK's response (from sse-starlette), which runs four asyncio tasks for each stream and writes
each event separately. Clients receive the same events.

Source: HTML standard, section 9.2 (server-sent events).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...clock import SYSTEM_CLOCK, Clock
from ...lifecycle import EventId
from ...store.log.follower import StreamEvent
from ..gate import HeavyWork, is_large, process
from ..shutdown import GatewayShutdown
from .json_results import event_json

PING_AFTER = 10.0
"""Seconds without a write after which a comment is sent, because proxies close silent connections."""

PING = ": ping\n\n"

WRITE = 64 * 1024
"""Number of characters after which a write ends. The limit bounds the server's output buffer for a slow client."""


def frame(data: str, event_id: EventId | None = None, event: str | None = None) -> str:
    """Return a server-sent event.

    Args:
        data: Data of the event on a single line.
        event_id: Id with which a client resumes the stream after this event, or None.
        event: Type of the event, or None for the default type.
    """
    id_line = "" if event_id is None else f"id: {event_id}\n"
    event_field = "" if event is None else f"event: {event}\n"
    return f"{id_line}{event_field}data: {data}\n\n"


async def write_page(
    page: list[StreamEvent], *, work: HeavyWork, wrap: Callable[[str], str] = lambda data: data
) -> list[str]:
    """Return the frames of a page, joined into writes of about `WRITE` characters. A large page is written as heavy
    work.

    Args:
        page: Events that became available together.
        work: Function that executes heavy work of the caller.
        wrap: Function that wraps the JSON of an event in the format of the binding.
    """
    return await process(work, is_large(*(stream_event.event for stream_event in page)), _writes, page, wrap)


def _writes(page: list[StreamEvent], wrap: Callable[[str], str]) -> list[str]:
    """Return the writes of a page. An empty page becomes an empty write, so that a response without events begins at
    once."""
    writes: list[str] = []
    ready: list[str] = []
    size = 0
    for stream_event in page:
        ready.append(frame(wrap(event_json(stream_event.event)), stream_event.id))
        size += len(ready[-1])
        if size >= WRITE:
            writes.append("".join(ready))
            ready, size = [], 0
    if ready or not page:
        writes.append("".join(ready))
    return writes


async def frames_of(
    pages: AsyncGenerator[list[str], None], encode_error: Callable[[Exception], str]
) -> AsyncGenerator[str, None]:
    """Yield the writes of `pages` for an `EventStream`. An error after the first page becomes the last frame.

    Args:
        pages: Generator of pages, as `write_page` returns them, which is closed at the end.
        encode_error: Function that formats an error.
    """
    async with aclosing(pages):
        writes = await anext(pages, None)
        if writes is None:
            return
        try:
            while writes is not None:
                for write in writes:
                    yield write
                    del write
                writes = None  # a long stream must not keep the page in memory
                writes = await anext(pages, None)
        except Exception as e:
            yield frame(encode_error(e), event="error")


class EventStream(Response):
    """Response that writes `first` and then `frames`, and closes `frames` at the end. A comment is sent after
    `PING_AFTER` seconds without a write."""

    media_type = "text/event-stream"

    def __init__(
        self,
        first: str | None,
        frames: AsyncGenerator[str, None],
        shutdown: GatewayShutdown,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"X-Accel-Buffering": "no"})
        self.is_empty = first is None
        """True if there is no first frame."""
        self._first = first or ""
        self._frames = frames
        self._shutdown = shutdown
        self._clock = clock
        self._written_at = clock.monotonic()
        self._writing = asyncio.Lock()

    @classmethod
    async def start(
        cls, frames: AsyncGenerator[str, None], shutdown: GatewayShutdown, clock: Clock = SYSTEM_CLOCK
    ) -> EventStream:
        """Read the first frame and return the response. An error before the first frame is raised, so that the caller
        can map it to a response."""
        return cls(await anext(frames, None), frames, shutdown, clock)

    async def discard(self) -> None:
        """Close the frames without writing them."""
        await self._frames.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the frames until they end, the client disconnects or the server stops."""
        with self._shutdown.streaming() as cut_event:
            client_task = asyncio.create_task(self._ping_until_disconnect(receive, send), name="a2a-stream-client")
            client_task.add_done_callback(cut_event)
            try:
                async with aclosing(self._frames):
                    await self._write(send)
            finally:
                client_task.remove_done_callback(cut_event)
                client_task.cancel()

    async def _write(self, send: Send) -> None:
        async with self._writing:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if self._first:
            await self._send(send, self._first)
        self._first = ""
        async for write in self._frames:
            if write:
                await self._send(send, write)
            del write
        async with self._writing:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ping_until_disconnect(self, receive: Receive, send: Send) -> None:
        """Send a comment each time that `PING_AFTER` seconds have passed without a write, until the client
        disconnects."""
        while True:
            seconds = self._written_at + PING_AFTER - self._clock.monotonic()
            if seconds <= 0:
                await self._send(send, PING)
                continue
            with suppress(TimeoutError):
                async with self._clock.timeout(seconds):
                    if (await receive())["type"] == "http.disconnect":
                        return

    async def _send(self, send: Send, text: str) -> None:
        async with self._writing:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            self._written_at = self._clock.monotonic()
