"""Lifespans: resources that an app opens on the event loop of a worker process and closes when the process stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

from celery import Celery
from celery.app import app_or_default
from celery.signals import worker_process_shutdown, worker_shutdown

from ...errors import ConfigError
from ..installation import Receivers, installed_on
from .forced_stop import in_pool_child

logger = logging.getLogger(__name__)

Lifespan = Callable[[], AbstractAsyncContextManager[object]]


class OpenLifespans:
    """Lifespans of one process. One asyncio task enters and exits them, as a cancel scope of anyio requires."""

    def __init__(self, lifespans: Sequence[Lifespan]) -> None:
        self._lifespans = lifespans
        self._holder: asyncio.Task[None] | None = None
        self._entered: asyncio.Future[None]
        self._stopped = asyncio.Event()

    async def enter(self) -> None:
        """Enter the lifespans, once.

        Raises:
            ConfigError: One could not be entered. Earlier ones are exited, and the next call tries again.
        """
        if not self._lifespans:
            return
        if self._holder is None:
            self._entered = asyncio.get_running_loop().create_future()
            self._holder = asyncio.create_task(self._hold(self._entered), name="a2a-lifespan")
        await asyncio.shield(self._entered)

    async def leave(self) -> None:
        """Exit the lifespans in reverse order."""
        self._stopped.set()
        if self._holder is not None:
            await asyncio.wait({self._holder})

    async def _hold(self, entered: asyncio.Future[None]) -> None:
        try:
            async with AsyncExitStack() as stack:
                for lifespan in self._lifespans:
                    await stack.enter_async_context(lifespan())
                entered.set_result(None)
                await self._stopped.wait()
        except BaseException as e:  # also SystemExit, which would stop the loop of all runs
            if entered.done():
                logger.exception("a lifespan failed")
            else:
                self._holder = None
                error = ConfigError(f"a lifespan could not be entered: {type(e).__name__}: {e}")
                error.__cause__ = e
                entered.set_exception(error)


def child_stops(**_: Any) -> None:
    """Close the state of a prefork child. The main process runs no agent and has no lifespans."""
    if in_pool_child():
        _close(app_or_default())


def worker_stops(sender: Any = None, **_: Any) -> None:
    """Close the state of a worker whose runs share its process."""
    _close(sender.app)


RECEIVERS: Receivers = ((worker_process_shutdown, child_stops), (worker_shutdown, worker_stops))


def _close(app: Celery) -> None:
    installed = installed_on(app)
    if installed is not None:
        installed.close()
