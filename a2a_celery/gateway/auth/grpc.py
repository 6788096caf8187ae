"""Authentication over gRPC: the same credentials, as metadata. Needs the extra ``grpc``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any
from urllib.parse import unquote

import grpc.aio
from a2a.server.request_handlers.grpc_handler import GrpcHandler
from a2a.utils.errors import A2AError
from starlette.authentication import AuthenticationError

from ..faults import to_a2a
from .authenticator import Authenticator
from .identity import Identity
from .refusing import refusal
from .schemes import Presented

caller: ContextVar[Identity | None] = ContextVar("caller", default=None)
"""Who made the call that is being served; None where nobody checks."""


class Authenticates(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Lets nobody through whom `authenticator` does not know; the request itself is not even parsed before."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        """The method's handler, behind the check; None for a method that nobody serves."""
        found = await continuation(details)
        if found is None:
            return None
        parse = found.request_deserializer or _as_it_is

        async def unary(body: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            await self._let_in(context)
            return await found.unary_unary(parse(body), context)

        async def stream(body: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncGenerator[Any, None]:
            await self._let_in(context)
            async with aclosing(found.unary_stream(parse(body), context)) as events:
                async for event in events:
                    yield event

        if found.response_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, None, found.response_serializer)
        return grpc.unary_unary_rpc_method_handler(unary, None, found.response_serializer)

    async def _let_in(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            caller.set(await self._authenticator.identify(presented(context)))
        except AuthenticationError as e:
            await _abort(refusal(e), context)
        except Exception as e:  # gRPC would send its text
            await _abort(to_a2a(e), context)


async def _abort(error: A2AError, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await GrpcHandler.abort_context(None, error, context)  # type: ignore[arg-type]  # it uses no self


def presented(context: grpc.aio.ServicerContext[Any, Any]) -> Presented:
    """What a call shows of who makes it."""
    metadata = [(key.lower(), value) for key, value in context.invocation_metadata() or () if isinstance(value, str)]
    return Presented(lambda name: [value for key, value in metadata if key == name], _address(context.peer()))


def _address(peer: str) -> str | None:
    """The address in what gRPC calls a peer: ``ipv4:192.0.2.1:4711``, ``ipv6:%5B2001:db8::1%5D:4711``; else None."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    return rest.rpartition(":")[0].strip("[]")


def _as_it_is(body: bytes) -> bytes:
    return body
