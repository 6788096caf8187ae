"""ASGI application of the gateway: every agent under ``/agents/{name}/``, and the first agent at the root too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH, PROTOCOL_VERSION_0_3
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
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import ConfigError
from ..settings import Settings
from ..store import Keys
from ..telemetry.log_redaction import redact_logs
from ..telemetry.sdk import only_where_traced
from .auth.authenticator import Authenticator
from .auth.cross_origin import CrossOriginProtection
from .auth.http import authentication
from .bindings.call_context import HttpCallContextBuilder
from .bindings.endpoints import count_unparsed, guard_rest, guard_rpc
from .bindings.errors import A2AJsonResponse, rest_error, rpc_error
from .bindings.jsonrpc import RpcDispatcher
from .bindings.legacy import legacy_rest_routes
from .bindings.rest import rest_routes
from .bindings.shared_address import SharedAddress
from .cards import MountPath, card_routes
from .handler import GatewayHandler
from .health import Health
from .middleware.extensions import Endpoint, echo_extensions
from .middleware.instrumentation import TraceContext
from .middleware.large_responses import LargeResponseMiddleware
from .page import list_route, shell_routes
from .services import GatewayServices
from .signing_keys import key_routes


def build_asgi(app: Celery, agents: Mapping[str, Agent], settings: Settings, clock: Clock = SYSTEM_CLOCK) -> Starlette:
    """Return the application. It connects on its first use, and belongs to the event loop of that use.

    Raises:
        ConfigError: There is no agent, an extra is missing (gRPC, object store, archive), or the authentication
            settings admit no caller.
    """
    if not agents:
        raise ConfigError("no agent is registered: a2a.add_agent(…), @a2a.agent(…); see the README")
    redact_logs()
    only_where_traced()
    services = GatewayServices(app, agents, settings, clock)
    handlers = services.handlers
    health = Health(app, services.store, Keys(settings.key_prefix), clock).routes()
    signing_keys = key_routes(settings)
    shell = shell_routes() if settings.ui else []
    routes: list[BaseRoute] = [*health, *signing_keys, *services.metrics.routes(), *shell]
    if settings.ui:
        routes.append(list_route(handlers))
    for name, handler in handlers.items():
        routes += _agent_routes(handler, settings, f"/agents/{name}")
    first = next(iter(handlers.values()))
    routes += _agent_routes(first, settings, "", SharedAddress.of(handlers))
    asgi = Starlette(
        routes=routes,
        lifespan=services.lifespan,
        exception_handlers={HTTPException: _unknown},
        middleware=[
            Middleware(TraceContext),
            Middleware(MountPath),
            _authentication(services.authenticator, settings, handlers, [*health, *signing_keys], shell),
            *([Middleware(LargeResponseMiddleware)] if services.blobs is not None else []),
        ],
    )
    # every path of one word begins a tenant's paths: it would be sent from /word to /word/, where nothing is either
    asgi.router.redirect_slashes = False
    asgi.state.shutdown = services.shutdown  # for the code that receives the stop signal first
    return asgi


def _authentication(
    authenticator: Authenticator | None,
    settings: Settings,
    agents: Iterable[str],
    open_to_all: Iterable[Route],
    shell: Iterable[Route],
) -> Middleware:
    """Return the middleware that authenticates callers, or without an authenticator the one that rejects other origins'
    pages.

    With an authenticator, the routes `open_to_all` and the cards stay public. So do the files of the operator's page,
    its `shell`: a browser sends no token before the page asks its user for one.
    """
    paths = ["", *(f"/agents/{name}" for name in agents)]
    rpc = {place for path in paths for place in (path, f"{path}/")}
    if authenticator is None:
        return Middleware(CrossOriginProtection, settings=settings, rpc=rpc)
    public = {route.path for route in open_to_all} | {path + AGENT_CARD_WELL_KNOWN_PATH for path in paths}
    if authenticator.accepts_client_credentials:
        public |= {route.path for route in shell}
    return authentication(authenticator, public=public, rpc=rpc)


def _agent_routes(
    handler: GatewayHandler, settings: Settings, path: str, shared: GatewayHandler | None = None
) -> list[BaseRoute]:
    """Return the routes under `path`, "" for the root, where `shared` serves the clients of protocol 1.0."""
    context_builder, limit = HttpCallContextBuilder(path), settings.max_request_bytes
    serving = shared or handler

    def echoing(endpoint: Endpoint) -> Endpoint:
        return echo_extensions(endpoint, handler.agent.card, shared=shared is not None)

    def counting(endpoint: Endpoint) -> Endpoint:
        return count_unparsed(endpoint, handler, rest_error)

    def around(endpoint: Endpoint) -> Endpoint:
        return echoing(counting(endpoint))

    dispatch = guard_rpc(RpcDispatcher(serving, path, legacy=handler).handle_requests, limit)
    rpc = echoing(count_unparsed(dispatch, handler, rpc_error))
    older = HttpCallContextBuilder(path, PROTOCOL_VERSION_0_3)
    legacy = legacy_rest_routes(handler, older, handler.shutdown, handler.clock)
    routes: list[BaseRoute] = [
        # the most frequent first, because routes are tried in order
        *guard_rest(rest_routes(serving, context_builder), limit, around),
        Route("/", rpc, methods=["POST"]),
        *card_routes(handler.agent, settings, path),
        *guard_rest(legacy, limit, counting),
        *guard_rest(rest_routes(serving, context_builder, "/{tenant}"), limit, around),
    ]
    plain = Router(routes, redirect_slashes=False)  # as of the application itself, see there
    # a mount does not answer at its own path without a slash, where JSON-RPC clients may well look for it
    return [Route(path, rpc, methods=["POST"]), Mount(path, app=plain)] if path else routes


async def _unknown(request: Request, error: Exception) -> Response:
    """Return the error for an unknown path or method, as the HTTP+JSON binding formats it."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return rest_error(MethodNotFoundError(f"Nothing is served at {request.method} {request.url.path}"))
    payload = build_rest_error_payload(MethodNotFoundError(f"{request.method} is not served at {request.url.path}"))
    payload["error"] |= {"code": error.status_code, "status": "UNIMPLEMENTED"}
    return A2AJsonResponse(payload, status_code=error.status_code, headers=error.headers)
