"""Reading the body of a request: one that is too large, of another media type, or not JSON is nobody's to answer.

The SDK reads any media type and any size, and answers some of what is not JSON (bad UTF-8, NaN, nested beyond reason)
with an internal error.

Source: A2A specification 9.1 and 11.1 (media types), 5.4 (ContentTypeNotSupportedError is 400 over HTTP+JSON, not 415).
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from a2a.utils.errors import ContentTypeNotSupportedError, InvalidRequestError
from starlette.requests import Request

from .faults import RequestTooLargeError

MEDIA_TYPES = ("application/json", "application/a2a+json")
"""What a request's body may be; a request that does not say is taken for JSON."""

MAX_JSON_DEPTH = 100
"""As protobuf's own JSON parser allows; beyond, the request is refused rather than half understood."""

MAX_JSON_VALUES = 100_000
"""Each value costs a gateway's loop some microseconds, here and in the SDK: millions would hold up everybody."""


async def require_json(request: Request, max_bytes: int, *, may_be_empty: bool = False) -> None:
    """Reads the body, bounded, and keeps it for the endpoint.

    Raises:
        RequestTooLargeError, ContentTypeNotSupportedError, InvalidRequestError: nobody could use it.
    """
    body = await read_bounded(request, max_bytes)
    if not body and may_be_empty:
        return
    _require_media_type(request)
    try:
        parsed = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
        if b"\\ud" in body or b"\\uD" in body:
            json.dumps(parsed, ensure_ascii=False).encode()  # half a surrogate pair could be neither kept nor echoed
    except (ValueError, RecursionError) as e:
        raise InvalidRequestError(f"The body is not JSON: {_reason(e)}") from None
    _require_bounded(parsed)
    request._json = parsed  # what request.json() would keep: the endpoint need not parse again
    if not isinstance(parsed, dict) and may_be_empty:
        raise InvalidRequestError("The body is a JSON object")


def _require_media_type(request: Request) -> None:
    """A browser sends a form, or plain text, to anywhere without asking; it asks before it sends JSON."""
    given = request.headers.get("content-type", "")
    if given and given.partition(";")[0].strip().lower() not in MEDIA_TYPES:
        raise ContentTypeNotSupportedError(f"The body is {' or '.join(MEDIA_TYPES)}: say so in Content-Type")


async def read_bounded(request: Request, max_bytes: int) -> bytes:
    """The body, kept for whoever reads it again.

    Raises:
        RequestTooLargeError: it is larger; no more of it is read.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
    request._body = b"".join(chunks)  # what request.body() would keep
    return request._body


def forget_body(request: Request) -> None:
    """Lets go of what was read, and parsed, of an answered `request`: a stream is written for as long as its client
    likes, and Starlette holds its request meanwhile."""
    vars(request).pop("_json", None)
    request._body = b""


def _too_large(max_bytes: int) -> RequestTooLargeError:
    return RequestTooLargeError(f"A request may have {max_bytes} bytes at most")


def _reason(error: ValueError | RecursionError) -> str:
    """What is wrong with the text; an exception's own words are partly about us."""
    match error:
        case json.JSONDecodeError():
            return f"{error.msg} at line {error.lineno}, column {error.colno}"
        case UnicodeDecodeError():
            return f"no UTF-8 at byte {error.start}"
        case UnicodeEncodeError():
            return "half a surrogate pair is no character"
        case RecursionError():
            return "nested too deeply"
        case _NoValue():
            return str(error)
        case _:
            return "a number has too many digits"


class _NoValue(ValueError):
    pass


def _refuse_constant(name: str) -> NoReturn:
    raise _NoValue(f"{name} is no JSON value")


def _require_bounded(value: Any) -> None:
    """Raises InvalidRequestError for too many values, or too deep; without recursion, for the value may be hostile."""
    depth, values, level = 0, 0, [value]
    while level:
        values += len(level)
        if depth > MAX_JSON_DEPTH:
            raise InvalidRequestError(f"The body is nested more than {MAX_JSON_DEPTH} deep")
        if values > MAX_JSON_VALUES:
            raise InvalidRequestError(
                f"The body has more than {MAX_JSON_VALUES} values: send large data as a file part"
            )
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        depth += 1
