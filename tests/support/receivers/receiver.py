"""HTTP server for webhooks that runs in a thread, records requests and misbehaves on demand.

    with receiver() as hooks:
        hooks.plan("/hook", [500, retry_after(2), HANG_UP])     # then 200
        ... post to hooks.url("/hook") ...
        first, *more = hooks.wait_for("/hook", 4)

A step of a plan is a status, a `Reply` or a misbehaviour. The server listens on 127.0.0.1, and also accepts requests
from other processes of this machine.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.support.waiting import eventually, eventually_async

MOST_HEAD = 1 << 20
FOR_EVER = 3600.0
PHRASE = b"As Planned"


@dataclass(frozen=True)
class ReceivedPost:
    """Received request."""

    number: int
    """Number of the request, counted from 1 over all paths."""
    at: float
    """Time at which the request was complete, in seconds since the epoch."""
    method: str
    path: str
    """Path with its query."""
    headers: dict[str, str]
    """Headers by name, in lower case."""
    body: bytes = field(repr=False)

    def json(self) -> Any:
        """Return the parsed body."""
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """Valid response, sent after `wait` seconds."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    wait: float = 0.0


Misbehaviour = Callable[[asyncio.StreamWriter, ReceivedPost], Awaitable[None]]
"""Function that writes a response, after which the server closes the connection."""
Step = int | Reply | Misbehaviour


def slow(seconds: float, status: int = 200) -> Reply:
    """Respond after `seconds`."""
    return Reply(status, wait=seconds)


def retry_after(delay: float | str, status: int = 429) -> Reply:
    """Respond with a Retry-After header in seconds or as an HTTP date."""
    return Reply(status, (("Retry-After", str(delay)),))


def redirect(to: str, status: int = 302) -> Reply:
    """Redirect to a URL."""
    return Reply(status, (("Location", to),))


def silent() -> Misbehaviour:
    """Send no response and keep the connection open."""

    async def stays(writer: asyncio.StreamWriter, _: ReceivedPost) -> None:
        await asyncio.sleep(FOR_EVER)

    return stays


def together(count: int) -> Misbehaviour:
    """Respond to `count` requests after all of them have arrived."""
    all_are_here = asyncio.Barrier(count)

    async def answers(writer: asyncio.StreamWriter, _: ReceivedPost) -> None:
        await all_are_here.wait()
        writer.write(_head(200, (("Content-Length", "0"),)))

    return answers


def once_set(event: threading.Event) -> Misbehaviour:
    """Respond after the test has set `event`."""

    async def answers(writer: asyncio.StreamWriter, _: ReceivedPost) -> None:
        await asyncio.to_thread(event.wait, FOR_EVER)
        writer.write(_head(200, (("Content-Length", "0"),)))

    return answers


def writes(data: bytes) -> Misbehaviour:
    """Write `data` and disconnect."""

    async def writes_it(writer: asyncio.StreamWriter, _: ReceivedPost) -> None:
        writer.write(data)

    return writes_it


def endless(beginning: bytes, repetition: bytes, every: float = 0.0) -> Misbehaviour:
    """Write `beginning`, and then `repetition` every `every` seconds until the client disconnects."""

    async def goes_on(writer: asyncio.StreamWriter, _: ReceivedPost) -> None:
        writer.write(beginning)
        while True:
            writer.write(repetition)
            await writer.drain()
            await asyncio.sleep(every)

    return goes_on


def echo(status: int = 500) -> Misbehaviour:
    """Respond with the headers and the body of the request, as careless servers do."""

    async def writes_request(writer: asyncio.StreamWriter, got: ReceivedPost) -> None:
        body = json.dumps(got.headers).encode() + b"\n" + got.body
        headers = [(f"X-Echo-{name}", value) for name, value in got.headers.items()]
        writer.write(_head(status, (*headers, ("Content-Length", str(len(body))))) + body)

    return writes_request


def huge_body(status: int = 200) -> Misbehaviour:
    """Announce a body of a terabyte, and send it until the client disconnects."""
    return endless(_head(status, (("Content-Length", str(1 << 40)),)), b"x" * 65536)


def dripping_body(status: int = 200) -> Misbehaviour:
    """Announce a body of a megabyte, and send it byte by byte."""
    return endless(_head(status, (("Content-Length", str(1 << 20)),)), b"x", 0.05)


