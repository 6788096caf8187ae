"""Whether this gateway can do its work: store, broker, and at least one worker that consumes.

``/health/live`` says that the process serves; ``/health/ready`` asks the others and says what is missing, and why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Thread
from typing import Any

from celery import Celery
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import A2ACeleryError
from ..store import AsyncStore

WORKER_TIMEOUT = 1.0
"""Seconds workers have to answer a ping through the broker. The first answer ends the wait."""

STORE_TIMEOUT = 2.0
BROKER_TIMEOUT = 2.0
"""Seconds to connect; see also `_OneAtATime`, for a broker that takes connections and is silent."""

FRESH = 1.0
"""Seconds an answer is good for, so that probes in numbers cost one round."""


class Health:
    """Checks what a gateway depends on."""

    def __init__(self, app: Celery, store: AsyncStore, clock: Clock = SYSTEM_CLOCK) -> None:
        self._app = app
        self._clock = clock
        self._store = store
        self._checked_at = float("-inf")
        self._found: dict[str, str] = {}
        self._lock = asyncio.Lock()
        self._connecting = _OneAtATime(self._connect)
        self._asking = _OneAtATime(self._ask)

    def routes(self) -> list[Route]:
        """``/health/live`` and ``/health/ready``."""
        return [Route("/health/live", self._live), Route("/health/ready", self._ready)]

    async def check(self) -> dict[str, str]:
        """What is found of "store", "broker" and "workers": "ok", or what is wrong with it."""
        async with self._lock:
            if self._clock.monotonic() - self._checked_at > FRESH:
                store, broker = await asyncio.gather(_said(self._ping), _said(self._broker))
                workers = await _said(self._workers) if broker == "ok" else "unknown: the broker can't be reached"
                self._found = {"store": store, "broker": broker, "workers": workers}
                self._checked_at = self._clock.monotonic()
            return self._found

    async def _ping(self) -> None:
        await asyncio.wait_for(self._store.ping(), STORE_TIMEOUT)

    async def _broker(self) -> None:
        await self._connecting.result(BROKER_TIMEOUT + 1)

    def _connect(self) -> None:
        with self._app.connection_for_write(connect_timeout=BROKER_TIMEOUT) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0.1, timeout=BROKER_TIMEOUT)

    def _ask(self) -> Any:
        # active_queues, not ping: a worker may answer and consume nothing
        return self._app.control.inspect(timeout=WORKER_TIMEOUT, limit=1).active_queues()

    async def _workers(self) -> None:
        answers = await self._asking.result(WORKER_TIMEOUT + BROKER_TIMEOUT)
        if not answers:
            raise _Missing(f"no worker answered within {WORKER_TIMEOUT:g} s: start one with celery -A … worker")
        if not any(queues for queues in answers.values()):
            raise _Missing("no worker consumes a queue")

    async def _live(self, request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: Request) -> JSONResponse:
        found = await self.check()
        ready = all(state == "ok" for state in found.values())
        return JSONResponse({"status": "ok" if ready else "unavailable", **found}, status_code=200 if ready else 503)


class _OneAtATime:
    """A blocking call in a thread that probes wait for so long and no longer; one that hangs is not made again."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._made: asyncio.Future[Any] | None = None

    async def result(self, timeout: float) -> Any:
        """What the call gives.

        Raises:
            TimeoutError: it takes longer than `timeout` seconds, or the last one has not come back yet.
        """
        if self._made is not None and not self._made.done():
            raise TimeoutError
        loop = asyncio.get_running_loop()
        self._made = made = loop.create_future()
        # a daemon, not to_thread: a process that ends waits for those, and would wait for one that hangs
        Thread(target=self._make, args=(loop, made), name="a2a-health", daemon=True).start()
        done, _ = await asyncio.wait({made}, timeout=timeout)
        if not done:
            made.add_done_callback(lambda late: late.cancelled() or late.exception())
            raise TimeoutError
        return made.result()

    def _make(self, loop: asyncio.AbstractEventLoop, made: asyncio.Future[Any]) -> None:
        settle: Callable[[Any], None]
        try:
            settle, outcome = made.set_result, self._call()
        except Exception as e:
            settle, outcome = made.set_exception, e
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, outcome)


class _Missing(A2ACeleryError):
    pass


async def _said(check: Callable[[], Awaitable[None]]) -> str:
    """ "ok", or the reason: our own words, or the kind of a foreign error (its text may hold an address)."""
    try:
        await check()
    except A2ACeleryError as e:
        return str(e)
    except TimeoutError:
        return "no answer in time"
    except Exception as e:
        return f"unreachable ({type(e).__name__})"
    return "ok"
