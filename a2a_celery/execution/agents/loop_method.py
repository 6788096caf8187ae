"""Async methods that a plain function cannot call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import MethodType
from typing import Any, TypeVar, cast

from .journal import CURRENT

F = TypeVar("F", bound=Callable[..., Any])


class _LoopMethod:
    """Descriptor of an async method. In the thread of a plain function, access to the method raises RuntimeError.

    A plain function cannot await the method. Without the error, the call would create a coroutine that is never
    executed, and the function would continue as if the call had been made. The thread of a plain function may run an
    event loop, whose coroutines can await the method.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, owner: Any, owner_class: type | None = None) -> Any:
        if owner is None:
            return self._method
        journal = CURRENT.get(None)
        if journal is not None and journal.is_agent_thread and _running_loop() in (None, journal.loop):
            name = self._method.__name__
            raise RuntimeError(f"{name} is for async functions: call turn.blocking.{name}(…) in a plain function")
        return MethodType(self._method, owner)


def loop_method(method: F) -> F:
    """Refuse the async method `method` in the thread of a plain function; see `_LoopMethod`."""
    return cast(F, _LoopMethod(method))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that this thread runs. Under gevent, the greenlet of a plain function is in the thread that
    runs the loop of the agents."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
