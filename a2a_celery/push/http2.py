"""HTTP/2 as posts speak it: one request at a time on a connection, which is kept only behind a whole answer.

So a post shares its connection with none, as in HTTP/1.1, and what one path, stream or connection does to it is done to
no other. The frames are the h2 library's. Two things are ours: to have enough of who says too much; and GOAWAY, which
h2 takes for the connection's end (its issue 1181), though a server that stops may answer first what it has.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from enum import Enum, auto
from typing import Any

import httpcore
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hpack import NeverIndexedHeaderTuple

from ..clock import SYSTEM_CLOCK, Clock

MOST_HEARD = 1 << 18
"""Bytes that are read for one answer."""
MOST_FRAMES = 1000
"""Frames that are read for one answer: each costs some time, also one that says nothing."""
MOST_HEAD = 1 << 16
"""Bytes of an answer's headers, unpacked."""
LOOK = 0.05
"""Seconds to read what came while the connection was idle; there may be nothing but TLS in it."""

_READ = 1 << 14
_LONGEST_FRAME = 1 << 14  # h2 allows no other side more, and looks when it has one
_FRAME_HEAD = 9
_GOAWAY = 7
_STATUS = re.compile(rb"[2-9][0-9]{2}")
_VALUE = re.compile(rb"[\t\x20-\x7e]*")
_HUNG_UP = "Server disconnected without an answer"


class _State(Enum):
    IDLE = auto()
    BUSY = auto()
    CLOSED = auto()


