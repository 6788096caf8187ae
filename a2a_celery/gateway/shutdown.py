"""Graceful shutdown. Calls that wait for the end of a task return the task's current state. Streams end, so that
clients resume them on another gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from weakref import WeakSet

from ..integrations.sse_starlette import wait_for_server_exit

logger = logging.getLogger(__name__)

WAIT_TIMEOUT = 5.0
"""Seconds from the start of the shutdown until calls that still wait for the end of a task are cancelled."""


SERVER_LOGGER = "uvicorn.error"
INCOMPLETE_RESPONSE = "ASGI callable returned without completing response."
"""Error that uvicorn logs for a stream that the shutdown cuts. Without the last chunk, a client detects that the stream
is incomplete.

Source: uvicorn 0.54, `RequestResponseCycle.run_asgi`.
"""

_cut_requests: WeakSet[asyncio.Task[object]] = WeakSet()
"""Requests whose responses were cut. uvicorn logs the error in the asyncio task of the request."""


def expect_incomplete_response(*request_tasks: asyncio.Task[object] | None) -> None:
    """Drop uvicorn's error for incomplete responses to the requests of `request_tasks`."""
    logging.getLogger(SERVER_LOGGER).addFilter(_is_unexpected)  # adding a filter twice has no effect
    _cut_requests.update(task for task in request_tasks if task is not None)


def _is_unexpected(record: logging.LogRecord) -> bool:
    return record.msg != INCOMPLETE_RESPONSE or asyncio.current_task() not in _cut_requests


class CancelScope:
    """Context manager that ends its block early and without an error when the scope is called. While the block runs,
    the scope is a member of `among`.

    Attributes:
        task: The asyncio task that runs the block, or None before and after the block.
    """

    def __init__(self, among: set[CancelScope]) -> None:
        self._among = among
        self.task: asyncio.Task[object] | None = None
        self._is_cancelled = False

    def __enter__(self) -> CancelScope:
        self.task = asyncio.current_task()
        self._among.add(self)
        return self

    def __call__(self, _: object = None) -> None:
        """End the block by cancelling the operation that the block awaits."""
        if self.task is not None and not self._is_cancelled:
            self._is_cancelled = self.task.cancel()

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> bool:
        self._among.discard(self)
        task, self.task = self.task, None
        return (
            self._is_cancelled
            and task is not None
            and task.uncancel() == 0
            and isinstance(error, asyncio.CancelledError)
        )


class GatewayShutdown:
    """Shutdown of a gateway's waiting calls and streams, on one event loop.

    Args:
        wait_timeout: Seconds from the start of the shutdown until the waiting calls are cancelled.

    Attributes:
        end_count: Number of calls of `end_streams`.
    """

    def __init__(self, wait_timeout: float = WAIT_TIMEOUT) -> None:
        self.end_count = 0
        self._wait_timeout = wait_timeout
        self._waiting: set[CancelScope] = set()
        self._streams: set[CancelScope] = set()
        self._callbacks: list[Callable[[], object]] = []
        self._watching: asyncio.Task[None] | None = None

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Call `callback` without arguments, on the event loop, whenever the shutdown begins."""
        self._callbacks.append(callback)

    def begin(self) -> None:
        """Run the callbacks now, and cancel the waiting calls after the timeout."""
        asyncio.get_running_loop().call_later(self._wait_timeout, self.cancel_waiting)
        for callback in self._callbacks:
            callback()

    def cancel_waiting(self) -> None:
        """Cancel the waiting calls now."""
        _cancel_all(self._waiting)

    def waiting(self) -> CancelScope:
        """Return a scope that ends a waiting call early when the gateway shuts down."""
        return CancelScope(self._waiting)

    def streaming(self) -> CancelScope:
        """Return a scope that ends a stream as soon as the server stops, because the server would otherwise wait for
        every stream."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._end_streams(), name="a2a-end-streams")
        return CancelScope(self._streams)

    def end_streams(self) -> None:
        """End the open streams now."""
        self.end_count += 1
        if self._streams:
            expect_incomplete_response(*(scope.task for scope in self._streams))
            logger.info("open streams closed: %d; clients resume them", len(self._streams))
        _cancel_all(self._streams)

    async def _end_streams(self) -> None:
        await wait_for_server_exit()
        self._watching = None
        self.end_streams()


def _cancel_all(scopes: set[CancelScope]) -> None:
    """Cancel the scopes. The set does not change in the loop, because a scope is removed only when its asyncio task
    runs."""
    for scope in scopes:
        scope()
