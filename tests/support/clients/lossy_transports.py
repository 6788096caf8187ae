"""HTTP transports that lose responses or parts of them after the server has received the request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx

from tests.support.waiting import LIMIT

Wanted = Callable[[httpx.Request], bool]

END = b"\n\n"
"""Separator after an SSE event, as gateways write it."""


class LosesAnswers(httpx.AsyncHTTPTransport):
    """Transport that loses the first `times` responses to the requests that `condition` selects."""

    def __init__(self, condition: Wanted, times: int = 1) -> None:
        super().__init__()
        self._condition = condition
        self._remaining = times
        self.lost = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send `request`. If its response is selected for loss, discard the response and raise `httpx.ReadError`."""
        response = await super().handle_async_request(request)
        if not self._remaining or not self._condition(request):
            return response
        self._remaining -= 1
        self.lost += 1
        assert isinstance(response.stream, AsyncIterator | httpx.AsyncByteStream)
        async for _ in response.stream:  # the response has begun, so the message is accepted
            break
        await response.aclose()
        raise httpx.ReadError("the answer was lost", request=request)


class CutsStreams(httpx.AsyncHTTPTransport):
    """Transport that breaks off SSE streams. The n-th stream breaks off after as many events as the n-th number in
    `event_counts`. Later streams are complete."""

    def __init__(self, *event_counts: int) -> None:
        super().__init__()
        self.event_counts = list(event_counts)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send `request`. If the response is an SSE stream and `event_counts` is not empty, limit the stream to the
        next number of events in `event_counts`."""
        response = await super().handle_async_request(request)
        if self.event_counts and "event-stream" in response.headers.get("content-type", ""):
            assert isinstance(response.stream, httpx.AsyncByteStream)
            response.stream = _Cut(response.stream, self.event_counts.pop(0))
        return response


class _Cut(httpx.AsyncByteStream):
    """Stream that breaks off between two events, even if one packet contains both."""

    def __init__(self, stream: httpx.AsyncByteStream, event_count: int) -> None:
        self._stream = stream
        self._remaining = event_count

    async def __aiter__(self) -> AsyncIterator[bytes]:
        buffer = b""
        async for chunk in self._stream:
            *events, buffer = (buffer + chunk).split(END)
            for event in events:
                if not self._remaining:
                    raise httpx.ReadError("the stream was cut")
                self._remaining -= 1
                yield event + END

    async def aclose(self) -> None:
        await self._stream.aclose()


def sends(request: httpx.Request) -> bool:
    """Return True for a SendMessage or SendStreamingMessage request."""
    return b"Send" in request.content or "/message:" in request.url.path


def losing_answers(condition: Wanted = sends, times: int = 1) -> httpx.AsyncClient:
    """Return a client that loses responses. The parameters are those of `LosesAnswers`."""
    return httpx.AsyncClient(transport=LosesAnswers(condition, times), timeout=LIMIT)
