"""Errors of calls to remote agents, and their classification by whether a retry may succeed.

An error that the protocol defines is raised as the SDK's own class (``a2a.utils.errors``: TaskNotFoundError,
InvalidParamsError …). `translate_errors` converts all other errors of the SDK's client to a class of this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from typing import Any

import httpx
from a2a.client import A2AClientError, A2AClientTimeoutError
from a2a.utils.errors import (
    JSON_RPC_ERROR_CODE_MAP,
    A2AError,
    MethodNotFoundError,
    TaskNotCancelableError,
    TaskNotFoundError,
)
from google.protobuf.json_format import ParseError, SerializeToJsonError
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from ..clock import SYSTEM_CLOCK
from ..delays import parse_retry_after
from ..errors import A2ACeleryError
from .event_parser import UNREADABLE
from .result import Result

TOO_MANY = 429
TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses of a proxy that cannot reach its server, or of a server that is starting or overloaded."""

LEGACY_PATHS = re.compile("/v1/(tasks/|message:)")
"""Paths of protocol 0.3 over HTTP+JSON."""

LEGACY_STATUS: dict[int, type[A2AError]] = {404: TaskNotFoundError, 409: TaskNotCancelableError}

TRANSIENT_GRPC = ("UNAVAILABLE", "CANCELLED", "RESOURCE_EXHAUSTED", "ABORTED", "DEADLINE_EXCEEDED")

TOO_LARGE = "message larger than max"
"""Part of the text of gRPC's RESOURCE_EXHAUSTED error for a message that is too large. A retry cannot resolve this
error."""


MAX_TEXT_LENGTH = 1000
"""Maximum number of characters of a server's text in an error."""


class RemoteError(A2ACeleryError):
    """Error for a failed call to a remote agent. The A2A protocol does not define the reason."""


class AgentUnreachable(RemoteError):
    """Error for an agent that sent no response or an incomplete response, or whose server responded with a transient
    error such as 503. A retry may succeed. The agent may have received the request.

    Attributes:
        retry_after: Seconds until the server accepts a retry (Retry-After), or None if the server sent no such value.
    """

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class TooManyRequests(AgentUnreachable):
    """Error for a request that the server rejected because of a rate limit, with HTTP 429 or with gRPC
    RESOURCE_EXHAUSTED and a retry delay. The agent has not received the request."""


class NotConnected(AgentUnreachable):
    """Error for a connection that was not established. The agent has not received the request."""


class ResponseLost(AgentUnreachable):
    """Error for a lost response to a message. The agent may have received the message, so a repeated message may be
    executed twice."""


class CallRefused(RemoteError):
    """Error for a call that the server refused for a reason outside the A2A protocol, usually because the credentials
    or the address are wrong.

    Attributes:
        status: HTTP status of the response, or None if there is none.
    """

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class InvalidResponse(RemoteError):
    """Error for a response that is not valid A2A, or is too large."""


class NoTransport(RemoteError):
    """Error for an agent whose card offers no interface that this client supports."""


class DeadlineExceeded(RemoteError, TimeoutError):
    """Error for a turn that took longer than its deadline. The task continues unless `cancel_on_exit` was set.

    Attributes:
        result: Result of the turn at the deadline. If the agent had not responded, the result contains only the id of
            the task that the call names, or is empty for a new task.
    """

    def __init__(self, text: str, result: Result) -> None:
        super().__init__(text)
        self.result = result


class TaskNotCompleted(RemoteError):
    """Error of `AgentSession.texts` for a task that ended in FAILED, REJECTED or CANCELED.

    Attributes:
        result: Result of the turn.
    """

    def __init__(self, result: Result) -> None:
        text = _line(result.message_text or "the agent gave no reason")
        super().__init__(f"task {result.task_id} is {result.state_name}: {text}")
        self.result = result


@contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Convert the errors that the SDK's client, httpx and the parsers raise in the block.

    Errors that the protocol defines are raised as the SDK's own classes, and others as errors of this module with `url`
    in their text. The text contains the server's own text, on one line, without control characters and limited to
    `MAX_TEXT_LENGTH` characters. The exceptions of the SDK and httpx, which add nothing to the text, are not chained.
    A request that JSON cannot represent raises a TypeError.
    """
    try:
        yield
    except RemoteError:
        raise
    except A2AClientTimeoutError as e:
        raise _unreachable(e, url) from None
    except A2AClientError as e:
        raise _of_legacy_http(e) or _of_client(e, url) from None
    except A2AError as e:
        legacy_error = _of_legacy_http(e) if isinstance(e, MethodNotFoundError) else None
        raise legacy_error or _readable(e) from None
    except httpx.HTTPStatusError as e:
        raise _of_status(e.response, url) from None
    except httpx.InvalidURL as e:
        raise CallRefused(f"{url} is not an address: {_line(e)}") from None
    except httpx.HTTPError as e:
        raise _unreachable(e, url) from None
    except SerializeToJsonError as e:  # NaN or an infinite number in the request
        raise TypeError(f"a message cannot carry this value: {_line(e)}") from None
    except (*UNREADABLE, DecodeError) as e:
        raise InvalidResponse(f"{url} sent an invalid A2A response: {_line(e)}") from e


def field_errors(error: A2AError) -> str:
    """Return the invalid fields in the data of `error` that its text omits, each as "; field: rule". Malformed data,
    which a server may send, is omitted."""
    errors = error.data.get("errors") if isinstance(error.data, Mapping) else None
    text = ""
    for wrong in errors if isinstance(errors, list) else ():
        match wrong:
            case {"field": str(field), "message": str(message)} if field not in str(error):
                text += f"; {field}: {message}"
    return text


def _readable(error: A2AError) -> A2AError:
    """Return a copy of `error` with a text that is readable, and without the traceback of the SDK."""
    cause, error = error.__cause__, copy(error)  # an exception that leaves a context manager keeps its traceback
    error.message = str(error.message)  # some servers send other JSON values
    error.data = error.data if isinstance(error.data, dict) else None
    if isinstance(cause, httpx.HTTPStatusError) and isinstance(error, MethodNotFoundError):
        sentence = _sentence(cause.response)
        error.message += f": {sentence}" if sentence else ""
    error.message = _line(f"{error.message}{field_errors(error)}") or type(error).message
    error.args = (error.message,)
    return error


def _of_legacy_http(error: A2AError | A2AClientError) -> A2AError | None:
    """Return the protocol error in a response of protocol 0.3 over HTTP+JSON. The SDK does not parse such responses.

    Servers of a2a-js 0.3 send the error code and a message. Servers of SDK 0.3 send a message and an HTTP status.

    Returns:
        The error, or None if the response is not of protocol 0.3 or has no protocol error.
    """
    cause = error.__cause__
    if not isinstance(cause, httpx.HTTPStatusError) or not LEGACY_PATHS.search(cause.request.url.path):
        return None
    try:
        body = cause.response.json()
    except (ValueError, RecursionError, httpx.ResponseNotRead):
        return None
    if not isinstance(body, dict) or not isinstance(message := body.get("message"), str):
        return None
    message = _line(message)
    for kind, code in JSON_RPC_ERROR_CODE_MAP.items():
        if body.get("code") == code:
            return kind(message)
    legacy = LEGACY_STATUS.get(cause.response.status_code)
    return None if legacy is None else legacy(message)


def _of_client(error: A2AClientError, url: str) -> RemoteError:
    cause = error.__cause__
    if isinstance(cause, httpx.HTTPStatusError):
        return _of_status(cause.response, url)
    if isinstance(cause, httpx.TransportError):
        return _unreachable(cause, url)
    # an error of grpc, which is an optional dependency
    if (code := getattr(cause, "code", None)) is not None and callable(code):
        name, details = code().name, _line(cause.details() or "no details")  # type: ignore[union-attr]
        retry_after = _grpc_retry_after(cause)
        if name == "RESOURCE_EXHAUSTED" and retry_after is not None:
            return TooManyRequests(f"{url} responded {name}: {details}", retry_after)
        if name in TRANSIENT_GRPC and TOO_LARGE not in str(error):
            kind = NotConnected if "failed to connect" in str(error) else AgentUnreachable
            return kind(f"{url} is unreachable: {name}: {details}", retry_after)
        return CallRefused(f"{url} responded {name}: {details}")
    if _is_transient_event(error):
        return AgentUnreachable(f"{url} ended the stream with an error: {_line(error)}")
    if isinstance(cause, json.JSONDecodeError | ParseError) or str(error).startswith("Invalid "):
        return InvalidResponse(f"{url} sent an invalid A2A response: {_line(error)}")
    return CallRefused(f"{url} refused the call: {_line(error)}")


def _is_transient_event(error: A2AClientError) -> bool:
    """Return True for the error event of a stream over HTTP+JSON whose code is a transient status. The SDK raises an
    error with the event's data as the text."""
    try:
        return json.loads(str(error))["error"]["code"] in TRANSIENT_STATUS
    except (ValueError, TypeError, LookupError, RecursionError):
        return False


