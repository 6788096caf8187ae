"""What a worker process has once: a thread with an event loop, and on it the store, the leases and the agents.

Made at the first run, so after any fork. Every run's coroutine lives on that loop, whatever Celery's pool: frameworks
keep connections and locks that belong to one loop, and cancelling is ``task.cancel()`` there.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress
from os import getpid
from uuid import uuid4

from ..agents import Agent
from ..config import Settings
from ..dispatch import Publisher
from ..store import AsyncStore, Keys
from ..store.wake import WakeLine
from .adapters import Adapter, make_adapter
from .leases import LeaseKeeper
from .run import Run

logger = logging.getLogger(__name__)


class WorkerProcess:
    """The runs of one worker process."""

    def __init__(self, settings: Settings, publisher: Publisher) -> None:
        self.settings = settings
        self.keys = Keys(settings.key_prefix)
        self.publisher = publisher
        self.runner_id = f"{socket.gethostname()}.{getpid()}.{uuid4().hex[:8]}"
        self._adapters: dict[str, asyncio.Future[Adapter]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="a2a-runs", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def run(self, agent: Agent, task_id: str, run: int) -> None:
        """Runs `agent` for run `run` of `task_id` and returns when it is over; blocks the thread it is called in."""
        this = Run(self, agent, task_id, run)
        under_way: Future[None] = asyncio.run_coroutine_threadsafe(this.perform(), self._loop)
        try:
            under_way.result()
        except BaseException:
            # Whatever ends the Celery task from outside (a time limit, an exit) ends the agent too.
            if not under_way.done():
                self._loop.call_soon_threadsafe(this.abort)
                with suppress(Exception):
                    under_way.result(timeout=self.settings.cancel_grace + 1)
            raise

    async def adapter(self, agent: Agent) -> Adapter:
        """The agent's code, imported and built once per process; a failure is tried again at the next run."""
        building = self._adapters.get(agent.name)
        if building is None:
            building = asyncio.ensure_future(make_adapter(agent, self.settings))
            self._adapters[agent.name] = building
        try:
            return await asyncio.shield(building)
        except Exception:
            self._adapters.pop(agent.name, None)
            raise

    async def _start(self) -> None:
        self.store = AsyncStore(self.settings.store_url)
        self.line = WakeLine(self.settings.store_url)
        self.leases = LeaseKeeper(self.store, self.keys, self.settings.lease_ttl)
        await self.line.start()
        await self.line.on_message(self.keys.runner(self.runner_id), self.leases.asked_to_cancel)
        self.leases.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
