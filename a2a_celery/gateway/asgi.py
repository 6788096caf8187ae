"""The gateway as an ASGI application: every agent under ``/agents/{name}/``, the first one at the root too."""

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
from ..config import Settings
from ..discretion import keep_secrets_out_of_logs
from ..errors import ConfigError
from ..telemetry.sdk import only_where_traced
from .auth.authenticator import Authenticator
from .auth.http import authentication
from .cards import MountPath, card_routes
from .extensions import Endpoint, echo_extensions
from .handler import GatewayHandler
from .health import Health
from .holding import HoldsLargeParts
from .http import CallContextBuilder, RpcDispatcher, guard_rest, guard_rpc
from .legacy import legacy_rest_routes
from .observing import TraceContext
from .page import list_route, shell_routes
from .parts import Parts
from .rest import rest_routes
from .rest_errors import A2AJsonResponse, rest_error
from .tenants import SharedAddress


def build_asgi(app: Celery, agents: Mapping[str, Agent], settings: Settings, clock: Clock = SYSTEM_CLOCK) -> Starlette:
    """The application. It connects when it is first asked, on the event loop it is then in, and lives on that one.

    Raises:
        ConfigError: there is no agent, gRPC, an object store or an archive is wanted without its extra, or nobody could
            be authenticated as it is set.
    """
    if not agents:
        raise ConfigError("no agent is registered: a2a.add_agent(…), @a2a.agent(…); see the README")
    keep_secrets_out_of_logs()
    only_where_traced()
    parts = Parts(app, agents, settings, clock)
    handlers = parts.handlers
    health, shell = Health(app, parts.store, clock).routes(), shell_routes() if settings.ui else []
    routes: list[BaseRoute] = [*health, *parts.metrics.routes(), *shell]
    if settings.ui:
        routes.append(list_route(handlers))
    for name, handler in handlers.items():
        routes += _agent_routes(handler, settings, f"/agents/{name}")
    first = next(iter(handlers.values()))
    routes += _agent_routes(first, settings, "", SharedAddress.of(handlers))
    asgi = Starlette(
        routes=routes,
        lifespan=parts.lifespan,
        exception_handlers={HTTPException: _unknown},
        middleware=[
            Middleware(TraceContext),
            Middleware(MountPath),
            *_authentication(parts.authenticator, handlers, health, shell),
            *([Middleware(HoldsLargeParts)] if parts.blobs is not None else []),
        ],
    )
    # every path of one word begins a tenant's paths: it would be sent from /word to /word/, where nothing is either
    asgi.router.redirect_slashes = False
    asgi.state.leaving = parts.leaving  # for whoever hears first that the process is to stop
    return asgi


def _authentication(
    authenticator: Authenticator | None, agents: Iterable[str], health: Iterable[Route], shell: Iterable[Route]
) -> list[Middleware]:
    """What looks at who asks, if anything does: for all there is, but probes and cards.

    The files of the operator's page, its `shell`, are for everybody where a person types in who they are: a browser
    sends no token before the page asks for it.
    """
    if authenticator is None:
        return []
    paths = ["", *(f"/agents/{name}" for name in agents)]
    public = {route.path for route in health} | {path + AGENT_CARD_WELL_KNOWN_PATH for path in paths}
    if authenticator.takes_tokens:
        public |= {route.path for route in shell}
    rpc = {place for path in paths for place in (path, f"{path}/")}
    return [authentication(authenticator, public=public, rpc=rpc)]


def _agent_routes(
    handler: GatewayHandler, settings: Settings, path: str, shared: GatewayHandler | None = None
) -> list[BaseRoute]:
    """Return what is served under `path`, "" for the root, where `shared` answers clients of protocol 1.0."""
    context_builder, limit = CallContextBuilder(path), settings.max_request_bytes
    serving = shared or handler

    def echoing(endpoint: Endpoint) -> Endpoint:
        return echo_extensions(endpoint, handler.agent.card, shared=shared is not None)

    rpc = echoing(guard_rpc(RpcDispatcher(serving, path, legacy=handler).handle_requests, limit))
    older = CallContextBuilder(path, PROTOCOL_VERSION_0_3)
    legacy = legacy_rest_routes(handler, older, handler.leaving, handler.clock)
    routes: list[BaseRoute] = [
        # first what is asked for most, for routes are tried one behind the other
        *guard_rest(rest_routes(serving, context_builder), limit, echoing),
        Route("/", rpc, methods=["POST"]),
        *card_routes(handler.agent, settings, path),
        *guard_rest(legacy, limit),
        *guard_rest(rest_routes(serving, context_builder, "/{tenant}"), limit, echoing),
    ]
    plain = Router(routes, redirect_slashes=False)  # as of the application itself, see there
    # a mount does not answer at its own path without a slash, where JSON-RPC clients may well look for it
    return [Route(path, rpc, methods=["POST"]), Mount(path, app=plain)] if path else routes


async def _unknown(request: Request, error: Exception) -> Response:
    """A path or a method that is nobody's, in the words of the HTTP+JSON binding."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return rest_error(MethodNotFoundError(f"Nothing is served at {request.method} {request.url.path}"))
    payload = build_rest_error_payload(MethodNotFoundError(f"{request.method} is not served at {request.url.path}"))
    payload["error"] |= {"code": error.status_code, "status": "UNIMPLEMENTED"}
    return A2AJsonResponse(payload, status_code=error.status_code, headers=error.headers)
