"""Requeuing of the runs of a worker that shuts down. The store refuses further writes of these runs, and replacement
runs are published immediately.

Celery calls this code in signal handlers, which may interrupt any code. A separate thread with its own event loop and
connections therefore does the work, for all runs concurrently.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from functools import cached_property, partial
from typing import Any

from ...concurrency import start_daemon_thread
from ...dispatch import Publisher, RunOptions, fleet_of
from ...lifecycle import Failure, final_event
from ...lifecycle.outcomes import WORKER_LOST
from ...lifecycle.references import RunRef
from ...settings import Settings
from ...store import AsyncStore, Keys
from ...store.blobs.blob_store import blobs_of
from ...store.client.connection import run_with_retry
from ...store.operation import FIRST_PUBLISH_GRACE_US
from ...store.runs.recovery import GivenUp, Lapsed, Requeued, begin_next_attempt, return_run
from ...store.tasks.commands import read_task
from .forced_stop import runner_prefix

logger = logging.getLogger(__name__)

LOOKS = 10
"""Maximum number of tries to begin the next attempt of a task that changes concurrently. After that, a watcher begins
the attempt."""

LAST_WAIT = 5.0
"""Seconds that an exiting process waits for requeues in progress. Watchers recover the remaining runs."""


class ShutdownRequeuer:
    """Requeuer of the runs of a worker that shuts down, used in the worker's main process."""

    def __init__(self, settings: Callable[[], Settings], publisher: Callable[[], Publisher]) -> None:
        self._settings = settings
        self._make_publisher = publisher
        self._publisher: Publisher | None = None
        self._store: AsyncStore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._submitted: deque[tuple[Coroutine[Any, Any, None], Future[None]]] = deque()
        self._under_way: list[Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_started = False
        self._foreign: set[str] = set()  # other fleets whose messages this worker has received

    def give_up(self, celery_id: str, *, worker_pid: int | None) -> None:
        """Requeue the run `celery_id`. The call returns immediately and never raises.

        Args:
            worker_pid: Id of the process on this machine that has claimed the run, or None if the run is unclaimed.
        """
        ref = RunRef.of(celery_id)
        if ref is not None:
            self._in_background(self._requeue_safely(ref, worker_pid))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        completion: Future[None] = Future()
        self._under_way = [*(future for future in self._under_way if not future.done()), completion]
        self._submitted.append((work, completion))
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_submitted, self._loop)
        elif not self._is_started:
            self._is_started = True
            start_daemon_thread(self._serve, name="a2a-requeuer")
            atexit.register(self.wait)

    def _serve(self) -> None:
        """Execute submitted work on an event loop of this thread. Under gevent, only the thread that has created an
        event loop can run it."""
        self._loop = loop = asyncio.new_event_loop()
        loop.call_soon(self._begin_submitted, loop)  # after `_loop` is set, so that no work is overlooked
        loop.run_forever()

    def _begin_submitted(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._submitted:
            work, completion = self._submitted.popleft()
            task = loop.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(partial(self._finish, completion))

    def _finish(self, completion: Future[None], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        completion.set_result(None)

    @cached_property
    def fleet(self) -> str:
        return self._settings().key_prefix

    def return_message(self, message: Any, callback: Callable[[], None]) -> None:
        """Return a message of another fleet to its queue, and then call `callback`. The call returns immediately and
        never raises."""
        self._in_background(self._return(message, callback))

    def wait(self, timeout: float = LAST_WAIT) -> None:
        """Wait up to `timeout` seconds until all runs are requeued."""
        wait(tuple(self._under_way), timeout)

    async def _requeue_safely(self, ref: RunRef, worker_pid: int | None) -> None:
        try:
            await self._give_up(ref, worker_pid)
        except Exception:
            logger.exception("run %s was not requeued; a watcher recovers it", ref.name)

    async def _return(self, message: Any, callback: Callable[[], None]) -> None:
        fleet, queue = fleet_of(message.headers), message.delivery_info.get("routing_key")
        if fleet not in self._foreign:
            self._foreign.add(fleet)
            text = "runs of the fleet %r reach this worker of %r through the queue %r: give each fleet separate queues"
            logger.warning(text, fleet, self.fleet, queue)
        try:
            await asyncio.to_thread(self._connected_publisher().queues.put_back, message)
        except Exception as e:
            text = "could not return a message of the fleet %r to its queue; the fleet's watcher publishes its run: %s"
            logger.warning(text, fleet, e)
        callback()

    async def _give_up(self, ref: RunRef, worker_pid: int | None) -> None:
        settings = self._settings()
        store, keys = self._connect(settings), Keys(settings.key_prefix)
        reply = await run_with_retry(
            store, read_task(keys, None, ref.task_id, history_length=0, artifacts=False, resolve_blobs=False)
        )
        loss_event = reply and final_event(Failure(WORKER_LOST), ref.task_id, reply[0].context_id)
        if not loss_event:
            return
        runner = None if worker_pid is None else runner_prefix(worker_pid)
        given_up = await run_with_retry(store, return_run(keys, ref, runner=runner, loss=loss_event))
        # without the options, which for a plain task contain text from the client
        logger.info("run %s is requeued because its worker shuts down: %s", ref.name, type(given_up).__name__)
        match given_up:
            case Requeued(agent, run, options):
                await self._publish(agent, RunRef(ref.task_id, run), options)
            case GivenUp(agent, attempt, most):
                await self._next_attempt(store, keys, Lapsed(ref, agent, attempt, most, returned=True))

    async def _next_attempt(self, store: AsyncStore, keys: Keys, lapsed_run: Lapsed) -> None:
        for _ in range(LOOKS):
            lapse = await begin_next_attempt(store, keys, lapsed_run, delay_us=FIRST_PUBLISH_GRACE_US)
            if lapse.next_run is not None:
                ref = RunRef(lapsed_run.ref.task_id, lapse.next_run)
                await self._publish(lapsed_run.agent, ref, lapse.next_options)
            if lapse.outcome != "changed":
                return

    async def _publish(self, agent: str, ref: RunRef, options: bytes) -> None:
        # The run is not marked as published, because a Redis broker may deliver the message to this worker, which
        # ignores it. In that case, a watcher publishes the run again.
        await self._connected_publisher().publish_async(agent, ref, RunOptions.from_json(options))

    def _connected_publisher(self) -> Publisher:
        if self._publisher is None:
            self._publisher = self._make_publisher()
        return self._publisher

    def _connect(self, settings: Settings) -> AsyncStore:
        if self._store is None:
            self._store = AsyncStore(settings.store_url, blobs_of(settings), wait_replicas=settings.store_wait_replicas)
        return self._store
