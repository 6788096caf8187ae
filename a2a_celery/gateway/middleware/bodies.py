"""Checks of request bodies (size, media type and JSON), and middleware that sends response bodies in pieces and out of
caches.

The checks are needed because the SDK's endpoints accept any media type and size, and map some invalid JSON (bad
UTF-8, NaN, deep nesting) to an internal error.

Source: A2A specification 9.1 and 11.1 (media types), 5.4 (ContentTypeNotSupportedError is 400 over HTTP+JSON, not 415).
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from math import isinf
from typing import Any, NoReturn

from a2a.utils.errors import ContentTypeNotSupportedError, InvalidRequestError
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...clock import SYSTEM_CLOCK, Clock
from ...integrations.starlette import set_body, set_json
from ...lifecycle import references
from ...operations.requests import MAX_JSON_VALUES
from ...store.blobs.blob_store import reserve_memory
from ..gate import SMALL, Gate, HeavyWork, process
from ..protocol_errors import RequestTooLargeError
from ..shutdown import expect_incomplete_response

logger = logging.getLogger(__name__)

MEDIA_TYPES = ("application/json", "application/a2a+json")
"""Media types of a request's body."""

PIECE = 256 * 1024
"""Maximum number of bytes in one send. If the client is slow, the server delays the next send."""

MAX_JSON_DEPTH = 100
"""Maximum nesting depth of a body. `check_values` enforces a smaller limit on data and metadata."""

COUNT_SLICE = 1 << 16
"""Number of bytes of a body in which values are counted without an interruption."""

TOO_MANY_VALUES = f"The body has more than {MAX_JSON_VALUES} values: send large data as a file part"

SEPARATORS = (b",", b"[", b"{")
"""Bytes that separate values. Each value except the first follows a separator."""

_TO_SEPARATOR = re.compile(
    rb"""
    (?: [^",\[{]++                                  # anything else
      | " (?: [^"\\]++ | \\. )*+ (?: " | \\?\Z )   # a string, whose end may be missing
      | [\[{] [ \t\r\n]*+ [\]}]                     # an empty list or object
    )*+
    (?: [,\[{] | \Z )
    """,
    re.DOTALL | re.VERBOSE,
)
"""Pattern of the text up to the next separator outside of strings. The pattern matches at every position, so a search
takes linear time."""

BODY_TIMEOUT = 30.0
"""Seconds within which a body must arrive. A large body has more time; see `MIN_BODY_RATE`."""

MIN_BODY_RATE = 1 << 14
"""Number of received bytes that extends `BODY_TIMEOUT` by one second."""


def no_limit(size: int) -> None:
    """Accept any number of bytes."""


async def receive_body(
    request: Request, gate: Gate, agent: str, owner: str, max_bytes: int, *, may_be_empty: bool = False
) -> None:
    """Read the body of `request`, and store it in the request for the endpoint.

    Args:
        request: Request with the body.
        gate: Gate of the process.
        agent: Agent that receives the request.
        owner: Owner of the request, or "" for an unauthenticated caller.
        max_bytes: Maximum size of the body.
        may_be_empty: See `require_json`. The body of a method without a request body is not parsed.

    Raises:
        LimitExceededError: The owner has ignored a Retry-After, or the owner's bodies together are too large.
        A2AError: See `require_json`.
    """
    scope = references.Scope(owner=owner)
    if may_be_large(request):
        await gate.require_token(agent, owner)
        await gate.pace(scope, int(request.headers.get("content-length") or 0))
    with gate.arriving_body(agent, owner) as count:
        if may_be_empty and request.method not in ("POST", "PUT", "PATCH"):
            await read_bounded(request, max_bytes, count)  # the SDK reads the body before it streams
        else:
            work = partial(gate.work, scope)
            await require_json(request, max_bytes, may_be_empty=may_be_empty, count=count, work=work)


def may_be_large(request: Request) -> bool:
    """Return True if the body of `request` may exceed `SMALL`."""
    declared_length = request.headers.get("content-length", "0" if request.method == "GET" else "")
    return not declared_length.isdigit() or int(declared_length) > SMALL


