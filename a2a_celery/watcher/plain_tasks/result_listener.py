"""Subscription to the result backend, for runs on workers without this package.

Celery's Redis backend publishes each stored state on a channel with the name of its key. The pattern of the
subscription excludes the results of Celery tasks that are not runs. A notification reaches all watchers, and triggers a
read of the run's state (`Results.observe`). If a notification is lost, the dispatcher polls the run.
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import closing, suppress
from threading import Event, Thread
from typing import Any

from celery import Celery
from celery.backends.redis import RedisBackend
from kombu.transport.redis import get_redis_error_classes
from kombu.utils.encoding import ensure_bytes

from ...clock import SYSTEM_CLOCK, Clock
from ...dispatch import is_polled
from ...errors import StoreUnavailable
from ...lifecycle.references import RunRef
from .results import Results

logger = logging.getLogger(__name__)

PING_INTERVAL = 3.0
"""Seconds without a notification after which the listener pings the server."""

MAX_SILENCE = 10.0
"""Seconds without any reply after which the listener treats the connection as broken."""

RECONNECT_INTERVAL = 1.0
"""Default seconds between two attempts to subscribe, or to read a run."""

UNAVAILABLE = (StoreUnavailable, *get_redis_error_classes().connection_errors)  # type: ignore[no-untyped-call]
"""Exceptions that are raised while the store or the result backend is unavailable."""

MAX_RUNS = 10_000
"""Maximum number of remembered runs with an unread change, and of remembered runs that have not ended. The dispatcher
polls all other runs."""


class ResultListener:
    """Listener for states of runs in a Redis result backend. The listener reads a run after each change of state.

    Args:
        results: Reader of the results of runs.
        app: App with the result backend.
        clock: Clock for the delay between two reads of a run.
        reconnect_interval: Seconds between two attempts to subscribe, or to read a run, while the store or the result
            backend is unavailable.
    """

    def __init__(
        self,
        results: Results,
        app: Celery,
        clock: Clock = SYSTEM_CLOCK,
        *,
        reconnect_interval: float = RECONNECT_INTERVAL,
    ) -> None:
        self._results = results
        self._app = app
        self._clock = clock
        self._reconnect_interval = reconnect_interval
        self._changed: dict[str, None] = {}
        self._open: dict[str, None] = {}
        self._has_changed = asyncio.Event()
        self._stopped = Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start a thread that subscribes to the result backend, and an asyncio task that reads the changed runs."""
        loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._read_changed(), name="a2a-result-listener")
        Thread(target=self._stay_subscribed, args=(loop,), name="a2a-result-listener", daemon=True).start()

    async def stop(self) -> None:
        """Stop listening."""
        self._stopped.set()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def notify(self, name: str) -> None:
        """Schedule a read of the run `name`, because a state of the run was stored."""
        if len(self._changed) < MAX_RUNS:
            self._changed[name] = None
            self._has_changed.set()

    def resubscribed(self) -> None:
        """Schedule a read of all runs that have not ended, because notifications may have been lost."""
        for name in self._open:
            self.notify(name)

    async def _read_changed(self) -> None:
        available = True
        while True:
            await self._has_changed.wait()
            self._has_changed.clear()
            while self._changed:
                name = next(iter(self._changed))
                del self._changed[name]
                try:
                    await self._read(name)
                    available = True
                except UNAVAILABLE as e:
                    if available:
                        logger.warning("could not read results, retrying: %r", e)
                    available = False
                    self.notify(name)
                    await self._clock.sleep(self._reconnect_interval)
                except Exception:  # the next state may be readable, and the dispatcher polls the run
                    logger.exception("run %s: could not read its result", name)

    async def _read(self, name: str) -> None:
        ref = RunRef.of(name)
        if ref is not None and await self._results.observe(ref):
            if len(self._open) < MAX_RUNS:
                self._open[name] = None
        else:
            self._open.pop(name, None)

    def _stay_subscribed(self, loop: asyncio.AbstractEventLoop) -> None:
        problem = ""
        while not self._stopped.is_set():
            try:
                backend = self._app.backend
                if not isinstance(backend, RedisBackend):
                    if is_polled(self._app):
                        logger.info("results are polled: this result backend has no subscriptions")
                    return
                with closing(backend.client.pubsub()) as pubsub:
                    problem = ""
                    self._receive(loop, pubsub, backend.task_keyprefix)
            except Exception as e:
                if self._stopped.is_set():
                    return
                if repr(e) != problem:
                    problem = repr(e)
                    logger.warning("could not subscribe to the result backend, results are polled: %r", e)
            self._stopped.wait(self._reconnect_interval)

    def _receive(self, loop: asyncio.AbstractEventLoop, pubsub: Any, prefix: bytes) -> None:
        """Call `notify` for each run whose state is stored, until the listener stops.

        Raises:
            ConnectionError: The server does not reply.
        """
        pubsub.psubscribe(pattern_of(prefix))
        replied_at = self._clock.monotonic()
        while not self._stopped.is_set():
            message = pubsub.get_message(timeout=PING_INTERVAL)
            if message is None:
                if self._clock.monotonic() - replied_at > MAX_SILENCE:
                    raise ConnectionError(f"the result backend has been silent for {MAX_SILENCE:g} s")
                pubsub.ping()
                continue
            replied_at = self._clock.monotonic()
            if message["type"] == "psubscribe":  # also after redis-py has reconnected
                logger.info("subscribed to the result backend")
                loop.call_soon_threadsafe(self.resubscribed)
            elif message["type"] == "pmessage":
                channel: bytes = ensure_bytes(message["channel"])  # type: ignore[no-untyped-call]
                name = channel.removeprefix(prefix).decode(errors="replace")
                loop.call_soon_threadsafe(self.notify, name)


def pattern_of(prefix: bytes) -> bytes:
    """Return a pattern that matches the channels of runs: `prefix`, followed by "<task id>.<run>"."""
    return re.sub(rb"([\[\]*?\\])", rb"\\\1", prefix) + b"*.[0-9]*"
