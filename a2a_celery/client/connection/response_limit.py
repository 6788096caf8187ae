"""Limits on the size of a server's responses, which the client holds in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import httpx

from ..errors import InvalidResponse

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Decompressed bytes of a response, or of one event of a stream."""

MAX_CARD_BYTES = 1024 * 1024


class ResponseLimit:
    """Byte limit of a response, counted from its start or the last `reset`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._read = 0

    def reset(self) -> None:
        """Restart the count at zero."""
        self._read = 0

    def watch(self, response: httpx.Response) -> None:
        """Make every read of `response` raise InvalidResponse beyond the limit."""
        chunks = response.aiter_bytes

        async def bounded(chunk_size: int | None = None) -> AsyncGenerator[bytes, None]:
            async with aclosing(chunks(chunk_size)) as found:  # type: ignore[type-var]
                async for chunk in found:
                    self._read += len(chunk)
                    if self._read > self._most:
                        raise InvalidResponse(f"{response.request.url} sent more than {self._most} bytes")
                    yield chunk

        response.aiter_bytes = bounded  # type: ignore[method-assign]

    async def read(self, response: httpx.Response) -> bytes:
        """Read `response` to its end and close it.

        Raises:
            InvalidResponse: The response exceeds the limit.
        """
        self.watch(response)
        try:
            return await response.aread()
        finally:
            await response.aclose()
