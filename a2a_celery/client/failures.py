"""What can go wrong with a remote agent, and which of it may go right the next time.

What an agent refuses by the protocol stays the SDK's own error (``a2a.utils.errors``: TaskNotFoundError,
InvalidParamsError …). Everything else that its client raises becomes one of the errors here, in one place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
from a2a.client import A2AClientError, A2AClientTimeoutError
from a2a.utils.errors import A2AError
from google.protobuf.json_format import ParseError
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from ..clock import SYSTEM_CLOCK
from ..errors import A2ACeleryError
from ..push.post import retry_after
from .answers import UNREADABLE
from .result import Result

TOO_MANY = 429
TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP: a proxy without its server, a server that starts or has too much to do."""

TRANSIENT_GRPC = ("UNAVAILABLE", "CANCELLED", "RESOURCE_EXHAUSTED", "ABORTED", "DEADLINE_EXCEEDED")

TOO_LARGE = "message larger than max"
"""What gRPC says with RESOURCE_EXHAUSTED of what no server will take later either."""


class RemoteError(A2ACeleryError):
    """A call to a remote agent came to nothing, and not because the protocol says so."""


class AgentUnreachable(RemoteError):
    """No answer, or half of one: the same call may succeed later. Whether the agent has had the request is open.

    `retry_after` is in how many seconds its server wants to be asked again; None: it didn't say.
    """

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class TooManyRequests(AgentUnreachable):
    """The server takes no more of this caller's requests for now (429), and has not had this one."""


class NotConnected(AgentUnreachable):
    """The connection was never made: the agent has not had the request."""


class AnswerLost(AgentUnreachable):
    """A message was sent, and its answer lost: it may have arrived. Sending it again may have it worked on twice."""


class CallRefused(RemoteError):
    """The server answers with an HTTP status that is no answer of A2A: wrong credentials or a wrong address, mostly."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class AnswerUnreadable(RemoteError):
    """The answer is none of A2A's."""


class NoTransport(RemoteError):
    """The agent's card names no interface that this client speaks."""


class DeadlineExceeded(RemoteError, TimeoutError):
    """The task has neither ended nor paused in the time that was given to it; it goes on. `result` is how it stood."""

    def __init__(self, text: str, result: Result) -> None:
        super().__init__(text)
        self.result = result


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Raises what is raised inside as an error of this module, or of the protocol, that names the agent's `url`."""
    try:
        yield
    except RemoteError:
        raise
    except A2AClientTimeoutError as e:
        raise _unreachable(e, url) from e
    except A2AClientError as e:
        raise _of_client(e, url) from e
    except A2AError:
        raise
    except httpx.HTTPStatusError as e:
        raise _of_status(e.response, url) from e
    except httpx.InvalidURL as e:
        raise CallRefused(f"{url} is no address: {_line(e)}") from e
    except httpx.HTTPError as e:
        raise _unreachable(e, url) from e
    except UNREADABLE as e:
        raise AnswerUnreadable(f"{url} gave an answer that is none of A2A's: {_line(e)}") from e


def _of_client(error: A2AClientError, url: str) -> RemoteError:
    cause = error.__cause__
    if isinstance(cause, httpx.HTTPStatusError):
        return _of_status(cause.response, url)
    if isinstance(cause, httpx.TransportError):
        return _unreachable(cause, url)
    if (code := getattr(cause, "code", None)) is not None and callable(code):  # grpc's, which is an extra
        name = code().name
        asked = _asked_over_grpc(cause)
        if name == "RESOURCE_EXHAUSTED" and asked is not None:
            return TooManyRequests(f"{url} takes no more requests for now: {_line(error)}", asked)
        if name in TRANSIENT_GRPC and TOO_LARGE not in str(error):
            kind = NotConnected if "failed to connect" in str(error) else AgentUnreachable
            return kind(f"{url} can't be reached: {_line(error)}", asked)
        return CallRefused(f"{url} refuses: {_line(error)}")
    if isinstance(cause, json.JSONDecodeError | ParseError) or error.message.startswith("Invalid "):
        return AnswerUnreadable(f"{url} gave an answer that is none of A2A's: {_line(error)}")
    return CallRefused(f"{url} refuses: {_line(error)}")


def _of_status(response: httpx.Response, url: str) -> RemoteError:
    status = response.status_code
    asked = retry_after(response.headers.get("retry-after", "").encode("ascii", "replace"), SYSTEM_CLOCK.time())
    if status == TOO_MANY:
        return TooManyRequests(f"{url} answers 429: it takes no more requests for now", asked)
    if status in TRANSIENT_STATUS:
        return AgentUnreachable(f"{url} answers {status}: it may be starting, or overloaded", asked)
    advice = {401: ": give credentials", 403: ": these credentials don't do", 404: ": is it an agent's address?"}
    return CallRefused(f"{url} answers {status}{advice.get(status, '')}", status)


def _asked_over_grpc(error: Any) -> float | None:
    """Seconds: what stands under ``retry-after`` in the metadata, or else in a google.rpc.RetryInfo; None: nothing."""
    metadata = {str(key).lower(): value for key, value in error.trailing_metadata() or ()}
    asked = retry_after(str(metadata.get("retry-after", "")).encode("ascii", "replace"), SYSTEM_CLOCK.time())
    status = status_pb2.Status()
    with suppress(DecodeError):
        status.ParseFromString(metadata.get("grpc-status-details-bin", b""))
    for detail in status.details if asked is None else ():
        again = error_details_pb2.RetryInfo()
        if detail.Is(again.DESCRIPTOR) and detail.Unpack(again):
            return max(0.0, float(again.retry_delay.ToTimedelta().total_seconds()))
    return asked


def _unreachable(error: Exception, url: str) -> AgentUnreachable:
    cause = error.__cause__ if isinstance(error.__cause__, httpx.HTTPError) else error
    if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return NotConnected(f"{url} can't be reached: {_line(cause)}")
    return AgentUnreachable(f"{url} did not answer to the end: {_line(cause)}")


def _line(error: BaseException) -> str:
    """Its text in one line, or its kind if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
