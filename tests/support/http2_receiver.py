"""A receiver that speaks HTTP/2 to who agrees on it, and misbehaves in the ways that only HTTP/2 has.

    with http2_receiver(authority.server("a.example")) as hooks:
        hooks.plan("/hook", [500, NO_STATUS, reset(ErrorCodes.CANCEL)])

It is planned as `Receiver` is, and is that to whoever takes HTTP/1.1. A misbehaviour is given a `Talk` and what came.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, RequestReceived, StreamEnded
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
)

from .receiver import FOR_EVER, Received, Receiver, Reply

EARLY = "/early"
"""The path where nobody waits for the body."""

Headers = Iterable[tuple[str, str]]


class Talk:
    """One request's stream, to answer on as one likes; frames are written without asking anybody whether they may."""

    def __init__(self, line: _Line, stream_id: int) -> None:
        self.stream_id = stream_id
        self.line = line

    async def write(self, *frames: Frame) -> None:
        """Writes these frames."""
        await self.write_bytes(b"".join(frame.serialize() for frame in frames))

    async def write_bytes(self, data: bytes) -> None:
        """Writes what may be no frames."""
        self.line.writer.write(data)
        await self.line.writer.drain()

    def head(self, headers: Headers, *flags: str) -> HeadersFrame:
        """These headers, packed; ends its stream only with END_STREAM."""
        frame = HeadersFrame(self.stream_id, self.line.h2.encoder.encode(headers))
        frame.flags |= {"END_HEADERS", *flags}
        return frame

    def data(self, body: bytes, *flags: str) -> DataFrame:
        """A piece of the body."""
        frame = DataFrame(self.stream_id, body)
        frame.flags |= set(flags)
        return frame

    def whole(self, status: int = 200, headers: Headers = (), body: bytes = b"") -> list[Frame]:
        """A proper answer."""
        return [self.head([(":status", str(status)), *headers]), self.data(body, "END_STREAM")]

    def hang_up(self) -> None:
        """Closes the connection."""
        self.line.writer.close()


Misbehaviour = Callable[[Talk, Received], Awaitable[None]]


def says(make: Callable[[Talk], Iterable[Frame]]) -> Misbehaviour:
    """Writes the frames that `make` gives, and nothing more."""

    async def says_it(talk: Talk, _: Received) -> None:
        await talk.write(*make(talk))

    return says_it


def then_hangs_up(make: Callable[[Talk], Iterable[Frame]]) -> Misbehaviour:
    """The same, and closes the connection."""

    async def says_it(talk: Talk, _: Received) -> None:
        await talk.write(*make(talk))
        talk.hang_up()

    return says_it


def writes(data: bytes, *, closes: bool = False) -> Misbehaviour:
    """Writes these bytes, which need be no frames, and nothing more."""

    async def writes_it(talk: Talk, _: Received) -> None:
        await talk.write_bytes(data)
        if closes:
            talk.hang_up()

    return writes_it


def goes_on(make: Callable[[Talk], Iterable[Frame]], *, after: Callable[[Talk], Iterable[Frame]] | None = None,
            every: float = 0.0) -> Misbehaviour:  # fmt: skip
    """Writes these frames again and again, as long as anybody listens, behind others."""

    async def goes_on_and_on(talk: Talk, _: Received) -> None:
        if after is not None:
            await talk.write(*after(talk))
        again = b"".join(frame.serialize() for frame in make(talk))
        while not talk.line.writer.is_closing():
            await talk.write_bytes(again)
            await asyncio.sleep(every)

    return goes_on_and_on


async def falls_silent(talk: Talk, _: Received) -> None:
    """The connection is dead from here on, and nobody has said so."""
    talk.line.dead = True


async def stays_silent(talk: Talk, _: Received) -> None:
    """Never answers this one; the connection serves others."""
    await asyncio.sleep(FOR_EVER)


def together(count: int) -> Misbehaviour:
    """Answers so many at once, when all of them are here."""
    all_are_here = asyncio.Barrier(count)

    async def answers(talk: Talk, _: Received) -> None:
        await all_are_here.wait()
        await talk.write(*talk.whole())

    return answers


def reset(code: ErrorCodes) -> Misbehaviour:
    """Resets the stream."""
    return says(lambda talk: [RstStreamFrame(talk.stream_id, error_code=code)])


def away(last: int | None = None, code: ErrorCodes = ErrorCodes.NO_ERROR) -> Callable[[Talk], list[Frame]]:
    """A GOAWAY; `last` None: this stream is answered yet."""
    return lambda talk: [GoAwayFrame(0, talk.stream_id if last is None else last, code)]


def ok(headers: Headers = (), body: bytes = b"") -> Callable[[Talk], list[Frame]]:
    """A proper 200."""
    return lambda talk: talk.whole(200, headers, body)


def both(*parts: Callable[[Talk], Iterable[Frame]]) -> Callable[[Talk], list[Frame]]:
    """One behind the other."""
    return lambda talk: [frame for part in parts for frame in part(talk)]


def settings(**changed: int) -> SettingsFrame:
    """A SETTINGS frame; names are those of h2."""
    return SettingsFrame(0, {SettingCodes[name].value: value for name, value in changed.items()})


PING = PingFrame(0, b"12345678")


def endless_head(talk: Talk) -> list[Frame]:
    """Headers that are never whole."""
    frame = talk.head([(":status", "200")])
    frame.flags.discard("END_HEADERS")
    return [frame]


def more_head(talk: Talk) -> list[Frame]:
    """A further piece of them."""
    return [ContinuationFrame(talk.stream_id, talk.line.h2.encoder.encode([("x", "y" * 1000)]))]