async def _run(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


async def require_json(
    request: Request,
    max_bytes: int,
    *,
    may_be_empty: bool = False,
    count: Callable[[int], None] = no_limit,
    work: HeavyWork = _run,
) -> None:
    """Read and check the JSON body, and store it in the request for the endpoint.

    Args:
        request: Request with the body.
        max_bytes: Maximum size of the body.
        may_be_empty: True to accept an empty body, and to reject any JSON value other than an object.
        count: See `read_bounded`.
        work: Function that executes heavy work, to parse a body that is larger than `SMALL`.

    Raises:
        RequestTooLargeError: The body is too large.
        ContentTypeNotSupportedError: The media type of the body is not JSON.
        InvalidRequestError: The body is not valid JSON, or does not arrive in time.
        LimitExceededError: `count` has refused the body.
    """
    body = await read_bounded(request, max_bytes, count)
    if not body and may_be_empty:
        return
    _require_media_type(request)
    value = await process(work, len(body) > SMALL, _parse, body)
    set_json(request, value)
    if not isinstance(value, dict) and may_be_empty:
        raise InvalidRequestError("The body must be a JSON object")


def _parse(body: bytes) -> Any:
    _require_few_values(body)
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_refuse_constant, parse_float=_finite)
        if b"\\" in body and (b"\\ud" in body or b"\\uD" in body):
            # an unpaired surrogate could be neither stored nor returned
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as e:
        raise InvalidRequestError(f"The body is not JSON: {_reason(e)}") from None
    _require_bounded(value)
    return value


def _require_media_type(request: Request) -> None:
    """Reject a body whose media type is missing or not in `MEDIA_TYPES`.

    Browsers send a preflight request before a page of another origin may send JSON, but not before the page sends a
    form, plain text, or a body without a media type.
    """
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() not in MEDIA_TYPES:
        raise ContentTypeNotSupportedError(f"Send JSON, with {' or '.join(MEDIA_TYPES)} in Content-Type")


async def read_bounded(
    request: Request,
    max_bytes: int,
    count: Callable[[int], None] = no_limit,
    *,
    timeout: float = BODY_TIMEOUT,
    min_rate: float = MIN_BODY_RATE,
) -> bytes:
    """Return the body, and store it in the request for later readers.

    Args:
        request: Request with the body.
        max_bytes: Maximum size of the body.
        count: Function that is called with the number of bytes received so far, and may refuse the body.
        timeout: Seconds within which the body must arrive.
        min_rate: Number of received bytes that extends `timeout` by one second.

    Raises:
        RequestTooLargeError: The body is too large. The rest of the body is not read.
        InvalidRequestError: The body does not arrive in time.
        LimitExceededError: `count` has refused the body.
    """
    content_length = request.headers.get("content-length", "")
    length = int(content_length) if content_length.isdigit() else None
    if length is not None and length > max_bytes:
        raise _too_large(max_bytes)
    chunks, size = [], 0
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(timeout) as limit:
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                count(size)
                chunks.append(chunk)
                if size != length:
                    limit.reschedule(began + timeout + size / min_rate)
    except TimeoutError:
        raise InvalidRequestError(
            "The body did not arrive in time: send it faster, or send large data by URL"
        ) from None
    body = b"".join(chunks)
    set_body(request, body)
    return body


def _too_large(max_bytes: int) -> RequestTooLargeError:
    return RequestTooLargeError(f"A request may have at most {max_bytes} bytes")


def _reason(error: ValueError | RecursionError) -> str:
    """Return the reason why the body is not JSON. Exception texts that describe Python instead of the body are not
    used."""
    match error:
        case json.JSONDecodeError():
            return f"{error.msg} at line {error.lineno}, column {error.colno}"
        case UnicodeDecodeError():
            return f"invalid UTF-8 at byte {error.start}"
        case UnicodeEncodeError():
            return "half a surrogate pair is not a character"
        case RecursionError():
            return "nested too deeply"
        case _NoValue():
            return str(error)
        case _:
            return "a number has too many digits"


class _NoValue(ValueError):
    pass