def _head(status: int, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return b"HTTP/1.1 %d %s\r\n%s\r\n" % (status, PHRASE, lines.encode("latin-1"))


HANG_UP = writes(b"")
BREAK_OFF = writes(_head(200, (("Content-Length", "1000"),)) + b"half of it")
GARBAGE = writes(b"\x16\x03\x01SSH-2.0-OpenSSH_9.2\r\n" * 20 + b"\r\n\r\n")
ENDLESS_HEADERS = endless(b"HTTP/1.1 200 OK\r\n", b"X-More: " + b"x" * 1000 + b"\r\n")


async def _while_connected(reader: asyncio.StreamReader, response_coroutine: Coroutine[Any, Any, bool]) -> bool:
    """Return the result of `response_coroutine`, or False if the client disconnects first."""
    answer, hung_up = asyncio.create_task(response_coroutine), asyncio.create_task(_hung_up(reader))
    try:
        await asyncio.wait({answer, hung_up}, return_when=asyncio.FIRST_COMPLETED)
        return await answer if answer.done() else False
    finally:
        for task in (answer, hung_up):
            task.cancel()
        await asyncio.gather(answer, hung_up, return_exceptions=True)


async def _hung_up(reader: asyncio.StreamReader) -> None:
    """Wait until the client has disconnected, without reading the next request."""

    async def is_at_end() -> bool:
        return reader.at_eof()

    await eventually_async(is_at_end)


class Receiver:
    """Receiver of webhooks. Create it with `receiver`, and call the methods in the thread of the test."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._lock = threading.Lock()
        self._plans: defaultdict[str, deque[Step]] = defaultdict(deque)
        self._then: dict[str, Step] = {}
        self._got: list[ReceivedPost] = []
        self._under_way: Counter[str] = Counter()
        self._most: Counter[str] = Counter()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="receiver", daemon=True)
        self.port: int = self._socket.getsockname()[1]
        self.connections = 0
        """Number of accepted connections."""
        self.open = 0
        """Number of open connections."""

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        """Return the URL of `path`."""
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}{path}"

    def plan(self, path: str, steps: Iterable[Step], *, then: Step = 200) -> None:
        """Set the responses of `path`: one step for each of the next requests, and `then` for all later requests."""
        with self._lock:
            self._plans[path] = deque(steps)
            self._then[path] = then

    def requests(self, path: str | None = None) -> list[ReceivedPost]:
        """Return the requests to `path`, or to all paths if `path` is None, in order. `path` has no query."""
        with self._lock:
            return [got for got in self._got if path is None or got.path.partition("?")[0] == path]

    def wait_for(self, path: str | None = None, count: int = 1, within: float = 60.0) -> list[ReceivedPost]:
        """Wait until `requests` returns at least `count` requests for `path`, and return them."""
        return eventually(
            lambda: got if len(got := self.requests(path)) >= count else [], within=within, what=f"{count} to {path}"
        )

    def most_at_once(self, path: str) -> int:
        """Return the highest number of concurrent requests to `path` so far."""
        with self._lock:
            return self._most[path]

    def start(self) -> None:
        """Start the thread and the server."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(10)

    def stop(self) -> None:
        """Close all connections and stop the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _serve(self) -> None:
        self._server = await asyncio.start_server(self._talk, sock=self._socket, ssl=self._tls, limit=MOST_HEAD)

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await _while_connected(reader, self._answer(await self._read(reader), writer)):
                    pass
        finally:
            self.open -= 1
            with suppress(OSError, RuntimeError):
                writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> ReceivedPost:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        method, path, _ = first.split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return self._note(method, path, headers, body)

    def _note(self, method: str, path: str, headers: dict[str, str], body: bytes) -> ReceivedPost:
        with self._lock:
            got = ReceivedPost(len(self._got) + 1, time.time(), method, path, headers, body)
            self._got.append(got)
        return got

    @contextmanager
    def _next_step(self, got: ReceivedPost) -> Iterator[Step]:
        """Yield the planned step of a request. The request counts as pending while the block runs."""
        path = got.path.partition("?")[0]
        with self._lock:
            step = self._plans[path].popleft() if self._plans[path] else self._then.get(path, 200)
            self._under_way[path] += 1
            self._most[path] = max(self._most[path], self._under_way[path])
        try:
            yield step
        finally:
            with self._lock:
                self._under_way[path] -= 1

    async def _answer(self, got: ReceivedPost, writer: asyncio.StreamWriter) -> bool:
        """Respond to a request. Return True if the connection stays open."""
        with self._next_step(got) as step:
            if not isinstance(step, int | Reply):
                await step(writer, got)
                return False
            reply = Reply(step) if isinstance(step, int) else step
            await asyncio.sleep(reply.wait)
            length = (("Content-Length", str(len(reply.body))),)
            writer.write(_head(reply.status, (*reply.headers, *length)) + reply.body)
            await writer.drain()
            return True


@contextmanager
def receiver(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Run a receiver. If `tls` is given, the receiver serves HTTPS."""
    server = Receiver(tls)
    server.start()
    try:
        yield server
    finally:
        server.stop()
