"""A pool for agents that wait: thousands of them in one worker process, on its event loop, without a thread each.

Celery takes it by its path, ``a2a_celery.pool:AsyncioPool``. Agents' runs are awaited; every other Celery task, also
one that is exposed as an agent, gets a thread, as on Celery's own pool of threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery.concurrency.thread import TaskPool

from .execution.celery.async_tracer import AgentPid, AsyncTaskCall
from .execution.celery.request import RunRequest
from .integrations.celery import PoolInfo

logger = logging.getLogger(__name__)

THREADS = 32
"""Threads at most for Celery tasks that are no agents; never more than the pool's concurrency."""


class AsyncioPool(PoolInfo, TaskPool):  # type: ignore[misc]
    """At most `limit` agents at a time; those beyond wait in their order. Who waits and who works is known to the loop
    alone, so there is nothing to lock: a signal handler may come in between anything."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.executor = ThreadPoolExecutor(min(self.limit, THREADS), thread_name_prefix="a2a-plain-tasks")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[AsyncTaskCall] = deque()
        self._begun: set[asyncio.Task[None]] = set()
        self._stopping = False

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Any = None,
        kwargs: Any = None,
        callback: Any = None,
        accept_callback: Any = None,
        **options: Any,
    ) -> Any:
        """Takes a call of Celery's: an agent's to the loop, any other to a thread."""
        request = getattr(accept_callback, "__self__", None)  # all that a pool is given of it are its methods
        if isinstance(request, RunRequest) and request.may_be_awaited:
            loop = self._loop_of(request)
            if loop is not None:
                call = AsyncTaskCall(request, loop)
                loop.call_soon_threadsafe(self._take, call)
                return call
        return super().on_apply(target, args, kwargs, callback, accept_callback, **options)

    def grow(self, n: int = 1) -> None:
        """Lets `n` more agents work at a time."""
        self.limit += n
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_next)

    def shrink(self, n: int = 1) -> None:
        """Lets `n` agents fewer work at a time; what works already goes on.

        Raises:
            ValueError: none would be left.
        """
        if n >= self.limit:
            raise ValueError(f"this pool has room for {self.limit}: it can't have {n} fewer")
        self.limit -= n

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """Lets Celery go on to terminate the call itself, which is what stops an agent.

        Raises:
            NotImplementedError: it is in a thread, which nothing can stop.
        """
        if not isinstance(pid, AgentPid):
            raise NotImplementedError("a task that is no agent has a thread in this pool, and can't be terminated")

    def on_stop(self) -> None:
        """Returns when all that has begun is over; nothing else begins."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._drained(), self._loop).result()
        super().on_stop()

    async def _drained(self) -> None:
        self._stopping = True
        self._waiting.clear()  # given back to the broker, and up in the store
        while self._begun:
            await asyncio.wait(self._begun)

    def _loop_of(self, request: RunRequest) -> asyncio.AbstractEventLoop | None:
        """The loop that runs are on; None if it can't be had, which its thread will then report."""
        if self._loop is None:
            try:
                self._loop = request.task.runs_in().loop
            except Exception:
                logger.warning("the event loop for agents could not be started", exc_info=True)
        return self._loop

    def _take(self, call: AsyncTaskCall) -> None:
        self._waiting.append(call)
        self._begin_next()

    def _begin_next(self) -> None:
        while self._waiting and len(self._begun) < self.limit and not self._stopping:
            call = self._waiting.popleft()
            made = asyncio.create_task(call.make(), name=f"a2a-call-{call.request.id}")
            self._begun.add(made)
            made.add_done_callback(self._ended)

    def _ended(self, made: asyncio.Task[None]) -> None:
        self._begun.discard(made)
        if not made.cancelled() and made.exception() is not None:
            logger.error("%s failed", made.get_name(), exc_info=made.exception())
        self._begin_next()

    def further_info(self) -> dict[str, Any]:
        """Return the numbers of running and of waiting agents, for ``celery inspect stats``."""
        return {"agents": len(self._begun), "waiting": len(self._waiting)}
