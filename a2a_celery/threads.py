"""Daemon threads for calls that may hang: the process does not wait for them when it exits.

An executor's threads are joined when Python exits, so one publish to a broker that accepts connections and is silent
would keep a gateway from stopping.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any

_Call = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class DaemonThreads:
    """Makes blocking calls for coroutines, `count` at a time, in the order in which they were asked for.

    Each thread calls `at_end` before it ends.
    """

    def __init__(self, count: int, name: str, *, at_end: Callable[[], None] | None = None) -> None:
        self._count = count
        self._at_end = at_end
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[Thread] = []

    async def call(self, function: Callable[[], Any]) -> Any:
        """What `function` gives, or raises, in one of the threads. Cancelling leaves the call to itself."""
        if len(self._threads) < self._count:
            thread = Thread(target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        loop = asyncio.get_running_loop()
        made: asyncio.Future[Any] = loop.create_future()
        self._calls.put((function, loop, made))
        try:
            return await made
        finally:
            del made  # holds the exception, whose traceback holds this frame

    def close(self) -> None:
        """Lets the threads end when they have made the calls they were asked for."""
        for _ in self._threads:
            self._calls.put(None)

    def _serve(self) -> None:
        while (asked := self._calls.get()) is not None:
            function, loop, made = asked
            result: Any = None
            error: BaseException | None = None
            try:
                result = function()
            except StopIteration as e:  # no future takes it, and its caller would wait for ever
                error = RuntimeError(f"StopIteration was raised: {e}")
                error.__cause__ = e
            except BaseException as e:  # also SystemExit: it is the caller's, not this thread's
                error = e
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, made, result, error)
            del asked, function, loop, made, result, error  # the error's traceback holds this frame
        if self._at_end is not None:
            self._at_end()


def settle(made: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Ends `made` with `result`, or with `error` where there is one; not at all if whoever awaited it gave up."""
    if made.done():
        return
    if error is None:
        made.set_result(result)
    else:
        made.set_exception(error)
