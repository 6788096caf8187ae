"""Agent that a run executes, as its code sees it: the run, its event queue, and the asyncio task or thread of the
agent. `loop_method` refuses async methods in this thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from threading import Lock, get_ident
from types import MethodType
from typing import Any, TypeVar, cast
from weakref import ref

from ...features.feature import RunFeature
from ..events.queue import RunEventQueue
from ..open_run import OpenRun

F = TypeVar("F", bound=RunFeature)
M = TypeVar("M", bound=Callable[..., Any])

CURRENT: ContextVar[RunningAgent] = ContextVar("a2a_celery_running_agent")
"""Agent of the current run."""

_opening_feature = Lock()


class RunningAgent:
    """Agent that a run executes. One asyncio task or, in a synchronous agent, one thread executes the agent's own code.

    Create the instance in the asyncio task of the agent.

    Attributes:
        run: The run.
        events: Event queue of the run.
        loop: Event loop of the run.
        loop_thread: Id of the thread of the event loop.
    """

    __slots__ = ("_task", "_thread", "events", "loop", "loop_thread", "run")  # each waiting run keeps an instance

    def __init__(self, run: OpenRun, events: RunEventQueue) -> None:
        self.run = run
        self.events = events
        self.loop = asyncio.get_running_loop()
        self.loop_thread = get_ident()
        self._task = _current_task()
        self._thread: int | None = None

    def feature(self, kind: type[F]) -> F:
        """Return the feature of the class `kind`, whose constructor accepts the agent. The feature is opened on first
        use. Thread-safe."""
        with _opening_feature:
            feature = self.run.feature(kind)
            if feature is None:
                feature = kind(self)  # type: ignore[call-arg]
                self.run.add_feature(feature)
            return feature

    def adopt_thread(self) -> None:
        """Make the current thread the thread of the agent."""
        self._thread = get_ident()

    def adopt_task(self) -> None:
        """Make the asyncio task execute the agent's code again, because the thread has returned a coroutine."""
        self._thread = None

    @property
    def is_agent_thread(self) -> bool:
        """True in the thread of a synchronous agent."""
        return get_ident() == self._thread

    @property
    def owner(self) -> object:
        """Reference to the asyncio task of the agent, or the id of its thread."""
        return self._task if self._thread is None else self._thread

    def current_owner(self) -> object:
        """Return a reference to the current asyncio task on the event loop, or the id of the current thread."""
        return _current_task() if get_ident() == self.loop_thread else get_ident()


def _current_task() -> object:
    """Return a weak reference to the current asyncio task, or None outside a task. A strong reference would create a
    cycle, because the context of the task refers to the `RunningAgent`."""
    task = asyncio.current_task()
    return None if task is None else ref(task)


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
        agent = CURRENT.get(None)
        if agent is not None and agent.is_agent_thread and _running_loop() in (None, agent.loop):
            name = self._method.__name__
            raise RuntimeError(f"{name} is for async functions: call turn.blocking.{name}(…) in a plain function")
        return MethodType(self._method, owner)


def loop_method(method: M) -> M:
    """Refuse the async method `method` in the thread of a plain function; see `_LoopMethod`."""
    return cast(M, _LoopMethod(method))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that this thread runs. Under gevent, the greenlet of a plain function is in the thread that
    runs the loop of the agents."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
