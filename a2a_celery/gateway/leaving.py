"""A gateway that is told to stop: calls that wait for the end of a task get what there is, while it can answer, and
streams are cut, to go on at another."""

from __future__ import annotations

import asyncio
from types import TracebackType

from sse_starlette import EventSourceResponse

PATIENCE = 5.0
"""Seconds for which calls that wait may still get the end they wait for."""


class Cut:
    """A block of a task that ends early, and without an error, when this is called; it is `among` others meanwhile."""

    def __init__(self, among: set[Cut]) -> None:
        self._among = among
        self._task: asyncio.Task[object] | None = None
        self._made = False

    def __enter__(self) -> Cut:
        self._task = asyncio.current_task()
        self._among.add(self)
        return self

    def __call__(self, _: object = None) -> None:
        """Ends the block at what it waits for."""
        if self._task is not None and not self._made:
            self._made = self._task.cancel()

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> bool:
        self._among.discard(self)
        task, self._task = self._task, None
        return self._made and task is not None and task.uncancel() == 0 and isinstance(error, asyncio.CancelledError)


class Leaving:
    """Whether the gateway stops, and who waits in it. Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: set[Cut] = set()
        self._streams: set[Cut] = set()
        self._watching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """The gateway stops; in `PATIENCE` seconds nobody waits any more."""
        asyncio.get_running_loop().call_later(PATIENCE, self.cut_short)

    def cut_short(self) -> None:
        """Nobody waits any more."""
        _make(self._waiting)

    def may_be_cut_short(self) -> Cut:
        """A block that just waits: it ends early when the gateway stops."""
        return Cut(self._waiting)

    def streaming(self) -> Cut:
        """A block that ends as soon as the server stops, which else waits for all answers to be whole."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._cut_streams(), name="a2a-cut-streams")
        return Cut(self._streams)

    async def _cut_streams(self) -> None:
        # private, but how a server says that it stops is known there alone; one that waits does for all streams
        await EventSourceResponse._listen_for_exit_signal()
        self._watching = None
        _make(self._streams)


def _make(cuts: set[Cut]) -> None:
    """Ends those blocks, none of which is left before its task runs."""
    for cut in cuts:
        cut()