def packed_bomb(talk: Talk) -> list[Frame]:
    """Headers that are small on the wire, and large behind it."""
    return [talk.head([(":status", "200"), *([("x-long", "y" * 4000)] * 100)], "END_STREAM")]


def _takes_no_streams(frame: Frame) -> bool:
    return isinstance(frame, SettingsFrame) and frame.settings.get(SettingsFrame.MAX_CONCURRENT_STREAMS) == 0


class _Line:
    """One connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.dead = False
        self.h2 = H2Connection(H2Configuration(client_side=False, validate_outbound_headers=False))


class Http2Receiver(Receiver):
    """Made by `http2_receiver`. Its settings are sent to each connection first."""

    def __init__(self, tls: ssl.SSLContext, begins: Iterable[Frame], window: int | None, patient: bool) -> None:
        super().__init__(tls)
        self._patient = patient
        self._begins = list(begins)
        self._refuses = any(_takes_no_streams(frame) for frame in self._begins)
        self._window = window
        self._lines: set[_Line] = set()
        self.spoken: list[str] = []
        """What was agreed on, connection by connection."""
        self.bugs: list[Exception] = []
        """What a misbehaviour failed with; that is no part of it."""

    def say(self, frames: Iterable[Frame]) -> None:
        """Writes these frames to each connection that is open, whatever is under way on it."""
        data = b"".join(frame.serialize() for frame in frames)
        self._in_loop(lambda line: line.writer.write(data))

    def hang_up(self, last_words: Callable[[Talk], Iterable[Frame]]) -> None:
        """Closes each connection, behind these frames."""

        def close(line: _Line) -> None:
            line.writer.write(b"".join(frame.serialize() for frame in last_words(Talk(line, 1))))
            line.writer.close()

        self._in_loop(close)

    def _in_loop(self, do: Callable[[_Line], None]) -> None:
        async def to_all() -> None:
            for line in list(self._lines):
                do(line)

        asyncio.run_coroutine_threadsafe(to_all(), self._loop).result(10)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        agreed = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        self.spoken.append(agreed)
        if agreed != "h2":
            await super()._talk(reader, writer)
            return
        self.connections += 1
        self.open += 1
        line = _Line(writer)
        self._lines.add(line)
        try:
            with suppress(OSError, asyncio.CancelledError, ProtocolError):
                await self._listen(reader, line)
        finally:
            self._lines.discard(line)
            self.open -= 1
            with suppress(OSError, RuntimeError):
                writer.close()

    async def _listen(self, reader: asyncio.StreamReader, line: _Line) -> None:
        line.h2.local_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 1 << 20  # it never hears of an answer's end
        line.h2.local_settings.acknowledge()
        line.h2.initiate_connection()
        if self._window is not None:
            line.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: self._window})
        if not self._patient:
            line.writer.write(line.h2.data_to_send() + b"".join(frame.serialize() for frame in self._begins))
        heads: dict[int, dict[str, str]] = {}
        bodies: dict[int, bytes] = {}
        answering: set[asyncio.Task[None]] = set()
        try:
            while data := await reader.read(1 << 16):
                if line.dead:
                    continue
                for event in line.h2.receive_data(data):
                    got = self._noted(line, event, heads, bodies)
                    if got is not None:
                        answering.add(asyncio.create_task(self._say(line, *got)))
                line.writer.write(line.h2.data_to_send())
        finally:
            for task in answering:
                task.cancel()
            ends = await asyncio.gather(*answering, return_exceptions=True)
            self.bugs += [end for end in ends if isinstance(end, Exception)]

    def _noted(
        self, line: _Line, event: Event, heads: dict[int, Any], bodies: dict[int, bytes]
    ) -> tuple[int, Received] | None:
        match event:
            case RequestReceived():
                heads[event.stream_id] = {name.decode(): value.decode() for name, value in event.headers}
                bodies[event.stream_id] = b""
                if heads[event.stream_id][":path"] == EARLY:
                    head = heads.pop(event.stream_id)
                    return event.stream_id, self._note(head[":method"], head[":path"], head, b"")
            case DataReceived():
                bodies[event.stream_id] += event.data
                if event.stream_id in heads:
                    line.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case StreamEnded() if event.stream_id in heads:
                head = heads.pop(event.stream_id)
                got = self._note(head[":method"], head[":path"], head, bodies.pop(event.stream_id))
                return event.stream_id, got
        return None

    async def _say(self, line: _Line, stream_id: int, got: Received) -> None:
        with suppress(OSError), self._next_step(got) as step:
            talk = Talk(line, stream_id)
            if self._refuses:  # whether or not its client had heard of it when it asked
                await talk.write(RstStreamFrame(stream_id, error_code=ErrorCodes.REFUSED_STREAM))
                return
            if not isinstance(step, int | Reply):
                await step(talk, got)  # type: ignore[arg-type]
                return
            reply = Reply(step) if isinstance(step, int) else step
            await asyncio.sleep(reply.wait)
            lower = [(name.lower(), value) for name, value in reply.headers]
            await talk.write(*talk.whole(reply.status, lower, reply.body))


@contextmanager
def http2_receiver(
    tls: ssl.SSLContext, *, begins: Iterable[Frame] = (), window: int | None = None, patient: bool = False
) -> Iterator[Http2Receiver]:
    """One that is gone at the end, and prefers HTTP/2.

    `window` is how much of a body it takes at once; a `patient` one says nothing before its client does.
    """
    tls.set_alpn_protocols(["h2", "http/1.1"])
    server = Http2Receiver(tls, begins, window, patient)
    server.start()
    try:
        yield server
    finally:
        server.stop()
    assert server.bugs == []
