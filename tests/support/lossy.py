"""HTTP transports that lose responses, completely or in part, after the server has received the request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx

Wanted = Callable[[httpx.Request], bool]

END = b"\n\n"
"""End of an SSE event as gateways of this project write it."""


class LosesAnswers(httpx.AsyncHTTPTransport):
    """Transport that loses the first `times` responses to the requests that `wanted` selects."""

    def __init__(self, wanted: Wanted, times: int = 1) -> None:
        super().__init__()
        self._wanted = wanted
        self._left = times
        self.lost = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send `request`."""
        response = await super().handle_async_request(request)
        if not self._left or not self._wanted(request):
            return response
        self._left -= 1
        self.lost += 1
        assert isinstance(response.stream, AsyncIterator | httpx.AsyncByteStream)
        async for _ in response.stream:  # the response has begun, so the message is accepted
            break
        await response.aclose()
        raise httpx.ReadError("the answer was lost", request=request)


class CutsStreams(httpx.AsyncHTTPTransport):
    """Transport that cuts streams: the n-th stream after the n-th number of events in `after`. Later streams are
    complete."""

    def __init__(self, *after: int) -> None:
        super().__init__()
        self.after = list(after)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send `request`."""
        response = await super().handle_async_request(request)
        if self.after and "event-stream" in response.headers.get("content-type", ""):
            assert isinstance(response.stream, httpx.AsyncByteStream)
            response.stream = _Cut(response.stream, self.after.pop(0))
        return response


class _Cut(httpx.AsyncByteStream):
    """Stream that is cut between two events, even if one packet has both."""

    def __init__(self, whole: httpx.AsyncByteStream, after: int) -> None:
        self._whole = whole
        self._left = after

    async def __aiter__(self) -> AsyncIterator[bytes]:
        buffer = b""
        async for chunk in self._whole:
            *events, buffer = (buffer + chunk).split(END)
            for event in events:
                if not self._left:
                    raise httpx.ReadError("the stream was cut")
                self._left -= 1
                yield event + END

    async def aclose(self) -> None:
        await self._whole.aclose()


def sends(request: httpx.Request) -> bool:
    """Return whether a request sends a message."""
    return b"Send" in request.content or "/message:" in request.url.path


def losing_answers(wanted: Wanted = sends, times: int = 1) -> httpx.AsyncClient:
    """Return a client with a lossy transport."""
    return httpx.AsyncClient(transport=LosesAnswers(wanted, times), timeout=60)
