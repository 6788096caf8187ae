"""Celery pool for agents that wait for I/O. The pool executes thousands of runs on the event loop of one worker
process.

Celery loads the pool by its path, ``a2a_celery.pool:AsyncioPool``. Runs of agents are executed as asyncio tasks. All
other Celery tasks, including tasks that are exposed as agents, are executed in threads, as on Celery's thread pool.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery.concurrency.thread import TaskPool

from .execution.celery.async_tracer import AgentPid, AsyncTaskCall, require_greenlet
from .execution.celery.request import RunRequest
from .integrations.celery import PoolInfo

logger = logging.getLogger(__name__)

THREADS = 32
"""Maximum number of threads for Celery tasks that are not runs of agents. A pool with a lower concurrency has at most
as many threads as its concurrency."""


class AsyncioPool(PoolInfo, TaskPool):  # type: ignore[misc]
    """Pool that executes at most `limit` runs of agents concurrently. Further runs wait in order.

    Only the event loop changes the collections of waiting and running calls, so no lock is needed and a signal handler
    may interrupt any code.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.executor = ThreadPoolExecutor(min(self.limit, THREADS), thread_name_prefix="a2a-plain-tasks")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[AsyncTaskCall] = deque()
        self._begun: set[asyncio.Task[None]] = set()
        self._stopping = False

    def on_start(self) -> None:
        """Check that the pool can call the tasks of the app's agents.

        Raises:
            SystemExit: The package greenlet is required and missing.
        """
        require_greenlet(() if self.app is None else self.app.tasks.values())

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Any = None,
        kwargs: Any = None,
        callback: Any = None,
        accept_callback: Any = None,
        **options: Any,
    ) -> Any:
        """Execute the run of an agent on the event loop, and any other Celery task in a thread.

        If the event loop failed to start, the run is also executed in a thread.
        """
        request = getattr(accept_callback, "__self__", None)  # Celery passes the pool only bound methods of the request
        if isinstance(request, RunRequest) and request.may_be_awaited:
            loop = self._loop_of(request)
            if loop is not None:
                call = AsyncTaskCall(request, loop)
                loop.call_soon_threadsafe(self._take, call)
                return call
        return super().on_apply(target, args, kwargs, callback, accept_callback, **options)

    def grow(self, n: int = 1) -> None:
        """Raise the limit by `n` runs."""
        self.limit += n
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_next)

    def shrink(self, n: int = 1) -> None:
        """Lower the limit by `n` runs. Active runs continue.

        Raises:
            ValueError: The limit would be below 1.
        """
        if n >= self.limit:
            raise ValueError(f"the pool's limit is {self.limit}: it cannot be lowered by {n}")
        self.limit -= n

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """Do nothing for the run of an agent, because `AsyncTaskCall.terminate` stops the agent.

        Raises:
            NotImplementedError: `pid` belongs to a Celery task in a thread, which cannot be stopped.
        """
        if not isinstance(pid, AgentPid):
            raise NotImplementedError("a Celery task that is not an agent runs in a thread and cannot be terminated")

    def on_stop(self) -> None:
        """Discard the waiting calls, and wait for all active calls."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._drain(), self._loop).result()
        super().on_stop()

    async def _drain(self) -> None:
        self._stopping = True
        self._waiting.clear()  # the messages return to the broker, and the runs are requeued in the store
        while self._begun:
            await asyncio.wait(self._begun)

    def _loop_of(self, request: RunRequest) -> asyncio.AbstractEventLoop | None:
        """Return the event loop for runs, or None if the loop failed to start.

        Without a loop, the thread that executes the run reports the failure.
        """
        if self._loop is None:
            try:
                self._loop = request.task.runs_in(request.hostname).loop
            except Exception:
                logger.warning("the event loop for agents could not be started", exc_info=True)
        return self._loop

    def _take(self, call: AsyncTaskCall) -> None:
        self._waiting.append(call)
        self._begin_next()

    def _begin_next(self) -> None:
        while self._waiting and len(self._begun) < self.limit and not self._stopping:
            call = self._waiting.popleft()
            task = asyncio.create_task(call.make(), name=f"a2a-call-{call.request.id}")
            self._begun.add(task)
            task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._begun.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("%s failed", task.get_name(), exc_info=task.exception())
        self._begin_next()

    def further_info(self) -> dict[str, Any]:
        """Return the numbers of active and waiting runs of agents, for ``celery inspect stats``."""
        return {"agents": len(self._begun), "waiting": len(self._waiting)}