def _of_status(response: httpx.Response, url: str) -> RemoteError:
    status = response.status_code
    retry_after = parse_retry_after(response.headers.get("retry-after", ""), SYSTEM_CLOCK.time())
    reason = _sentence(response) or {
        401: "check the credentials",
        403: "the credentials lack permission",
        404: "check the agent's address",
        TOO_MANY: "rate limit exceeded",
    }.get(status, "it may be starting, or overloaded" if status in TRANSIENT_STATUS else "")
    text = f"{url} responded {status}{': ' if reason else ''}{reason}"
    if status == TOO_MANY:
        return TooManyRequests(text, retry_after)
    return AgentUnreachable(text, retry_after) if status in TRANSIENT_STATUS else CallRefused(text, status)


def _sentence(response: httpx.Response) -> str:
    """Return the server's own text in the response to a failed request, or "" if there is none."""
    try:
        is_text = response.headers.get("content-type", "").startswith("text/plain")
        text = response.text if is_text else _message_in(response.json())
    except (ValueError, RecursionError, httpx.ResponseNotRead):
        return ""
    # the reason phrase of the status says less than our own advice
    return "" if text.strip().casefold() == response.reason_phrase.casefold() else _line(text)


def _message_in(body: Any) -> str:
    """Return the text of an error in the JSON of a binding or of a web framework, or "" if there is none."""
    match body:
        case (
            {"error": {"message": str(text)}}
            | {"message": str(text)}
            | {"detail": str(text)}
            | {"error_description": str(text)}
            | {"error": str(text)}
        ):
            return text
    return ""


def _grpc_retry_after(error: Any) -> float | None:
    """Return the seconds in the ``retry-after`` metadata or in a google.rpc.RetryInfo, or None."""
    metadata = {str(key).lower(): value for key, value in error.trailing_metadata() or ()}
    seconds = parse_retry_after(str(metadata.get("retry-after", "")), SYSTEM_CLOCK.time())
    if seconds is not None:
        return seconds
    status, retry_info = status_pb2.Status(), error_details_pb2.RetryInfo()
    with suppress(DecodeError):
        status.ParseFromString(metadata.get("grpc-status-details-bin", b""))
        if any(detail.Unpack(retry_info) for detail in status.details):
            return max(0.0, float(retry_info.retry_delay.seconds + retry_info.retry_delay.nanos / 1e9))
    return None


def _unreachable(error: Exception, url: str) -> RemoteError:
    cause = error.__cause__ if isinstance(error.__cause__, httpx.HTTPError) else error
    if isinstance(cause, httpx.LocalProtocolError) and str(cause).startswith("Illegal header"):
        return CallRefused(f"{url} was not called: the request has a header that cannot be sent")  # may be a secret
    if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return NotConnected(f"{url} is unreachable: {_line(cause)}")
    return AgentUnreachable(f"{url} sent no complete response: {_line(cause)}")


def _line(text: BaseException | str) -> str:
    """Return the text, or the text of an exception, on one printable line of at most `MAX_TEXT_LENGTH` characters. An
    exception without a text has the name of its class. The JSON of an error has the error's message."""
    with suppress(ValueError, RecursionError):
        text = _message_in(json.loads(str(text))) or text
    words = " ".join(str(text).split()) or ("" if isinstance(text, str) else type(text).__name__)
    words = words if len(words) <= MAX_TEXT_LENGTH else f"{words[: MAX_TEXT_LENGTH - 1]}…"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words)
