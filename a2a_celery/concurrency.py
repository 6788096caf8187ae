"""Event loops, calls between threads and event loops, and a memory-lean `asyncio.Event`."""

from __future__ import annotations

import _thread
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

CANCEL_POLL_INTERVAL = 0.2
"""Seconds between two calls of `is_stopping` in `wait_for`."""


class LeanEvent:
    """Memory-lean `asyncio.Event` for one loop. Its waiters are in a tuple, because an empty deque takes 600 bytes."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: tuple[asyncio.Future[None], ...] = ()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Set the event and wake all waiters."""
        self._is_set = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Reset the event."""
        self._is_set = False

    def future(self) -> asyncio.Future[None]:
        """Return a future that completes when the event is set. The event holds a reference to the future."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._is_set:
            waiter.set_result(None)
        else:
            self._waiters += (waiter,)
        return waiter

    async def wait(self) -> None:
        """Wait until the event is set. The wait ends even if the event is reset before the waiter runs."""
        if self._is_set:
            return
        waiter = self.future()
        try:
            await waiter
        finally:
            self._waiters = tuple(other for other in self._waiters if other is not waiter)


def close_old_connections() -> None:
    """Close the Django connections of this thread that are broken or too old, as Django does before each request.

    Celery closes these connections only in the threads of its workers. A thread that lives longer than a request must
    call this function before code that may use Django's ORM. Otherwise, each call after a restart of the database
    fails. Without Django, this function does nothing.
    """
    db, conf = sys.modules.get("django.db"), sys.modules.get("django.conf")
    if db is not None and conf is not None and (conf.settings.configured or "DJANGO_SETTINGS_MODULE" in os.environ):
        with suppress(Exception):  # the following query reports the cause
            db.close_old_connections()


_Call = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class DaemonThreads:
    """Daemon threads that execute blocking calls for coroutines. Calls start in order, at most `count` concurrently.

    A process does not wait for these threads when it exits. Python would join the threads of an
    executor, so a broker that never replies could prevent a gateway from stopping. Each thread calls `before_call`
    before each call, and `at_end` before it ends.
    """

    def __init__(
        self,
        count: int,
        name: str,
        *,
        before_call: Callable[[], None] | None = None,
        at_end: Callable[[], None] | None = None,
    ) -> None:
        self._count = count
        self._before_call = before_call
        self._at_end = at_end
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[Thread] = []

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call `function` in one of the threads, and return its result or raise its exception.

        A cancellation of the caller does not stop the function.
        """
        if len(self._threads) < self._count:
            thread = Thread(target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._calls.put((function, loop, future))
        try:
            return await future
        finally:
            del future  # holds the exception, whose traceback holds this frame

    def close(self) -> None:
        """Let the threads end after the submitted calls. This method does not wait for them. A later call starts new
        threads."""
        for _ in self._threads:
            self._calls.put(None)
        self._threads.clear()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            function, loop, future = call
            result: Any = None
            error: BaseException | None = None
            try:
                if self._before_call is not None:
                    self._before_call()
                result = function()
            except StopIteration as e:
                error = _runtime_error(e)
            except BaseException as e:  # including SystemExit, which must reach the caller
                error = e
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, future, result, error)
            del call, function, loop, future, result, error  # the error's traceback holds this frame
        if self._at_end is not None:
            self._at_end()


async def call_in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call a blocking function in a thread, like `asyncio.to_thread`, and return its result.

    Raises:
        RuntimeError: The function raised StopIteration.
    """

    def call() -> T:
        try:
            return function(*arguments)
        except StopIteration as e:
            raise _runtime_error(e) from e

    return await asyncio.to_thread(call)


def _runtime_error(error: StopIteration) -> RuntimeError:
    """Return a RuntimeError to raise instead of `error`. A future does not accept a StopIteration, so the caller would
    wait forever."""
    replacement = RuntimeError(f"StopIteration was raised: {error}")
    replacement.__cause__ = error
    return replacement


