"""Private API of sse-starlette that the gateway uses."""

from __future__ import annotations

from sse_starlette import EventSourceResponse

from . import Library

SSE_STARLETTE = Library("sse-starlette>=3.7,<4", checked="3.7.0")
SSE_STARLETTE.require(EventSourceResponse, "_listen_for_exit_signal")


async def wait_for_server_exit() -> None:
    """Wait until the server that runs the current event loop stops."""
    await EventSourceResponse._listen_for_exit_signal()
