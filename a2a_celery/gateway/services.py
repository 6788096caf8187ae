"""Services of one gateway process, and the order in which they start and stop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from celery import Celery
from starlette.applications import Starlette

from ..agents import Agent
from ..archive import open_archive
from ..clock import SYSTEM_CLOCK, Clock
from ..crypto.sealing import sealer_of
from ..dispatch import Publisher
from ..errors import ConfigError
from ..settings import Settings
from ..store import Keys
from ..store.admin.start_check import check_store
from ..store.blobs.blob_store import blobs_of
from ..store.client.tracing import TracedStore
from ..store.log.follow import LogFollower
from ..store.log.pubsub import PubSubListener
from .auth.authenticator import Authenticator
from .auth.card import secured
from .auth.from_settings import authenticator_from_settings
from .handler import GatewayHandler
from .metrics import Metrics
from .operations.background_publisher import BackgroundPublisher
from .operations.limits import OwnerLimits
from .operations.push_configs import PushConfigs
from .operations.task_reader import TaskReader
from .shutdown import GatewayShutdown


class GatewayServices:
    """Services of a gateway that serves `agents`. They connect on their first use.

    Raises:
        ConfigError: An extra is missing (gRPC, object store, archive), or the authentication settings admit no caller.
    """

    def __init__(
        self, app: Celery, agents: Mapping[str, Agent], settings: Settings, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.authenticator = authenticator_from_settings(settings, clock)
        agents = {name: secured(agent, self.authenticator) for name, agent in agents.items()}
        self.blobs = blobs_of(settings)
        self.store = TracedStore(settings.store_url, self.blobs, wait_replicas=settings.store_wait_replicas)
        self.shutdown = GatewayShutdown()
        self._settings = settings
        self._keys = keys = Keys(settings.key_prefix)
        self._listener = PubSubListener(settings.store_url)
        options = {name: agent.options for name, agent in agents.items()}
        publisher = Publisher(app, options, settings.key_prefix)
        waits = settings.redispatch_after, settings.lease_ttl
        self._publisher = BackgroundPublisher(publisher, self.store, keys, *waits, clock)
        self._sealer = sealer_of(settings.secret_keys)
        self._archive = open_archive(settings.archive_url) if settings.archive_url else None
        task_reader = TaskReader(self.store, keys, self._archive, settings.retention)
        self.metrics = Metrics(self.store, keys, agents, clock)
        limits = OwnerLimits(settings, self.store, keys, agents, self.metrics, clock)
        self._push = (
            PushConfigs(settings, self._sealer, self.store, keys, task_reader, limits)
            if self._sealer is not None
            else None
        )
        follower = LogFollower(self.store, keys, self._listener)
        shared = (settings, follower, self._publisher, self.shutdown, self._push, limits, task_reader, clock)
        self.handlers = {name: GatewayHandler(agent, *shared) for name, agent in agents.items()}
        self._grpc_server = _grpc_server(self.handlers, settings, self.authenticator)

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Start the services for the block, on its event loop, and stop them after it.

        Raises:
            ConfigError: The store has another schema, or does not fit these settings.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.store.aclose)
            stack.push_async_callback(self._publisher.aclose)
            for service in (self._push, self._archive):
                if service is not None:
                    stack.push_async_callback(service.aclose)
            await check_store(self.store, self._keys, self._settings, self._sealer)
            stack.push_async_callback(self._listener.stop)
            await self._listener.start()
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
        from .bindings.grpc import GrpcServer  # noqa: PLC0415 - an extra: only who asks for gRPC needs it
    except ImportError as e:
        raise ConfigError(f"gRPC needs an extra: pip install 'a2a-celery[grpc]' ({e})") from e
    return GrpcServer(handlers, settings.grpc_host, settings.grpc_port, settings.max_request_bytes, authenticator)
