"""Authentication over gRPC, with credentials in the metadata. This module requires the extra ``grpc``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any
from urllib.parse import unquote

import grpc.aio
from a2a.utils.errors import InvalidRequestError
from starlette.authentication import AuthenticationError

from ..bindings.grpc_errors import set_error
from ..protocol_errors import to_a2a
from .authenticator import Authenticator, protocol_error
from .schemes import Identity, PresentedCredentials

caller: ContextVar[Identity | None] = ContextVar("caller", default=None)
"""Authenticated caller of the current call, or None if authentication is disabled."""


class AuthenticationInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Interceptor that refuses unauthenticated callers, and callers that `admit` refuses, before their requests are
    read from the connection.

    gRPC reads the request of a unary handler before it calls the handler. Each method is therefore served by a handler
    for a stream of requests, which itself reads the single request of the call. The wire format is the same.
    """

    def __init__(self, authenticator: Authenticator, admit: Callable[[str], Awaitable[None]] | None = None) -> None:
        """Create an interceptor.

        Args:
            authenticator: Authenticator of the callers.
            admit: Function that is called with the owner of each call and may raise LimitExceededError, or None.
        """
        self._authenticator = authenticator
        self._admit = admit

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        """Return a handler that authenticates the caller of the method, or None for a method that is not served."""
        method = await continuation(details)
        if method is None:
            return None
        parse = method.request_deserializer or _raw_body

        async def unary(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            body = await self._read(context)
            return None if body is None else await method.unary_unary(parse(body), context)

        async def stream(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncGenerator[Any, None]:
            body = await self._read(context)
            if body is None:
                return
            async with aclosing(method.unary_stream(parse(body), context)) as events:
                async for event in events:
                    yield event

        if method.response_streaming:
            return grpc.stream_stream_rpc_method_handler(stream, None, method.response_serializer)
        return grpc.stream_unary_rpc_method_handler(unary, None, method.response_serializer)

    async def _read(self, context: grpc.aio.ServicerContext[Any, Any]) -> bytes | None:
        """Authenticate and admit the caller, then read the request.

        Returns:
            The request, or None if the call has failed and its status is set.
        """
        try:
            identity = await self._authenticator.identify(call_credentials(context))
            caller.set(identity)
            if identity is not None and self._admit is not None:
                await self._admit(identity.owner)
        except AuthenticationError as e:
            set_error(protocol_error(e), context)
            return None
        except Exception as e:  # otherwise, gRPC would send the exception's text
            set_error(to_a2a(e), context)
            return None
        body: Any = await context.read()
        if isinstance(body, bytes):
            return body
        set_error(InvalidRequestError("The call has no request message"), context)
        return None


def call_credentials(context: grpc.aio.ServicerContext[Any, Any]) -> PresentedCredentials:
    """Return the credentials of a call."""
    metadata = [(key.lower(), value) for key, value in context.invocation_metadata() or () if isinstance(value, str)]
    return PresentedCredentials(
        lambda name: [value for key, value in metadata if key == name], _address(context.peer())
    )


def _address(peer: str) -> str | None:
    """Return the IP address in a peer name of gRPC, such as ``ipv4:192.0.2.1:4711`` or ``ipv6:%5B2001:db8::1%5D:4711``,
    or None for any other kind of peer."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    return rest.rpartition(":")[0].strip("[]")


def _raw_body(body: bytes) -> bytes:
    return body
