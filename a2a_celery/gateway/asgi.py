"""The gateway as an ASGI application: every agent under ``/agents/{name}/``, the first one at the root too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from a2a.server.routes import create_rest_routes
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import MethodNotFoundError
from celery import Celery
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router

from ..agents import Agent
from ..config import Settings
from ..discretion import keep_secrets_out_of_logs
from ..dispatch import Publisher
from ..errors import ConfigError
from ..sealing import sealer_of
from ..store import Keys
from ..store.follow import LogFollower
from ..store.push_configs import require_secrets_in_use
from ..store.traced import TracedStore
from ..store.wake import WakeLine
from .cards import card_routes
from .extensions import Endpoint, echo_extensions
from .handler import GatewayHandler
from .health import Health
from .http import CallContextBuilder, RpcDispatcher, guard_rest, guard_rpc, rest_error
from .leaving import Leaving
from .legacy import legacy_rest_routes
from .metrics import Metrics
from .observing import TraceContext
from .push_configs import PushConfigs


def build_asgi(app: Celery, agents: Mapping[str, Agent], settings: Settings) -> Starlette:
    """The application. It connects when it is first asked, on the event loop it is then in, and lives on that one.

    Raises:
        ConfigError: there is no agent, or gRPC is wanted without its extra.
    """
    if not agents:
        raise ConfigError("no agent is registered: a2a.add_agent(…), @a2a.agent(…); see the README")
    keep_secrets_out_of_logs()
    store = TracedStore(settings.store_url)
    line = WakeLine(settings.store_url)
    keys = Keys(settings.key_prefix)
    follower = LogFollower(store, keys, line)
    publisher = Publisher(app, {name: agent.options for name, agent in agents.items()})
    leaving = Leaving()
    sealer = sealer_of(settings)
    push = PushConfigs(settings, sealer, store, keys) if sealer is not None else None
    metrics = Metrics(store, keys, agents)
    handlers = {
        name: GatewayHandler(agent, settings, follower, publisher, leaving, push, metrics)
        for name, agent in agents.items()
    }
    grpc_server = _grpc_server(handlers, settings)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(store.aclose)
            if push is not None:
                stack.push_async_callback(push.aclose)
            await require_secrets_in_use(store, keys, sealer)
            stack.push_async_callback(line.stop)
            await line.start()
            await metrics.start()
            if grpc_server is not None:
                stack.push_async_callback(grpc_server.stop)
                await grpc_server.start()
            yield

    routes: list[BaseRoute] = [*Health(app, store).routes(), *metrics.routes()]
    for name, handler in handlers.items():
        routes += _agent_routes(handler, settings, f"/agents/{name}")
    routes += _agent_routes(next(iter(handlers.values())), settings, "")
    asgi = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: _unknown},
        middleware=[Middleware(TraceContext)],
    )
    # every path of one word begins a tenant's paths: it would be sent from /word to /word/, where nothing is either
    asgi.router.redirect_slashes = False
    asgi.state.leaving = leaving  # for whoever hears first that the process is to stop
    return asgi


def _agent_routes(handler: GatewayHandler, settings: Settings, path: str) -> list[BaseRoute]:
    """What is served under `path`, "" for the root."""
    context_builder = CallContextBuilder(path)
    limit = settings.max_request_bytes

    def echoing(endpoint: Endpoint) -> Endpoint:
        return echo_extensions(endpoint, handler.agent.card)

    rpc = echoing(guard_rpc(RpcDispatcher(handler, context_builder).handle_requests, limit))
    routes: list[BaseRoute] = [
        *card_routes(handler.agent, settings, path),
        Route("/", rpc, methods=["POST"]),
        *guard_rest([*legacy_rest_routes(handler, context_builder)], limit),
        *guard_rest(create_rest_routes(handler, context_builder), limit, echoing),
    ]
    plain = Router(routes, redirect_slashes=False)  # as of the application itself, see there
    # a mount does not answer at its own path without a slash, where JSON-RPC clients may well look for it
    return [Route(path, rpc, methods=["POST"]), Mount(path, app=plain)] if path else routes


def _grpc_server(handlers: Mapping[str, GatewayHandler], settings: Settings):  # type: ignore[no-untyped-def]
    if settings.grpc_port is None:
        return None
    try:
        from .grpc import GrpcServer  # noqa: PLC0415 - an extra: only who asks for gRPC needs it
    except ImportError as e:
        raise ConfigError(f"gRPC needs an extra: pip install 'a2a-celery[grpc]' ({e})") from e
    return GrpcServer(handlers, settings.grpc_host, settings.grpc_port, settings.max_request_bytes)


async def _unknown(request: Request, error: Exception) -> Response:
    """A path or a method that is nobody's, in the words of the HTTP+JSON binding."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return rest_error(MethodNotFoundError(f"Nothing is served at {request.method} {request.url.path}"))
    payload = build_rest_error_payload(MethodNotFoundError(f"{request.method} is not served at {request.url.path}"))
    payload["error"] |= {"code": error.status_code, "status": "UNIMPLEMENTED"}
    return JSONResponse(payload, status_code=error.status_code, headers=error.headers)
