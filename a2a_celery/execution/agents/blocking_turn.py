"""Blocking variants of the methods of `Turn`, for synchronous agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from a2a.types import Part

from ...concurrency import wait_for
from ...features.turn import BlockingTurnMethods
from ..events.activities import OpenActivity

if TYPE_CHECKING:
    from .turn import Turn

T = TypeVar("T")


class BlockingTurn(BlockingTurnMethods):
    """Blocking variants of the methods of `Turn`, for the thread of a synchronous agent.

    A method that sends an event returns as soon as the event is queued. If the run must stop (see `Turn.cancelled`),
    each method except `retry` raises `asyncio.CancelledError`, which is not an `Exception`. Do not catch it.
    """

    def __init__(self, turn: Turn, loop: asyncio.AbstractEventLoop) -> None:
        self._turn = turn
        self._loop = loop

    @property
    def cancelled(self) -> bool:
        """See `Turn.cancelled`."""
        return self._turn.cancelled

    def say(self, text: str = "", *, parts: Sequence[Part] | None = (), **metadata: Any) -> None:
        """See `Turn.say`."""
        self._wait_for(lambda: self._turn.say(text, parts=parts, **metadata))

    def model_call(self, model: str = "") -> OpenActivity:
        """See `Turn.model_call`: ``with turn.blocking.model_call("…"):``."""
        self._raise_if_cancelled()
        return self._turn.model_call(model)

    def tool_call(self, name: str) -> OpenActivity:
        """See `Turn.tool_call`: ``with turn.blocking.tool_call("search"):``."""
        self._raise_if_cancelled()
        return self._turn.tool_call(name)

    def artifact(self, content: Any, **options: Any) -> str:
        """See `Turn.artifact`."""
        return self._wait_for(lambda: self._turn.artifact(content, **options))

    def _raise_if_cancelled(self) -> None:
        if self.cancelled:
            raise asyncio.CancelledError

    def _wait_for(self, method: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Call an async method on the event loop, and return its result."""
        if self.cancelled:
            raise asyncio.CancelledError

        async def call() -> T:
            return await method()

        return wait_for(call(), self._loop, lambda: self.cancelled)