def start_daemon_thread(target: Callable[..., object], *arguments: Any, name: str) -> None:
    """Start a daemon thread. The function may be called from a signal handler.

    Under gevent, `Thread.start` waits for a greenlet, but gevent's hub, which runs signal handlers, cannot wait. In
    this case, the function starts a thread of the operating system, which can run an event loop next to the loop of the
    agents.
    """
    if _thread.start_new_thread.__module__.startswith("gevent"):
        from gevent.monkey import get_original  # noqa: PLC0415 - optional, and installed if it has replaced a function

        get_original("_thread", "start_new_thread")(target, arguments)
        return
    Thread(target=target, args=arguments, name=name, daemon=True).start()


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Set the result or the exception of `future`, unless the future is done."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


try:
    from uvloop import new_event_loop as fastest_loop
except ImportError:
    from asyncio import new_event_loop as fastest_loop


def new_loop(*, uvloop: bool) -> asyncio.AbstractEventLoop:
    """Return a new event loop.

    The loop is uvloop's if `uvloop` is True and the extra ``fast`` is installed, and asyncio's otherwise. Under gevent,
    the loop is always asyncio's, because threads are greenlets there, and uvloop would block all greenlets.
    """
    use_uvloop = uvloop and not _threads_are_greenlets()
    loop: asyncio.AbstractEventLoop = fastest_loop() if use_uvloop else asyncio.new_event_loop()
    return loop


LOOP_ERRORS = ("this event loop is already running", "Can't patch loop of type")
"""Texts of uvloop and of nest_asyncio for code that needs asyncio's own event loop."""


def loop_remedy(error: BaseException) -> str:
    """Return the remedy, for a log line, if code on the running loop failed with `error` because the loop is uvloop's.
    Otherwise, return an empty text."""
    is_uvloop = type(asyncio.get_running_loop()).__module__ == "uvloop"
    if is_uvloop and any(text in str(error) for text in LOOP_ERRORS):
        return ": it needs asyncio's own event loop, set A2A_UVLOOP=off"
    return ""


def _threads_are_greenlets() -> bool:
    return _thread.start_new_thread.__module__ != "_thread"


_shared_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""Event loop of all `LoopThread` objects of a process under gevent, by process id."""


class LoopThread:
    """Daemon thread that runs an event loop. An exception of code on the loop, such as SystemExit, is logged.

    Under gevent, threads are greenlets of one thread, which can run only one event loop. All objects of a process
    therefore share one loop, which is never stopped.

    Attributes:
        loop: The event loop.
    """

    def __init__(self, name: str, *, uvloop: bool = False) -> None:
        self._is_stopping = False
        self._is_shared = _threads_are_greenlets()
        shared_loop = _shared_loops.get(os.getpid())
        self.loop = new_loop(uvloop=uvloop) if shared_loop is None else shared_loop
        self._thread = Thread(target=self._serve, name=name, daemon=True)
        if self._is_shared:
            _shared_loops[os.getpid()] = self.loop
        if shared_loop is None:
            self._thread.start()

    def stop(self) -> None:
        """Stop the loop, and wait until its thread has ended. A shared loop is not stopped."""
        if not self._is_shared:
            self._is_stopping = True
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._is_stopping:
            try:
                self.loop.run_forever()
            except BaseException:  # an asyncio task called sys.exit(), but all users of the loop share it
                logger.exception("code on the event loop of the thread %s tried to end the process", self._thread.name)
        if not asyncio.all_tasks(self.loop):  # an unfinished asyncio task still needs its loop
            self.loop.close()


def wait_for(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop, is_stopping: Callable[[], bool]) -> T:
    """Execute `work` on the event loop of another thread, and return its result.

    If `is_stopping` returns True, `work` is cancelled and the wait ends, because `work` may take a long time, for
    example while the store is unavailable.

    Raises:
        asyncio.CancelledError: `work` was cancelled.
    """
    future: Future[T] = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        while not wait([future], CANCEL_POLL_INTERVAL).done:
            if is_stopping():
                future.cancel()
                raise asyncio.CancelledError
        return result_of(future)
    finally:
        del future  # holds the exception, whose traceback holds this frame


def result_of(future: Future[T]) -> T:
    """Return the result of a coroutine that an event loop in another thread executes.

    Raises:
        asyncio.CancelledError: The coroutine was cancelled. `future` itself would raise a subclass of `Exception`.
    """
    try:
        return future.result()
    except CancelledError:
        raise asyncio.CancelledError from None
    finally:
        del future
