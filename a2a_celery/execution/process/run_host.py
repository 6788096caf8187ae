"""Host of the runs of a worker process: the connection to the store, the leases, the lifespans of the app and the
adapters of the agents. All runs share the host on one event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from os import getpid
from types import MappingProxyType

from ...agents import Agent
from ...clock import SYSTEM_CLOCK, Clock
from ...concurrency import settle
from ...dispatch import Publisher
from ...errors import ConfigError
from ...features import AppFeature
from ...lifecycle import Failure
from ...lifecycle.outcomes import OUT_OF_TIME
from ...lifecycle.references import RunRef
from ...operations.publication import RunPublisher
from ...operations.service import TaskService
from ...operations.submitter import TaskSubmitter
from ...settings import Settings
from ...store import AsyncStore, Keys
from ...store.blobs.blob_store import blobs_of
from ...store.client.connection import TracedStore
from ...store.log.follower import LogFollower
from ...store.log.pubsub import PubSubListener
from ...telemetry.logs import about
from ...telemetry.names import Action
from ..agents.adapters import Adapter, make_adapter
from ..open_run import TaskAccess
from .forced_stop import RunEnder, Stop, end_process, in_pool_child
from .leases import LeaseKeeper
from .thread_cleanup import ThreadCleanup

logger = logging.getLogger(__name__)

Lifespan = Callable[[], AbstractAsyncContextManager[object]]


class OpenLifespans:
    """Lifespans of one process. One asyncio task enters and exits the lifespans, as anyio's cancel scopes require."""

    def __init__(self, lifespans: Sequence[Lifespan]) -> None:
        self._lifespans = lifespans
        self._holder: asyncio.Task[None] | None = None
        self._entered: asyncio.Future[None]
        self._stopped = asyncio.Event()

    async def enter(self) -> None:
        """Enter the lifespans if they are not entered yet.

        Raises:
            ConfigError: A lifespan could not be entered. The lifespans that were already entered are exited, and the
                next call tries again.
        """
        if not self._lifespans:
            return
        if self._holder is None:
            self._entered = asyncio.get_running_loop().create_future()
            self._holder = asyncio.create_task(self._hold(self._entered), name="a2a-lifespan")
        await asyncio.shield(self._entered)

    async def leave(self) -> None:
        """Exit the lifespans in reverse order. If a lifespan is still being entered, cancel it and its waiters."""
        self._stopped.set()
        if self._holder is not None:
            if self._entered.cancel():
                self._holder.cancel()
            await asyncio.wait({self._holder})

    async def _hold(self, entry_future: asyncio.Future[None]) -> None:
        try:
            async with AsyncExitStack() as stack:
                for lifespan in self._lifespans:
                    await stack.enter_async_context(lifespan())
                settle(entry_future, None, None)
                await self._stopped.wait()
        except BaseException as e:  # including SystemExit, which would stop the event loop of all runs
            if entry_future.cancelled():
                logger.warning("the process stops while its lifespans are being entered")
            elif entry_future.done():
                logger.exception("a lifespan failed")
            else:
                self._holder = None
                error = ConfigError(f"a lifespan could not be entered: {type(e).__name__}: {e}")
                error.__cause__ = e
                entry_future.set_exception(error)


class RunHost:
    """Resources that the runs of a worker process share. Create and use a host on the event loop of its runs.

    Args:
        settings: Settings of the fleet.
        publisher: Publisher of runs.
        runner_id: Id of the worker process in the store.
        cleanup: Cleanup after the code of agents, or None for none.
        lifespans: Lifespans to enter before the first agent is loaded.
        app_features: Features that the app uses in its runs.
        agents: Agents of the app, by name.
        store: Client of the store, or None to create one from `settings`.
        clock: Clock of the runs and their leases.
    """

    def __init__(
        self,
        settings: Settings,
        publisher: Publisher,
        runner_id: str,
        cleanup: ThreadCleanup | None = None,
        lifespans: Sequence[Lifespan] = (),
        app_features: Sequence[AppFeature] = (),
        agents: Mapping[str, Agent] = MappingProxyType({}),
        *,
        store: AsyncStore | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.settings, self.publisher, self.clock = settings, publisher, clock
        self.keys = Keys(settings.key_prefix)
        self.runner_id = runner_id
        self.cleanup = cleanup
        self.app_features = app_features
        self.store = store or TracedStore(
            settings.store_url, blobs_of(settings), wait_replicas=settings.store_wait_replicas
        )
        self.listener = PubSubListener(settings.store_url)
        self.runs = RunPublisher(publisher, self.store, self.keys, settings, clock, in_batches=True)
        self.leases = LeaseKeeper(self.store, self.keys, settings.lease_ttl, clock)
        service = TaskService(agents, settings, self.store, self.keys, self.runs)
        self.tasks = TaskAccess(TaskSubmitter(service), LogFollower(self.store, self.keys, self.listener))
        self._ender = RunEnder(lambda: settings)
        self._lifespans = OpenLifespans(lifespans)
        self._adapters: dict[str, asyncio.Future[Adapter]] = {}

    async def start(self) -> None:
        """Connect to the store, subscribe to the notifications for this process, and start renewing leases."""
        await self.listener.start()
        await self.listener.on_message(self.keys.runner(self.runner_id), self.leases.notified)
        self.leases.start()

    async def exit_lifespans(self) -> None:
        """Exit the lifespans in reverse order. No run may begin afterwards."""
        await self._lifespans.leave()

    async def disconnect(self) -> None:
        """Stop renewing leases, and close the connections."""
        await self.leases.stop()
        await self.listener.stop()
        await self.runs.aclose()
        await self.store.aclose()

    async def adapter(self, agent: Agent) -> Adapter:
        """Return the adapter of `agent`, which is created once per process. A failed import is repeated in the next
        run."""
        building = self._adapters.get(agent.name)
        if building is None:
            building = asyncio.ensure_future(self._build(agent))
            self._adapters[agent.name] = building
        try:
            return await asyncio.shield(building)
        except Exception:
            self._adapters.pop(agent.name, None)
            raise

    def force(self, ref: RunRef, stop: Stop) -> None:
        """Exit this process to end an agent that ignores `stop`. In a process that is not a prefork child, do nothing.

        If the run was cancelled or lost, the main process writes the outcome. The main process does not know that a run
        has reached its time limit, so this method then writes the outcome.
        """
        if not in_pool_child():
            return
        extra = about(Action.RUN_ABANDONED, ref.name)
        reason = f"run {ref.name}: its agent ignores the stop ({stop.value}): ending its process"
        logger.error(reason, extra=extra)
        if stop is Stop.OUT_OF_TIME:
            self._ender.end(ref.name, Failure(OUT_OF_TIME), worker_pid=getpid())
        end_process()

    async def _build(self, agent: Agent) -> Adapter:
        try:
            await self._lifespans.enter()
            return await make_adapter(agent, self.cleanup)
        # raised in an asyncio task, these exceptions would stop the loop and therefore all runs
        except (SystemExit, KeyboardInterrupt) as e:
            raise ConfigError(f"agent {agent.name!r}: its code ends the process when it is loaded: {e!r}") from e
