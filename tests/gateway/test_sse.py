"""Writing of event streams. All available events are sent in one write. A stream ends when the client disconnects or
the server stops."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from a2a.types import Artifact, Part, TaskArtifactUpdateEvent

from a2a_celery.clock import SYSTEM_CLOCK, Clock
from a2a_celery.gateway import shutdown
from a2a_celery.gateway.bindings import sse
from a2a_celery.gateway.bindings.sse import EventStream, frames_of, write_page
from a2a_celery.gateway.shutdown import GatewayShutdown
from a2a_celery.lifecycle import Event, EventId
from a2a_celery.store.log.follower import StreamEvent
from tests.support.clocks import ManualClock
from tests.support.waiting import eventually_async

Pages = AsyncGenerator[list[StreamEvent], None]


def chunk(text: str) -> Event:
    return TaskArtifactUpdateEvent(artifact=Artifact(parts=[Part(text=text)]))


def text_of(event: str) -> str:
    """Return the text of a chunk from its JSON."""
    text: str = json.loads(event)["artifactUpdate"]["artifact"]["parts"][0]["text"]
    return text


async def call_at_once(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


async def written(pages: Pages) -> AsyncGenerator[list[str], None]:
    """Yield `pages` as a binding writes them."""
    async with aclosing(pages):
        async for page in pages:
            yield await write_page(page, work=call_at_once, wrap=text_of)


class StreamToClient:
    """Stream of `pages` to a client that may disconnect."""

    def __init__(self, pages: Pages, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.leaving = GatewayShutdown()
        self.began, self.left = asyncio.Event(), asyncio.Event()
        self.sent: list[dict[str, Any]] = []
        self.frames = frames_of(written(pages), lambda error: type(error).__name__)

    @property
    def bodies(self) -> list[str]:
        return [message["body"].decode() for message in self.sent[1:]]

    async def run(self) -> None:
        stream = await EventStream.start(self.frames, self.leaving, self.clock)
        await stream({"type": "http"}, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        if len(self.sent) == 2:
            self.began.set()


async def stream_pages(*pages: list[StreamEvent], error: Exception | None = None) -> Pages:
    for page in pages:
        yield page
    if error is not None:
        raise error


class EndlessPages:
    """Endless pages that record whether they were closed."""

    def __init__(self) -> None:
        self.closed = False

    async def pages(self) -> Pages:
        try:
            yield [StreamEvent(EventId(1), chunk("a"))]
            await asyncio.Event().wait()
        finally:
            self.closed = True


async def test_a_page_is_one_write() -> None:
    stream = StreamToClient(
        stream_pages(
            [StreamEvent(EventId(1), chunk("a"))], [StreamEvent(EventId(2), chunk("b")), StreamEvent(None, chunk("c"))]
        )
    )

    await stream.run()

    headers = dict(stream.sent[0]["headers"])
    assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert stream.bodies == ["id: 1\ndata: a\n\n", "id: 2\ndata: b\n\ndata: c\n\n", ""]
    assert [message["more_body"] for message in stream.sent[1:]] == [True, True, False]


async def test_a_large_event_is_written_in_pieces() -> None:
    large = "x" * (sse.WRITE // 2)
    stream = StreamToClient(stream_pages([StreamEvent(EventId(n), chunk(large)) for n in range(5)]))

    await stream.run()

    assert [body.count("id: ") for body in stream.bodies] == [2, 2, 1, 0]


async def test_an_error_of_the_first_page_is_the_callers_and_a_later_one_an_event() -> None:
    with pytest.raises(LookupError):
        await StreamToClient(stream_pages(error=LookupError())).run()

    stream = StreamToClient(stream_pages([StreamEvent(EventId(1), chunk("a"))], error=LookupError()))
    await stream.run()

    assert stream.bodies[1:] == ["event: error\ndata: LookupError\n\n", ""]


class SilentStream:
    """Running stream whose events the test sends, on a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.pages: asyncio.Queue[list[StreamEvent] | None] = asyncio.Queue()
        self.stream = StreamToClient(self._read(), self.clock)
        self.running = asyncio.create_task(self.stream.run())

    async def _read(self) -> Pages:
        yield [StreamEvent(EventId(1), chunk("a"))]
        while (page := await self.pages.get()) is not None:
            yield page

    async def wait_for_bodies(self, *bodies: str) -> None:
        """Wait until these bodies have been written after the first one."""

        async def is_written() -> bool:
            return self.stream.bodies[1:] == list(bodies)

        await eventually_async(is_written, what=f"bodies {bodies}")


async def test_a_silent_stream_sends_pings() -> None:
    stream = SilentStream()
    for count in range(1, 4):
        await stream.clock.until_waiting(sse.PING_AFTER)
        stream.clock.advance(sse.PING_AFTER)
        await stream.wait_for_bodies(*[sse.PING] * count)
    stream.pages.put_nowait(None)
    await stream.running

    assert stream.stream.bodies[1:] == [*[sse.PING] * 3, ""]
    assert stream.clock.waits == []


async def test_an_event_postpones_the_ping() -> None:
    stream = SilentStream()
    await stream.clock.until_waiting(sse.PING_AFTER)
    stream.clock.advance(sse.PING_AFTER - 1)
    stream.pages.put_nowait([StreamEvent(EventId(2), chunk("b"))])
    await stream.wait_for_bodies("id: 2\ndata: b\n\n")

    stream.clock.advance(1)
    await stream.clock.until_waiting(sse.PING_AFTER - 1)
    stream.clock.advance(sse.PING_AFTER - 1)

    await stream.wait_for_bodies("id: 2\ndata: b\n\n", sse.PING)
    stream.pages.put_nowait(None)
    await stream.running


async def test_an_empty_page_writes_nothing() -> None:
    stream = StreamToClient(stream_pages([], [StreamEvent(EventId(1), chunk("a"))], []))

    await stream.run()

    assert stream.bodies == ["id: 1\ndata: a\n\n", ""]


@pytest.mark.parametrize("condition", ["the client leaves", "the server stops"])
async def test_a_stream_ends_on_these_conditions(condition: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source = EndlessPages()
    stream = StreamToClient(source.pages())
    running = asyncio.create_task(stream.run())
    await stream.began.wait()

    if condition == "the client leaves":
        stream.left.set()
    else:
        stream.leaving.end_streams()
    await running
    stream.leaving.end_streams()

    assert source.closed
    assert stream.sent[-1]["more_body"]
    assert len(caplog.messages) == (condition == "the server stops"), "an ended stream is not open"


async def test_only_the_servers_error_for_a_cut_stream_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server_exit = asyncio.Event()
    monkeypatch.setattr(shutdown, "wait_for_server_exit", server_exit.wait)
    caplog.set_level(logging.INFO)
    stream = StreamToClient(EndlessPages().pages())

    async def serve() -> None:
        await stream.run()
        logging.getLogger(shutdown.SERVER_LOGGER).error(shutdown.INCOMPLETE_RESPONSE)

    serving = asyncio.create_task(serve())
    await stream.began.wait()
    server_exit.set()
    await serving
    logging.getLogger(shutdown.SERVER_LOGGER).error(shutdown.INCOMPLETE_RESPONSE)

    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["open streams closed: 1; clients resume them", shutdown.INCOMPLETE_RESPONSE]


async def test_a_cancellation_is_propagated() -> None:
    source = EndlessPages()
    stream = StreamToClient(source.pages())
    running = asyncio.create_task(stream.run())
    await stream.began.wait()

    running.cancel()
    await asyncio.wait({running})

    assert running.cancelled()
    assert source.closed
