"""Sender of concurrent hostile requests that checks each response for conformance to the protocol."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property

import grpc
import grpc.aio

from tests.support.clients.bindings import KNOWN_RPC_CODES
from tests.support.hostile.requests import Grpc, Http, Request
from tests.support.waiting import LIMIT

SILENCE = 0.5
AT_ONCE = 64
AT_MOST = 1 << 18
"""Number of bytes of a response after which the client disconnects."""

FOREIGN_HOST = -31403
"""JSON-RPC code of a gateway without authentication for a forbidden `Host` header."""

MOST_WRONG = 100
"""Maximum number of recorded problems."""

BAD_CODES = ("UNKNOWN", "INTERNAL", "DATA_LOSS", "UNAVAILABLE", "DEADLINE_EXCEEDED")
INTERNALS = (
    "Traceback", 'File "', "a2a_celery.", "a2a.server", "site-packages", "asyncio.", "<class '", " object at 0x",
    "redis",
    "starlette", "uvicorn", "pydantic", "google.protobuf", "kombu", "Error(", "Exception(", "set()", "/usr/", "/root",
    "/home/", "/tmp/", ".py",
)  # fmt: skip
"""Texts that a response may only contain if the request contains them."""


class HostileRun:
    """Run of hostile requests against a gateway. `secrets` are texts that no response may contain."""

    def __init__(self, url: str, grpc_address: str, secrets: Iterable[str]) -> None:
        self._host, _, port = url.rpartition("/")[2].partition(":")
        self._port = int(port)
        self._grpc = grpc_address
        self._secrets = tuple(secrets)
        self._words = (*INTERNALS, socket.gethostname() + ".", *self._secrets)
        self._known: set[int] = set()
        self._under_way: set[asyncio.Task[None]] = set()
        self.answered: Counter[tuple[str, str]] = Counter()
        """Number of responses by binding and status."""
        self.wrong: list[str] = []

    async def send(self, requests: Sequence[Request]) -> None:
        """Send the requests that have not yet been sent. Wait until fewer than `AT_ONCE` requests are pending."""
        new = [request for request in dict.fromkeys(requests) if hash(request) not in self._known]
        self._known |= set(map(hash, new))
        self._under_way |= {asyncio.create_task(self._make_request(request)) for request in new}
        while len(self._under_way) >= AT_ONCE:
            done_tasks, self._under_way = await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
            for item in done_tasks:
                item.result()

    async def aclose(self) -> None:
        """Wait for the pending responses and disconnect."""
        await asyncio.gather(*self._under_way)
        await self._channel.close()

    @cached_property
    def _channel(self) -> grpc.aio.Channel:
        """gRPC channel. The first use creates the channel on the running event loop."""
        return grpc.aio.insecure_channel(self._grpc)

    @property
    def request_count(self) -> int:
        return sum(self.answered.values())

    def table(self) -> str:
        """Return the counts of the responses, one line per binding."""
        lines = [f"{self.request_count} requests"]
        for binding in sorted({binding for binding, _ in self.answered}):
            status_counts = sorted((status, n) for (b, status), n in self.answered.items() if b == binding)
            lines.append(
                f"{binding:>14}: {sum(n for _, n in status_counts):6} = "
                + ", ".join(f"{s} {n}" for s, n in status_counts)
            )
        return "\n".join(lines)

    async def _make_request(self, request: Request) -> None:
        try:
            if isinstance(request, Grpc):
                status, answer, sent_bytes = *(await self._call(request)), request.body
            else:
                status, answer, sent_bytes = *(await self._exchange(request)), request.line
        except TimeoutError:
            status, answer, sent_bytes = "no answer in time", b"", b""
            self.wrong.append(f"{request!r:.3000}: no answer within {LIMIT:g} s")
        self.answered[request.binding, status] += 1
        problems = [*self._misbehaviour(request, status, answer), *self._leaks(answer, sent_bytes)]
        if problems and len(self.wrong) < MOST_WRONG:
            self.wrong.append(f"{', '.join(problems)}: {request!r:.3000} → {status} {answer[:1500]!r}")

    async def _exchange(self, request: Http) -> tuple[str, bytes]:
        """Send a request. Return the status of the first response and all received bytes."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        came = b""
        try:
            with suppress(ConnectionError):
                writer.write(request.line)
                await writer.drain()
                if request.half:
                    return "hung up", b""
                came = await self._answer(reader, 2 * SILENCE if request.open_end else LIMIT)
                if not came and request.open_end:
                    return "waited for more", b""
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        status = re.match(rb"HTTP/1\.[01] (?:100 Continue\r\n.*?HTTP/1\.[01] )?(\d{3})", came, re.DOTALL)
        return (status[1].decode() if status else "closed"), came

    async def _answer(self, reader: asyncio.StreamReader, timeout: float) -> bytes:
        """Read a response until the gateway disconnects, or until a timeout without new bytes.

        The timeout is `timeout` seconds. After a complete response or the start of a response without a length, the
        timeout is `SILENCE`.
        """
        came = b""
        while len(came) < AT_MOST:
            try:
                more = await asyncio.wait_for(reader.read(1 << 16), SILENCE if _is_whole(came) else timeout)
            except TimeoutError:
                if _is_whole(came) or timeout < LIMIT:
                    break
                raise
            if not more:
                break
            came += more
        return came

    async def _call(self, request: Grpc) -> tuple[str, bytes]:
        """Make a call. Return the name of the status, and the received bytes with the status message and the
        metadata."""
        came = b""
        if not request.streams:
            unary = self._channel.unary_unary(request.method)(request.body, metadata=request.metadata, timeout=LIMIT)
            with suppress(grpc.aio.AioRpcError):
                came = await unary
            return await _call_status(unary, came)
        stream = self._channel.unary_stream(request.method)(request.body, metadata=request.metadata, timeout=LIMIT)
        try:
            while True:
                more = await asyncio.wait_for(stream.read(), SILENCE if came else LIMIT)
                if more is grpc.aio.EOF:
                    break
                came += more  # type: ignore[operator]
        except TimeoutError:
            stream.cancel()
            return "streams on", came
        except grpc.aio.AioRpcError:
            pass
        return await _call_status(stream, came)

    def _leaks(self, answer: bytes, sent_bytes: bytes) -> list[str]:
        # most errors quote the request, and a request may contain such a text
        response, request_text = answer.decode("utf-8", "replace"), sent_bytes.decode("utf-8", "replace")
        # responses of the operator API contain names of workers and versions of libraries
        words = self._secrets if b" /operator/v1/" in sent_bytes else self._words
        return [f"contains {word!r}" for word in words if word in response and word not in request_text]

    def _misbehaviour(self, request: Request, status: str, answer: bytes) -> list[str]:
        if isinstance(request, Grpc):
            return [f"ends {status}"] if status in BAD_CODES else []
        leads_to_page = status == "307" and b"\r\nlocation: ui/\r\n" in answer
        if status.startswith(("3", "5")) and not leads_to_page:
            return [f"is a {status}"]
        if b"/metrics" in request.line:  # metrics are not a response of the protocol
            return []
        known_codes = KNOWN_RPC_CODES - {-32603} | {FOREIGN_HOST}
        return [f"has the error {code}" for code in _codes(answer) if code not in known_codes]


async def _call_status(call: grpc.aio.Call, came: bytes) -> tuple[str, bytes]:
    metadata = b"".join(v if isinstance(v, bytes) else v.encode() for _, v in await call.trailing_metadata() or ())
    return (await call.code()).name, came + (await call.details() or "").encode() + metadata


def _is_whole(came: bytes) -> bool:
    """Return True if a response is complete, or has started without a Content-Length."""
    head, separator, body = came.partition(b"\r\n\r\n")
    if not separator or head.startswith(b"HTTP/1.1 100"):
        return False
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return len(body) >= int(length[1]) if length else True


def _codes(answer: bytes) -> list[int]:
    """Return the codes of the JSON-RPC errors in a response."""
    codes = []
    for text in re.findall(rb'\{"(?:jsonrpc|id|error)".*\}', answer):
        with suppress(ValueError):
            error = json.loads(text).get("error")
            if isinstance(error, dict) and isinstance(error.get("code"), int) and error["code"] < 0:
                codes.append(error["code"])
    return codes
