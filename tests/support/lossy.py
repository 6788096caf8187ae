"""HTTP that loses answers: the server has had the request, and its client hears nothing, or half of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx

Wanted = Callable[[httpx.Request], bool]


class LosesAnswers(httpx.AsyncHTTPTransport):
    """Loses the answers to requests of which `wanted` says so, `times` of them; the request has arrived by then."""

    def __init__(self, wanted: Wanted, times: int = 1) -> None:
        super().__init__()
        self._wanted = wanted
        self._left = times
        self.lost = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends `request`."""
        response = await super().handle_async_request(request)
        if not self._left or not self._wanted(request):
            return response
        self._left -= 1
        self.lost += 1
        assert isinstance(response.stream, AsyncIterator | httpx.AsyncByteStream)
        async for _ in response.stream:  # it has begun to answer, so the message is accepted
            break
        await response.aclose()
        raise httpx.ReadError("the answer was lost", request=request)


def sends(request: httpx.Request) -> bool:
    """Whether it hands over a message."""
    return b"Send" in request.content or "/message:" in request.url.path


def losing_answers(wanted: Wanted = sends, times: int = 1) -> httpx.AsyncClient:
    """A client that loses them."""
    return httpx.AsyncClient(transport=LosesAnswers(wanted, times), timeout=60)
