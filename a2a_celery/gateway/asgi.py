"""ASGI application of the gateway. Each agent is served under ``/agents/{name}/``. At the root, the tenant of a request
of protocol 1.0 selects the agent, and the first agent serves all other requests.

`GatewayServices` owns the services of a process, and starts and stops them in order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import MethodNotFoundError
from celery import Celery
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router

from ..agents import Agent
from ..archive import open_archive
from ..clock import SYSTEM_CLOCK, Clock
from ..crypto.sealing import sealer_of
from ..dispatch import Publisher
from ..errors import ConfigError
from ..features.operations import GATEWAY_FEATURES
from ..operations.publication import RunPublisher
from ..operations.requests import check_input_modes
from ..operations.service import TaskService
from ..settings import Settings
from ..store import AsyncStore, Keys
from ..store.admin.start_check import check_store
from ..store.blobs.blob_store import blobs_of
from ..store.client.connection import TracedStore
from ..store.log.follower import LogFollower
from ..store.log.pubsub import PubSubListener
from ..telemetry.log_redaction import redact_logs
from ..telemetry.sdk import only_where_traced
from .auth.authenticator import Authenticator
from .auth.cross_origin import CrossOriginAccess, CrossOriginProtection
from .auth.from_settings import authenticator_from_settings, secure_agent
from .auth.http import authentication
from .auth.refusal_log import AGENT, REASONS, RefusalLog
from .bindings.endpoints import A2AJsonResponse, Address, rest_error, rpc_body_error
from .bindings.jsonrpc import RpcDispatcher
from .bindings.legacy import legacy_rest_routes
from .bindings.rest import rest_routes
from .cards import card_routes, check_signed_cards, key_routes
from .discovery import discovery_routes
from .gate import Gate
from .handler import GatewayHandler
from .health import Health
from .inbox import inbox_route
from .metrics import Metrics
from .middleware.bodies import LargeResponseMiddleware, NoStoreMiddleware
from .operations.task_reader import TaskReader
from .operator.api import PATH as OPERATOR_PATH
from .operator.api import OperatorApi
from .page import PATH as PAGE_PATH
from .page import list_route, root_route, shell_routes
from .pipeline import MountPath, TraceContext
from .shutdown import GatewayShutdown

CLOSED_PATHS = (PAGE_PATH, OPERATOR_PATH, "/metrics", "/health")
"""Paths that no page of another origin can read, whatever `cors_origins` contains."""

MAX_NAMES = 20
"""Maximum number of agents that the error for an unknown agent names."""


class GatewayServices:
    """Services of a gateway. The services connect on first use.

    Args:
        app: Celery app whose broker receives the runs.
        agents: Agents that the gateway serves, by name.
        settings: Settings of the deployment.
        clock: Clock of the services.
        publisher: Publisher of runs, or None for a publisher that uses the broker of `app`.
        store: Store client, which the services close, or None for a client of the store in `settings`.

    Raises:
        ConfigError: An extra is missing (gRPC, object store, archive), the authentication settings are incomplete or
            contradictory, a card does not match the settings, an input mode of a card is not a media type, or the
            gateway would change a signed card.
    """

    def __init__(
        self,
        app: Celery,
        agents: Mapping[str, Agent],
        settings: Settings,
        clock: Clock = SYSTEM_CLOCK,
        *,
        publisher: Publisher | None = None,
        store: AsyncStore | None = None,
        grpc_host: str = "127.0.0.1",
    ) -> None:
        self.authenticator = authenticator_from_settings(settings, clock)
        self.refusal_log = RefusalLog(clock) if self.authenticator is None else self.authenticator.refusal_log
        secured_agents = {name: secure_agent(agent, self.authenticator) for name, agent in agents.items()}
        for name, agent in agents.items():
            check_input_modes(name, agent.card)
            check_signed_cards(agent, secured_agents[name], settings)
        agents = secured_agents
        self.blobs = blobs_of(settings)
        self.store = store or TracedStore(settings.store_url, self.blobs, wait_replicas=settings.store_wait_replicas)
        self.shutdown = GatewayShutdown()
        self._settings = settings
        self._keys = keys = Keys(settings.key_prefix)
        self._listener = PubSubListener(settings.store_url)
        publisher = publisher or Publisher.of(app, agents, settings.key_prefix)
        runs = RunPublisher(publisher, self.store, keys, settings, clock, in_background=True)
        self._service = TaskService(agents, settings, self.store, keys, runs)
        self._sealer = sealer_of(settings.secret_keys)
        self._archive = open_archive(settings.archive_url) if settings.archive_url else None
        task_reader = TaskReader(self.store, keys, self._archive, settings.retention)
        self.metrics = self.refusal_log.metrics = Metrics(self.store, keys, agents, clock)
        self.metrics.declare_refused_callers(REASONS)
        self._gate = gate = Gate(settings, self.store, keys, agents, self.metrics, clock)
        opened = (open_feature(self._service, task_reader, gate) for open_feature in GATEWAY_FEATURES)
        self._features = [feature for feature in opened if feature is not None]
        follower = LogFollower(self.store, keys, self._listener)
        shared = (settings, follower, self._service, self.shutdown, self._features, gate, task_reader)
        self.inbox = inbox_route(agents, self.store, keys, gate, self.refusal_log)
        self.operator_api = OperatorApi(
            app, agents, settings, self.store, keys, gate, self.refusal_log, self._service, clock
        )
        self.handlers = {
            name: GatewayHandler(agent, *shared, self.refusal_log, clock) for name, agent in agents.items()
        }
        self._grpc_server = _grpc_server(self.handlers, settings, grpc_host, self.authenticator, clock)

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Start the services when the application starts, and stop the services when the application stops.

        Raises:
            ConfigError: The store has a different schema version, or its configuration does not fit these settings.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.store.aclose)
            stack.push_async_callback(self._service.runs.aclose)
            stack.callback(self._gate.close)
            for service in (*self._features, self._archive):
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
    handlers: Mapping[str, GatewayHandler],
    settings: Settings,
    host: str,
    authenticator: Authenticator | None,
    clock: Clock,
):
    if settings.grpc_port is None:
        return None
    try:
        from .bindings.grpc import GrpcServer  # noqa: PLC0415 - an extra that only gRPC needs
    except ImportError as e:
        raise ConfigError(f"gRPC needs an extra: pip install 'a2a-celery[grpc]' ({e})") from e
    return GrpcServer(handlers, host, settings.grpc_port, settings.max_request_bytes, authenticator, clock=clock)


def build_asgi(
    app: Celery,
    agents: Mapping[str, Agent],
    settings: Settings,
    clock: Clock = SYSTEM_CLOCK,
    *,
    publisher: Publisher | None = None,
    store: AsyncStore | None = None,
    grpc_host: str = "127.0.0.1",
) -> Starlette:
    """Return the ASGI application. The services connect on first use, and must then stay on the same event loop.

    See `GatewayServices` for the arguments.

    Raises:
        ConfigError: `agents` is empty. See `GatewayServices` for other reasons.
    """
    if not agents:
        raise ConfigError("no agent is registered: a2a.add_agent(…), @a2a.agent(…); see the README")
    redact_logs()
    only_where_traced()
    services = GatewayServices(app, agents, settings, clock, publisher=publisher, store=store, grpc_host=grpc_host)
    handlers = services.handlers
    health = Health(app, services.store, Keys(settings.key_prefix), agents, clock).routes()
    keys = key_routes(settings)
    shell = [*(shell_routes() if settings.ui else []), root_route(has_page=settings.ui)]
    operator_api = services.operator_api
    root = Address("", next(iter(handlers.values())), handlers)
    routes: list[BaseRoute] = [
        # The most frequent routes come first, because Starlette tries routes in order.
        *rest_routes(root, settings.max_request_bytes),
        *health,
        *keys,
        *_discovery_routes(services, settings),
        *services.metrics.routes(),
        *shell,
    ]
    routes += operator_api.routes()
    if settings.ui:
        can_sign_in = services.authenticator is not None and services.authenticator.accepts_client_credentials
        agents_list = list_route(handlers, operator_api.role, can_sign_in=can_sign_in)
        routes += [agents_list, services.inbox]
    for name, handler in handlers.items():
        routes += _agent_routes(Address(f"/agents/{name}", handler), settings)
    routes += _agent_routes(root, settings)
    asgi = Starlette(
        routes=routes,
        lifespan=services.lifespan,
        exception_handlers={HTTPException: partial(_unknown, tuple(handlers))},
        middleware=[
            # outside of the authentication, so that scripts can read why a request is refused
            *_cross_origin_access(services, settings),
            Middleware(NoStoreMiddleware),
            Middleware(TraceContext),
            Middleware(MountPath),
            _authentication(services, settings, handlers, [*health, *keys], shell),
            Middleware(LargeResponseMiddleware, clock=clock),
        ],
    )
    # An unknown path gets the error of `_unknown`, not a redirect to the path with or without a trailing slash.
    asgi.router.redirect_slashes = False
    asgi.state.shutdown = services.shutdown  # for the code that receives the stop signal first
    return asgi


def _cross_origin_access(services: GatewayServices, settings: Settings) -> list[Middleware]:
    if not settings.cors_origins:
        return []
    log = services.refusal_log
    return [Middleware(CrossOriginAccess, settings=settings, closed=CLOSED_PATHS, refusal_log=log)]


def _discovery_routes(services: GatewayServices, settings: Settings) -> list[Route]:
    agents = {name: handler.agent for name, handler in services.handlers.items()}
    schemes = () if services.authenticator is None else services.authenticator.schemes
    delay = next(iter(services.handlers.values())).gate.card_delay
    return discovery_routes(agents, settings, schemes, delay)


def _authentication(
    services: GatewayServices,
    settings: Settings,
    agents: Iterable[str],
    open_to_all: Iterable[Route],
    shell: Iterable[Route],
) -> Middleware:
    """Return the middleware that authenticates callers. Without an authenticator, return `CrossOriginProtection`.

    With an authenticator, the routes `open_to_all` and the cards stay public. If clients send credentials themselves,
    the files of the operator's page (`shell`) are public too, because a browser has no token until the page has asked
    the user for one.
    """
    paths = ["", *(f"/agents/{name}" for name in agents)]
    rpc = {place for path in paths for place in (path, f"{path}/")}
    authenticator = services.authenticator
    if authenticator is None:
        return Middleware(CrossOriginProtection, settings=settings, rpc=rpc, refusal_log=services.refusal_log)
    public = {route.path for route in open_to_all} | {path + AGENT_CARD_WELL_KNOWN_PATH for path in paths}
    if authenticator.accepts_client_credentials:
        public |= {route.path for route in shell}
    return authentication(authenticator, public=public, rpc=rpc)


def _agent_routes(address: Address, settings: Settings) -> list[BaseRoute]:
    """Return the routes at `address`."""
    path, handler, limit = address.path, address.handler, settings.max_request_bytes
    rpc = address.endpoint(RpcDispatcher(address).handle_requests, limit, rpc_body_error)
    routes: list[BaseRoute] = [
        *(rest_routes(address, limit) if path else []),
        Route("/", rpc, methods=["POST"]),
        *card_routes(handler.agent, settings, path, handler.metrics, handler.gate.card_delay),
        *legacy_rest_routes(address, limit),
        *rest_routes(address, limit, "/{tenant}"),
    ]
    plain = Router(routes, redirect_slashes=False)  # see `build_asgi`
    # A mount does not serve its own path without a trailing slash, which some JSON-RPC clients use.
    return [Route(path, rpc, methods=["POST"]), Mount(path, app=plain)] if path else routes


async def _unknown(agents: Sequence[str], request: Request, error: Exception) -> Response:
    """Return the error for an unknown agent, path or method, in the format of the HTTP+JSON binding."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        text = f"Nothing is served at {request.method} {request.url.path}"
        path = request.url.path.removeprefix(request.scope["app_root_path"])
        agent = AGENT.match(path)
        if agent is not None and agent[1] not in agents:
            text += f": there is no agent {agent[1]!r}. Agents: {', '.join(agents[:MAX_NAMES])}"
        elif path.rstrip("/") == "/ui":
            text += ": the operator's page is off. Set A2A_UI=on"
        return rest_error(MethodNotFoundError(text))
    payload = build_rest_error_payload(MethodNotFoundError(f"{request.method} is not served at {request.url.path}"))
    payload["error"] |= {"code": error.status_code, "status": "UNIMPLEMENTED"}
    return A2AJsonResponse(payload, status_code=error.status_code, headers=error.headers)