class Http2Connection(httpcore.AsyncConnectionInterface):
    """A connection whose TLS has agreed on h2, for a pool. Fails as httpcore's HTTP/1.1 connection fails."""

    def __init__(
        self,
        origin: httpcore.Origin,
        stream: httpcore.AsyncNetworkStream,
        kept_for: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._origin = origin
        self._clock = clock
        self._stream = stream
        self._kept_for = kept_for
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._h2.local_settings = Settings(
            client=True, initial_values={SettingCodes.ENABLE_PUSH: 0, SettingCodes.MAX_HEADER_LIST_SIZE: MOST_HEAD}
        )
        self._h2.initiate_connection()
        self._state = _State.IDLE
        self._expires = self._clock.monotonic() + kept_for
        self._unread = bytearray()
        self._over = False  # the connection is for no other request
        self._begin()

    def _begin(self) -> None:
        """Forgets the answer before."""
        self._stream_id: int | None = None
        self._patience: float | None = None
        self._heard = self._frames = 0
        self._head: ResponseReceived | None = None
        self._chunks: deque[bytes] = deque()
        self._ended = False

    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        """The answer, as soon as its headers are there; the connection is busy until its stream is closed.

        Raises:
            httpcore.ConnectionNotAvailable: nothing was sent: the connection is busy, or was given up meanwhile.
            httpcore.LocalProtocolError: the request can't be said.
            httpcore.RemoteProtocolError: "disconnected" in its text, if the server ended connection or stream; or what
                it says is not HTTP/2, or too much.
        """
        if self._state is not _State.IDLE:
            raise httpcore.ConnectionNotAvailable
        self._state = _State.BUSY
        self._begin()
        try:
            headers = _said(request)
            self._patience = request.extensions["timeout"]["read"]
            await self._catch_up()
            await self._ask(headers, b"".join([chunk async for chunk in request.stream]))  # type: ignore[union-attr]
            while self._head is None:
                await self._hear()
            status, answered = _read(self._head)
        except BaseException:
            await self.aclose()
            raise
        return httpcore.Response(status, headers=answered, content=_Body(self))

    async def chunks(self) -> AsyncIterator[bytes]:
        """The answer's body as it comes. Raises httpcore's exceptions when it breaks off."""
        while True:
            while self._chunks:
                yield self._chunks.popleft()
            if self._ended:
                return
            if self._over:
                raise httpcore.RemoteProtocolError(_HUNG_UP)
            await self._hear()

    async def finish(self) -> None:
        """Leaves the connection to the next request if this one was answered to its end; else closes it."""
        if self._state is not _State.BUSY:
            return
        if self._over or not self._ended:
            await self.aclose()
            return
        self._state = _State.IDLE
        self._expires = self._clock.monotonic() + self._kept_for

    async def aclose(self) -> None:
        """Closes the connection, whatever is under way."""
        self._state = _State.CLOSED
        await self._stream.aclose()

    async def _catch_up(self) -> None:
        """Takes what came meanwhile. Raises ConnectionNotAvailable if that was the connection's end."""
        try:
            while self._stream.get_extra_info("is_readable"):
                await self._hear(LOOK)
        except httpcore.ReadTimeout:
            pass
        except (httpcore.NetworkError, httpcore.RemoteProtocolError):
            self._over = True
        if self._over:
            raise httpcore.ConnectionNotAvailable

    async def _ask(self, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Sends the request; stops in the middle of it if that is answered already, or can't be written any more."""
        try:
            self._stream_id = self._h2.get_next_available_stream_id()
            self._h2.send_headers(self._stream_id, headers)
            with suppress(httpcore.WriteError):
                at = 0
                while at < len(body) and self._head is None:
                    room = self._h2.local_flow_control_window(self._stream_id)
                    if room <= 0:
                        await self._flush()
                        await self._hear()
                        continue
                    part = body[at : at + min(room, self._h2.max_outbound_frame_size)]
                    self._h2.send_data(self._stream_id, part)
                    await self._flush()
                    at += len(part)
                if self._head is None:
                    self._h2.end_stream(self._stream_id)
                    await self._flush()
                    return
            self._over = True
        except ProtocolError as e:  # the server takes no stream, or has ended this one
            raise httpcore.RemoteProtocolError(_HUNG_UP) from e

    async def _hear(self, patience: float | None = None) -> None:
        """Reads once. What goes wrong behind the answer's headers only ends the connection."""
        try:
            data = await self._stream.read(_READ, self._patience if patience is None else patience)
            if not data:
                raise httpcore.RemoteProtocolError(_HUNG_UP)
            self._unread += data
            self._heard += len(data)
            for frame in self._whole_frames():
                self._take(frame)
            if self._heard > MOST_HEARD or self._frames > MOST_FRAMES:
                raise httpcore.RemoteProtocolError("too much without an answer")
            await self._flush()
        except httpcore.ReadTimeout:
            raise
        except Exception:
            self._over = True
            if self._head is None:
                raise

    async def _flush(self) -> None:
        await self._stream.write(self._h2.data_to_send(), self._patience)

    def _whole_frames(self) -> Iterator[bytes]:
        """What was read and not taken, frame by frame. Source: RFC 9113, section 4.1."""
        while len(self._unread) >= _FRAME_HEAD:
            length = int.from_bytes(self._unread[:3], "big")
            if length > _LONGEST_FRAME:
                raise httpcore.RemoteProtocolError("the answer is not HTTP/2")
            end = _FRAME_HEAD + length
            if len(self._unread) < end:
                return
            frame = bytes(self._unread[:end])
            del self._unread[:end]
            yield frame

    def _take(self, frame: bytes) -> None:
        self._frames += 1
        if frame[3] == _GOAWAY:
            self._be_sent_away(frame[_FRAME_HEAD:])
            return
        try:
            events = self._h2.receive_data(frame)
        except ProtocolError as e:
            raise httpcore.RemoteProtocolError("the answer is not HTTP/2") from e
        for event in events:
            self._note(event)

    def _be_sent_away(self, said: bytes) -> None:
        """The server wants no more requests, and may yet answer the one under way. Source: RFC 9113, section 6.8."""
        self._over = True
        last, error = int.from_bytes(said[:4], "big") & 0x7FFFFFFF, int.from_bytes(said[4:8], "big")
        if error or self._stream_id is None or self._stream_id > last:
            raise httpcore.RemoteProtocolError(_HUNG_UP)

    def _note(self, event: Event) -> None:
        if self._stream_id is None or getattr(event, "stream_id", None) != self._stream_id:
            return
        match event:
            case ResponseReceived():
                self._head = event
            case DataReceived():
                self._chunks.append(event.data)
                self._h2.acknowledge_received_data(event.flow_controlled_length, self._stream_id)
            case StreamEnded():
                self._ended = True
            case StreamReset() if not self._ended:
                raise httpcore.RemoteProtocolError(_HUNG_UP)

    def can_handle_request(self, origin: httpcore.Origin) -> bool:
        """Whether it leads there."""
        return origin == self._origin

    def is_available(self) -> bool:
        """Whether it takes a request now."""
        return self._state is _State.IDLE

    def is_idle(self) -> bool:
        """The same: there is one at a time."""
        return self._state is _State.IDLE

    def has_expired(self) -> bool:
        """Whether it has been idle for too long. One that the server has closed is found out when it is used."""
        return self._state is _State.IDLE and self._clock.monotonic() > self._expires

    def is_closed(self) -> bool:
        """Whether it is of no use."""
        return self._state is _State.CLOSED

    def info(self) -> str:
        """What it is, for who looks at the pool."""
        return f"{str(self._origin)!r}, HTTP/2, {self._state.name}"


class _Body:
    """What httpcore reads a response from."""

    def __init__(self, connection: Http2Connection) -> None:
        self._connection = connection

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._connection.chunks()

    async def aclose(self) -> None:
        await self._connection.finish()


def _said(request: httpcore.Request) -> list[tuple[bytes, bytes]]:
    """The request's headers as HTTP/2 has them; no size of a later post tells what was secret in one of them.

    Source: RFC 9113, section 8.3.1; RFC 7541, section 7.1.3.
    """
    named = [(name.lower(), value) for name, value in request.headers]
    if not all(_VALUE.fullmatch(value) for _, value in named):
        raise httpcore.LocalProtocolError("a header's value has control characters")
    host = next(value for name, value in named if name == b"host")
    url = request.url
    pseudo = [(b":method", request.method), (b":scheme", url.scheme), (b":authority", host), (b":path", url.target)]
    return pseudo + [NeverIndexedHeaderTuple(name, value) for name, value in named if name != b"host"]


def _read(head: ResponseReceived) -> tuple[int, list[tuple[Any, Any]]]:
    """Status and headers. h2 has seen to it that there is one status, but not to what it is."""
    status = next((value for name, value in head.headers if name == b":status"), b"")
    if not _STATUS.fullmatch(status):
        raise httpcore.RemoteProtocolError("the answer has no status")
    return int(status), [(name, value) for name, value in head.headers if not name.startswith(b":")]
