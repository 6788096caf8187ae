"""Cleanup of resources per thread, such as database connections, in the threads of a worker process.

Celery's Django fixup closes the connections in Celery's threads. Agents run in other threads: one thread for each run
of a sync function, the default executor of the event loop (`asyncio.to_thread`), and the thread in which asgiref runs
Django's ORM for async code.

Checked against Celery 5.7, Django 5.2 and asgiref 3.13.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeVar

from celery import Celery
from celery.fixups.django import DjangoFixup

from ...integrations.celery import fixups
from ...lifecycle import Outcome

T = TypeVar("T")
Perform = Callable[[], Coroutine[Any, Any, Outcome | None]]
Cleanup = Callable[[], object]

logger = logging.getLogger(__name__)


class ThreadCleanup:
    """Functions that are called in a thread after the code of an agent in that thread has ended."""

    def __init__(self, functions: Sequence[Cleanup]) -> None:
        self._functions = functions

    def before_call(self) -> None:
        """Clean up in a thread of the default executor before each call."""

    def after_call(self) -> None:
        """Clean up in a thread of the default executor after each call."""
        _run_all(self._functions)

    def at_thread_end(self) -> None:
        """Clean up in the thread of a synchronous agent after its run."""
        _run_all(self._functions)

    def around(self, perform: Perform) -> Perform:
        """Wrap `perform`, which executes a run on the event loop, with the cleanup before and after the run."""
        return perform


class DjangoCleanup(ThreadCleanup):
    """Cleanup that also closes Django's database connections."""

    def __init__(self, functions: Sequence[Cleanup]) -> None:
        super().__init__(functions)
        self._db: Any = import_module("django.db")
        self._orm_thread: Executor = import_module("asgiref.sync").SyncToAsync.single_thread_executor
        self._active_runs = 0

    def before_call(self) -> None:
        """Close broken connections, for example after a restart of the database."""
        _run_all([self._db.close_old_connections])

    def after_call(self) -> None:
        """Close connections in the same way as Django does after a request."""
        _run_all([*self._functions, self._db.close_old_connections])

    def at_thread_end(self) -> None:
        """Close every connection of the thread."""
        _run_all([*self._functions, self._db.connections.close_all])

    def around(self, perform: Perform) -> Perform:
        """Wrap `perform` with a cleanup of asgiref's thread before and after the run.

        All runs share this thread and its database connections. While other runs use the connections, only broken
        connections are closed. The thread executes calls in order, so a cleanup that is submitted before a run precedes
        the run's queries.
        """

        async def perform_and_clean() -> Outcome | None:
            self._submit(self._close_broken if self._active_runs else self._db.close_old_connections)
            self._active_runs += 1
            try:
                return await perform()
            finally:
                self._active_runs -= 1
                if not self._active_runs:
                    self._submit(self._db.close_old_connections)

        return perform_and_clean

    def _submit(self, function: Cleanup) -> None:
        with suppress(RuntimeError):  # the process is exiting
            self._orm_thread.submit(_run_all, [function])

    def _close_broken(self) -> None:
        for connection in self._db.connections.all(initialized_only=True):
            if connection.errors_occurred and not connection.is_usable():
                connection.close()


class CleanupExecutor(ThreadPoolExecutor):
    """Default executor of the event loop, with a cleanup around each call."""

    def __init__(self, cleanup: ThreadCleanup) -> None:
        super().__init__(thread_name_prefix="asyncio")
        self._cleanup = cleanup

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        def call() -> T:
            self._cleanup.before_call()
            try:
                return fn(*args, **kwargs)
            finally:
                self._cleanup.after_call()

        return super().submit(call)


def thread_cleanup_of(app: Celery, functions: Sequence[Cleanup]) -> ThreadCleanup | None:
    """Return a cleanup that calls `functions`, and also closes Django's connections if Celery's Django fixup is active.
    Return None if there is nothing to clean up."""
    if any(isinstance(fixup, DjangoFixup) for fixup in fixups(app)):
        return DjangoCleanup(functions)
    return ThreadCleanup(functions) if functions else None


def _run_all(functions: Sequence[Cleanup]) -> None:
    for function in functions:
        try:
            function()
        except Exception:
            logger.exception("a cleanup of the threads of agents failed")
