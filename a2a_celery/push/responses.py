"""Results of posts that are stored for operators: the beginning of the response as text, or the reason for a failure,
without secrets."""

from __future__ import annotations

import codecs
import html
import json
import logging
import os
import ssl
from collections.abc import Collection, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, cast

import httpcore

from ..clock import SYSTEM_CLOCK, Clock

MAX_RESPONSE_LENGTH = 4096
"""Maximum length of a stored response in characters."""
BODY_TIMEOUT = 2.0
"""Seconds after the status of a response within which the body is read."""
REDACTED = "[…]"


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    """HTTP response of a receiver, as shown to operators.

    Attributes:
        status: HTTP status.
        text: At most 4,096 characters of the body. Control characters except tabs and line breaks are replaced. The
            token, the credentials and the secret parts of the config's URL are redacted.
    """

    status: int
    text: str = ""


async def read_response(
    response: httpcore.Response, secrets: tuple[str, ...], clock: Clock = SYSTEM_CLOCK
) -> WebhookResponse:
    """Read the body for up to two seconds, truncate it to the stored length, and redact `secrets`.

    If the response is read to its end, the next post can reuse the connection.
    """
    forms = _encoded_forms(secrets)
    max_bytes = MAX_RESPONSE_LENGTH + max((len(form) for form in forms), default=0)
    body, is_complete = b"", False
    with suppress(httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, TimeoutError, OSError):
        async with clock.timeout(BODY_TIMEOUT), aclosing(cast(Any, response.aiter_stream())) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > max_bytes:
                    break
            else:
                is_complete = True
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(body[:max_bytes], final=is_complete)
    text = _redact(text, forms, is_complete=is_complete)
    printable = "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
    return WebhookResponse(response.status, printable[:MAX_RESPONSE_LENGTH])


def _redact(text: str, forms: Collection[str], *, is_complete: bool) -> str:
    """Replace each of `forms` in `text` with `REDACTED`.

    If `text` is incomplete, also replace the beginning of a form at the end of `text`. Although `text` is longer than a
    stored response, the end of `text` may be stored, because replacements shorten the text.
    """
    ranges = [(start, start + len(form)) for form in forms for start in _positions(text, form)]
    if not is_complete:
        overlap = max((_overlap(text, form) for form in forms), default=0)
        ranges += [(len(text) - overlap, len(text))] if overlap else []
    result, position = "", 0
    for start, end in sorted(ranges):
        if start > position or not position:
            result += text[position:start] + REDACTED
        position = max(position, end)
    return result + text[position:]


def _positions(text: str, form: str) -> Iterator[int]:
    position = text.find(form)
    while position >= 0:
        yield position
        position = text.find(form, position + len(form))


def _overlap(text: str, form: str) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of `form`."""
    return next((n for n in range(min(len(text), len(form)), 0, -1) if text.endswith(form[:n])), 0)


def _encoded_forms(secrets: tuple[str, ...]) -> set[str]:
    """Return the secrets as plain text, in JSON (with and without escaped slashes) and in HTML."""
    forms: set[str] = set()
    for secret in filter(None, secrets):
        in_json = json.dumps(secret)[1:-1]
        forms |= {secret, in_json, in_json.replace("/", "\\/"), html.escape(secret)}
    return forms


logger = logging.getLogger(__name__)


def is_disconnect(error: BaseException) -> bool:
    """Return True if `error` may mean that the server has closed the connection."""
    if isinstance(error, httpcore.RemoteProtocolError):
        return "disconnected" in str(error)
    return isinstance(error, httpcore.ReadError | httpcore.WriteError)


def describe_failure(error: Exception, timeout: float) -> str:
    """Return the reason why a post received no response. `timeout` is the timeout of the post in seconds."""
    match error:
        case TimeoutError() | httpcore.ReadTimeout() | httpcore.WriteTimeout() | httpcore.PoolTimeout():
            return f"no response within {timeout:g} s"
        case httpcore.ConnectTimeout():
            return "the connection attempt timed out"
        case httpcore.ConnectError() | httpcore.NetworkError() | OSError():
            return _describe_network_error(_root_cause(error))
        case httpcore.RemoteProtocolError() if is_disconnect(error):
            return "the connection was closed without a response"
        case httpcore.RemoteProtocolError():
            return "the response is not HTTP"
        case _:
            logger.warning("a post failed with an unexpected error", exc_info=error)
            return f"the post failed: {type(error).__name__}"


def _describe_network_error(cause: BaseException) -> str:
    match cause:
        case ssl.SSLCertVerificationError():
            return f"TLS: {cause.verify_message.partition(',')[0]}"  # the rest may contain a host name
        case ssl.SSLError():
            return f"TLS: {(cause.reason or 'the handshake failed').replace('_', ' ').lower()}"
        case ConnectionRefusedError():
            return "the connection was refused"
        case OSError() if cause.errno:
            return f"no connection: {os.strerror(cause.errno)}"  # the text of the error contains an address
        case _:
            return f"no connection: {cause}" if isinstance(cause, httpcore.ConnectError) else "the connection broke"


def _root_cause(error: BaseException) -> BaseException:
    """Return the innermost cause of `error`. httpcore passes the cause as an argument instead of setting it."""
    while True:
        inner = error.__cause__ or next(iter(error.args), None)
        if not isinstance(inner, BaseException):
            return error
        error = inner