def _refuse_constant(name: str) -> NoReturn:
    raise _NoValue(f"{name} is not a JSON value")


def _finite(text: str) -> float:
    number = float(text)
    if isinf(number):  # protobuf would accept the number, but could not write it as JSON
        raise _NoValue(f"the number {text[:30]} is too large")
    return number


def _require_few_values(body: bytes) -> None:
    """Raise InvalidRequestError for too many values before the body is parsed, because parsing takes much time and
    memory."""
    slices = range(0, len(body), COUNT_SLICE)  # other threads can run between two slices
    if sum(body.count(each, at, at + COUNT_SLICE) for at in slices for each in SEPARATORS) > MAX_JSON_VALUES:
        ends = _TO_SEPARATOR.finditer(body)
        if next(islice(ends, MAX_JSON_VALUES + 1, None), None) is not None:  # the end of the body may match twice
            raise InvalidRequestError(TOO_MANY_VALUES)


def levels_of(value: Any) -> Iterator[list[Any]]:
    """Yield the values of each level of nesting in a JSON value. The function does not recurse, because the nesting is
    untrusted."""
    level = [value]
    while level:
        yield level
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]


def _require_bounded(value: Any) -> None:
    """Raise InvalidRequestError if there are too many values in `value`, or they are nested too deeply."""
    values = 0
    for depth, level in enumerate(levels_of(value)):
        values += len(level)
        if depth > MAX_JSON_DEPTH:
            raise InvalidRequestError(f"The body is nested more than {MAX_JSON_DEPTH} levels deep")
        if values > MAX_JSON_VALUES:
            raise InvalidRequestError(TOO_MANY_VALUES)


SEND_TIMEOUT = 30.0
"""Seconds that a client may take to receive a piece of a response for which memory is reserved."""


class SlowClient(Exception):
    """Error for a client that does not receive its response in time."""


class NoStoreMiddleware:
    """ASGI middleware that forbids caches to store responses, unless a route decides otherwise.

    A shared cache would return an old state of a task, or return a caller's task to another caller.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, and add ``Cache-Control: no-store`` to a response without Cache-Control."""

        async def send_uncached(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                if all(name != b"cache-control" for name, _ in headers):
                    message["headers"] = [*headers, (b"cache-control", b"no-store")]
            await send(message)

        await self._app(scope, receive, send_uncached if scope["type"] == "http" else send)


class LargeResponseMiddleware:
    """ASGI middleware that sends large bodies in pieces, so that the server does not buffer a second copy.

    Memory for large parts stays reserved until the last piece is sent. In a stream, the memory stays reserved until the
    next frame is sent. The connection of a client that does not receive a piece within `SEND_TIMEOUT` is closed.
    """

    def __init__(self, app: ASGIApp, clock: Clock = SYSTEM_CLOCK) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, and send its response bodies in pieces."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        owner = getattr(scope.get("user"), "display_name", "")
        with reserve_memory(owner) as reservation, suppress(SlowClient):
            is_stream, request_task = True, asyncio.current_task()

            async def send_in_time(message: Message) -> None:
                if reservation.budget is None:
                    await send(message)
                    return
                try:
                    async with self._clock.timeout(SEND_TIMEOUT):
                        await send(message)
                except TimeoutError:
                    reservation.release()
                    logger.info("a response was cut, because its client did not receive it in time")
                    expect_incomplete_response(request_task)
                    raise SlowClient from None

            async def send_in_pieces(message: Message) -> None:
                nonlocal is_stream
                if message["type"] != "http.response.body":
                    is_stream = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
                    await send(message)
                    return
                for piece in _pieces(message):
                    await send_in_time(piece)
                if is_stream or not message.get("more_body", False):
                    reservation.release()

            await self._app(scope, receive, send_in_pieces)


def _pieces(message: Message) -> Iterator[Message]:
    body = message.get("body", b"")
    if len(body) <= PIECE:
        yield message
        return
    more = message.get("more_body", False)
    for start in range(0, len(body), PIECE):
        last = start + PIECE >= len(body)
        yield {"type": message["type"], "body": body[start : start + PIECE], "more_body": more or not last}
