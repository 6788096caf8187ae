"""The gRPC binding, protocols 1.0 and 0.3, on one port for all agents: the request's tenant names the agent.

Needs the extra ``grpc``.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

import grpc.aio
from a2a.auth.user import User
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.extensions.common import HTTP_EXTENSION_HEADER
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import grpc_handler
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import a2a_pb2_grpc
from a2a.utils.errors import A2AError
from a2a.utils.grpc_status import status_to_grpc

from .auth.authenticator import Authenticator
from .auth.grpc import Authenticates, caller
from .extensions import active_extensions
from .faults import (
    LimitExceededError,
    PermissionDeniedError,
    RequestTooLargeError,
    ServiceUnavailableError,
    UnauthenticatedError,
)
from .handler import GatewayHandler
from .legacy import translation
from .protocol_versions import require_version
from .retry_after import HEADER, limit_status, seconds_of
from .tenants import choose_agent

# As in faults: the SDK looks its codes up in a table, which lacks these.
grpc_handler._ERROR_CODE_MAP.update(
    {
        ServiceUnavailableError: grpc.StatusCode.UNAVAILABLE,
        RequestTooLargeError: grpc.StatusCode.RESOURCE_EXHAUSTED,
        UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
        PermissionDeniedError: grpc.StatusCode.PERMISSION_DENIED,
        LimitExceededError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)


_call: ContextVar[ServerCallContext | None] = ContextVar("call", default=None)
"""The call that the current request was made into, if it came that far."""


class CallContextBuilder(grpc_handler.DefaultGrpcServerCallContextBuilder):
    """The SDK's, with the metadata as headers, and a check of the version (3.6), which the SDK lacks."""

    def __init__(self, version: str) -> None:
        self._version = version

    def build_user(self, context: grpc.aio.ServicerContext[Any, Any]) -> User:
        """Who asks."""
        return caller.get() or super().build_user(context)

    def build(self, context: grpc.aio.ServicerContext[Any, Any]) -> ServerCallContext:
        """The call context of a request."""
        call = super().build(context)
        metadata = {k.lower(): v for k, v in context.invocation_metadata() or () if isinstance(v, str)}
        call.state["headers"] = metadata
        call.state["grpc_expected_version"] = self._version
        _call.set(call)
        require_version(metadata.get("a2a-version", ""), self._version)
        return call


class Binding(grpc_handler.GrpcHandler):
    """The SDK's; a refusal for a limit says when to come again, in its metadata and as google.rpc.RetryInfo."""

    async def abort_context(self, error: A2AError, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Ends the call with `error`."""
        if isinstance(error, LimitExceededError):
            told = status_to_grpc(limit_status(error))
            context.set_trailing_metadata((*_retry_after(error), *told.trailing_metadata))
            await context.abort(told.code, told.details)
        await super().abort_context(error, context)


class LegacyBinding(CompatGrpcHandler):
    """The SDK's for 0.3, which has no typed details; a refusal for a limit says in its metadata when to come again."""

    async def abort_context(self, error: A2AError, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Ends the call with `error`."""
        if isinstance(error, LimitExceededError):
            context.set_trailing_metadata(_retry_after(error))
        await super().abort_context(error, context)


def _retry_after(error: LimitExceededError) -> tuple[tuple[str, str], ...]:
    return ((HEADER.lower(), str(seconds_of(error))),)


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Answers for what servicers raise, and for requests that are no protobuf: gRPC would send the exception's text."""

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        """The method's handler, guarded; None for a method that nobody serves."""
        found = await continuation(details)
        if found is None:
            return None
        parse = found.request_deserializer

        async def unary(body: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                return await found.unary_unary(parse(body), context)
            except grpc.aio.AbortError:
                raise
            except Exception as e:
                await _abort(e, context)

        async def stream(body: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncGenerator[Any, None]:
            try:
                async with aclosing(found.unary_stream(parse(body), context)) as events:
                    async for event in events:
                        yield event
            except grpc.aio.AbortError:
                raise
            except Exception as e:
                await _abort(e, context)

        if found.response_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, None, found.response_serializer)
        return grpc.unary_unary_rpc_method_handler(unary, None, found.response_serializer)


async def _abort(error: Exception, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    told = translation(error, _call.get())
    await grpc_handler.GrpcHandler.abort_context(None, told, context)  # type: ignore[arg-type]  # it uses no self


async def _echo_extensions(handler: GatewayHandler, context: ServerCallContext) -> None:
    """Tells a client of protocol 1.0 in the initial metadata which extensions are active."""
    active = active_extensions(handler.agent.card, context.requested_extensions)
    if active and context.state["grpc_expected_version"] == "1.0":
        await context.state["grpc_context"].send_initial_metadata(((HTTP_EXTENSION_HEADER.lower(), active),))


def route_by_tenant(handlers: Mapping[str, GatewayHandler]) -> RequestHandler:
    """Return a handler that passes each request on to the agent that its tenant names, see `choose_agent`."""
    methods = {
        name: _routed(name, handlers)
        for name, method in inspect.getmembers(RequestHandler, inspect.isfunction)
        if name.startswith("on_")
    }
    routed: RequestHandler = type("AgentRouter", (RequestHandler,), methods)()
    return routed


def _routed(name: str, handlers: Mapping[str, GatewayHandler]) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(getattr(RequestHandler, name)):

        async def stream(_: object, params: Any, context: ServerCallContext) -> Any:
            handler = choose_agent(handlers, context)
            await _echo_extensions(handler, context)
            events = getattr(handler, name)(params, context)
            try:
                async for event in events:
                    yield event
            finally:
                await events.aclose()

        return stream

    async def unary(_: object, params: Any, context: ServerCallContext) -> Any:
        handler = choose_agent(handlers, context)
        await _echo_extensions(handler, context)
        return await getattr(handler, name)(params, context)

    return unary


class GrpcServer:
    """Serves `handlers`, by agent name, on `port` of `host`, to whom `authenticator` knows; None: to everybody."""

    def __init__(
        self,
        handlers: Mapping[str, GatewayHandler],
        host: str,
        port: int,
        max_bytes: int,
        authenticator: Authenticator | None = None,
    ) -> None:
        self._guards = [*([] if authenticator is None else [Authenticates(authenticator)]), Guard()]
        self._handler = route_by_tenant(handlers)
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._max_bytes = max_bytes
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listens.

        Raises:
            RuntimeError: the port is taken.
        """
        # so_reuseport: several gateway processes share the port
        options = (("grpc.max_receive_message_length", self._max_bytes), ("grpc.so_reuseport", 1))
        self._server = grpc.aio.server(interceptors=self._guards, options=options)
        a2a_pb2_grpc.add_A2AServiceServicer_to_server(  # type: ignore[no-untyped-call]
            Binding(self._handler, CallContextBuilder("1.0")), self._server
        )
        a2a_v0_3_pb2_grpc.add_A2AServiceServicer_to_server(  # type: ignore[no-untyped-call]
            LegacyBinding(self._handler, CallContextBuilder("0.3")), self._server
        )
        self._server.add_insecure_port(self._address)
        await self._server.start()

    async def stop(self, grace: float = 1.0) -> None:
        """Ends the streams after `grace` seconds."""
        if self._server is not None:
            await self._server.stop(grace)
