"""What a gateway is made of, one of each for a process, and the order in which that starts and stops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from celery import Celery
from starlette.applications import Starlette

from ..agents import Agent
from ..archive import open_archive
from ..clock import SYSTEM_CLOCK, Clock
from ..config import Settings
from ..dispatch import Publisher
from ..errors import ConfigError
from ..sealing import sealer_of
from ..store import Keys
from ..store.blobs import blobs_of
from ..store.follow import LogFollower
from ..store.start_check import check_store
from ..store.traced import TracedStore
from ..store.wake import WakeLine
from .auth.authenticator import Authenticator
from .auth.card import secured
from .auth.configured import authenticator_of
from .handing_over import HandingOver
from .handler import GatewayHandler
from .kept import KeptTasks
from .leaving import Leaving
from .limits import Limits
from .metrics import Metrics
from .push_configs import PushConfigs


class Parts:
    """The parts of a gateway that serves `agents`. They connect when they are first asked.

    Raises:
        ConfigError: gRPC, an object store or an archive is wanted without its extra, or nobody could be authenticated
            as it is set.
    """

    def __init__(
        self, app: Celery, agents: Mapping[str, Agent], settings: Settings, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.authenticator = authenticator_of(settings, clock)
        agents = {name: secured(agent, self.authenticator) for name, agent in agents.items()}
        self.blobs = blobs_of(settings)
        self.store = TracedStore(settings.store_url, self.blobs)
        self.leaving = Leaving()
        self._settings = settings
        self._keys = keys = Keys(settings.key_prefix)
        self._line = WakeLine(settings.store_url)
        options = {name: agent.options for name, agent in agents.items()}
        publisher = Publisher(app, options, settings.key_prefix)
        waits = settings.redispatch_after, settings.lease_ttl
        self._handing_over = HandingOver(publisher, self.store, keys, *waits, clock)
        self._sealer = sealer_of(settings)
        self._archive = open_archive(settings.archive_url) if settings.archive_url else None
        kept = KeptTasks(self.store, keys, self._archive, settings.retention)
        self._push = PushConfigs(settings, self._sealer, self.store, keys, kept) if self._sealer is not None else None
        self.metrics = Metrics(self.store, keys, agents, clock)
        limits = Limits(settings, self.store, keys, agents, self.metrics, clock)
        follower = LogFollower(self.store, keys, self._line)
        shared = (settings, follower, self._handing_over, self.leaving, self._push, limits, kept, clock)
        self.handlers = {name: GatewayHandler(agent, *shared) for name, agent in agents.items()}
        self._grpc_server = _grpc_server(self.handlers, settings, self.authenticator)

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """A block in which they serve, on the event loop it is in.

        Raises:
            ConfigError: the store has another schema, or can't be used with these settings.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.store.aclose)
            stack.push_async_callback(self._handing_over.aclose)
            for part in (self._push, self._archive):
                if part is not None:
                    stack.push_async_callback(part.aclose)
            await check_store(self.store, self._keys, self._settings, self._sealer)
            stack.push_async_callback(self._line.stop)
            await self._line.start()
            await self.metrics.start()
            for server in (self.authenticator, self._grpc_server):
                if server is not None:
                    stack.push_async_callback(server.stop)
                    await server.start()
            yield


def _grpc_server(  # type: ignore[no-untyped-def]
    handlers: Mapping[str, GatewayHandler], settings: Settings, authenticator: Authenticator | None
):
    if settings.grpc_port is None:
        return None
    try:
        from .grpc import GrpcServer  # noqa: PLC0415 - an extra: only who asks for gRPC needs it
    except ImportError as e:
        raise ConfigError(f"gRPC needs an extra: pip install 'a2a-celery[grpc]' ({e})") from e
    return GrpcServer(handlers, settings.grpc_host, settings.grpc_port, settings.max_request_bytes, authenticator)
