"""What a worker process has once: a thread with an event loop, and on it the store, the leases and the agents.

Made at the first run, so after any fork. Every run's coroutine lives on that loop, whatever Celery's pool: frameworks
keep connections and locks that belong to one loop, and cancelling is ``task.cancel()`` there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from contextlib import suppress
from os import getpid
from uuid import uuid4

from billiard.exceptions import SoftTimeLimitExceeded

from ..agents import Agent
from ..config import Settings
from ..dispatch import Publisher
from ..errors import ConfigError
from ..lifecycle import Outcome
from ..store import AsyncStore, Keys
from ..store.wake import WakeLine
from .adapters import Adapter, make_adapter
from .ending import runner_prefix
from .leases import LeaseKeeper
from .limits import CeleryLimits, limits_of
from .run import Run, Stop

logger = logging.getLogger(__name__)


class WorkerProcess:
    """The runs of one worker process."""

    def __init__(self, settings: Settings, publisher: Publisher) -> None:
        self.settings = settings
        self.keys = Keys(settings.key_prefix)
        self.publisher = publisher
        self.runner_id = f"{runner_prefix(getpid())}{uuid4().hex[:8]}"
        self._adapters: dict[str, asyncio.Future[Adapter]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="a2a-runs", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def run(self, agent: Agent, task_id: str, run: int, celery: CeleryLimits) -> Outcome | None:
        """Runs `agent` for run `run` of `task_id` and tells how it ended; blocks the thread it is called in.

        None: the run was not ours.
        """
        this = Run(self, agent, task_id, run, limits_of(agent, celery, self.settings.cancel_grace))
        under_way: Future[Outcome | None] = asyncio.run_coroutine_threadsafe(this.perform(), self._loop)
        try:
            return under_way.result()
        except BaseException as e:
            # Whatever ends the Celery task from outside (a time limit, an exit) ends the agent too.
            if not under_way.done():
                stop = Stop.OUT_OF_TIME if isinstance(e, SoftTimeLimitExceeded) else Stop.ABORT
                self._loop.call_soon_threadsafe(this.stop, stop)
                with suppress(Exception):
                    under_way.result(timeout=self.settings.cancel_grace + 1)
            raise

    async def adapter(self, agent: Agent) -> Adapter:
        """The agent's code, imported and built once per process; a failure is tried again at the next run."""
        building = self._adapters.get(agent.name)
        if building is None:
            building = asyncio.ensure_future(self._build(agent))
            self._adapters[agent.name] = building
        try:
            return await asyncio.shield(building)
        except Exception:
            self._adapters.pop(agent.name, None)
            raise

    async def _build(self, agent: Agent) -> Adapter:
        try:
            return await make_adapter(agent, self.settings)
        except (SystemExit, KeyboardInterrupt) as e:  # out of a task they would stop the loop, and with it every run
            raise ConfigError(f"agent {agent.name!r}: its code ends the process when it is loaded: {e!r}") from e

    async def _start(self) -> None:
        self.store = AsyncStore(self.settings.store_url)
        self.line = WakeLine(self.settings.store_url)
        self.leases = LeaseKeeper(self.store, self.keys, self.settings.lease_ttl)
        await self.line.start()
        await self.line.on_message(self.keys.runner(self.runner_id), self.leases.asked_to_cancel)
        self.leases.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
            except BaseException:  # a task of an agent's own called sys.exit(): the loop is everybody's
                logger.exception("something on the loop of all runs tried to end the process")
