"""Authentication and admission over gRPC, before the request of a call is read. This module requires the extra
``grpc``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote, unquote

import grpc.aio
from a2a.utils.errors import InvalidRequestError
from starlette.authentication import AuthenticationError

from ...clock import SYSTEM_CLOCK, Clock
from ..bindings.grpc_errors import set_error
from ..gate import Gate
from ..middleware.bodies import BODY_TIMEOUT
from ..protocol_errors import to_a2a
from .authenticator import Authenticator, protocol_error
from .refusal_log import UNESCAPED, RequestSource
from .schemes import CredentialsRefused, Identity, PresentedCredentials

caller: ContextVar[Identity | None] = ContextVar("caller", default=None)
"""Authenticated caller of the current call, or None if authentication is disabled."""

called_method: ContextVar[str] = ContextVar("called_method", default="")
"""Name of the method of the current call."""


OWNER_SHARE = 0.1
"""Share of the concurrent calls of a gateway process that one owner, or delayed refusals, may occupy."""


class AdmissionInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Interceptor that refuses unauthenticated callers, and callers that exceed a limit, before their requests are read
    from the connection. A call whose request does not arrive within `BODY_TIMEOUT` is ended.

    gRPC reads the request of a unary handler before it calls the handler. Each method is therefore served by a handler
    for a stream of requests, which itself reads the single request of the call. The wire format is the same.
    """

    def __init__(
        self,
        authenticator: Authenticator | None,
        gate: Gate | None,
        agent: str,
        max_calls: int,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Create an interceptor.

        Args:
            authenticator: Authenticator of the callers, or None to accept every caller.
            gate: Gate of the process, or None.
            agent: Agent whose metrics count the refused calls.
            max_calls: Maximum number of concurrent calls to the gateway process.
            clock: Clock of the timeout.
        """
        self._authenticator = authenticator
        self._gate = gate
        self._agent = agent
        self._share = max(1, int(max_calls * OWNER_SHARE))
        self._clock = clock

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        """Return a handler that admits the caller of the method, or None for a method that is not served."""
        method = await continuation(details)
        if method is None:
            return None
        parse = method.request_deserializer or _raw_body

        async def unary(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            with ExitStack() as stack:
                body = await self._read(details.method, context, stack)
                return None if body is None else await method.unary_unary(parse(body), context)

        async def stream(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncGenerator[Any, None]:
            with ExitStack() as stack:
                body = await self._read(details.method, context, stack)
                if body is None:
                    return
                async with aclosing(method.unary_stream(parse(body), context)) as events:
                    async for event in events:
                        yield event

        if method.response_streaming:
            return grpc.stream_stream_rpc_method_handler(stream, None, method.response_serializer)
        return grpc.stream_unary_rpc_method_handler(unary, None, method.response_serializer)

    async def _read(self, method: str, context: grpc.aio.ServicerContext[Any, Any], stack: ExitStack) -> bytes | None:
        """Authenticate and admit the caller, then read the request.

        Args:
            method: Name of the called method.
            context: Context of the call.
            stack: Stack that counts the call until it is closed.

        Returns:
            The request, or None if the call has failed and its status is set.
        """
        called_method.set(method)
        try:
            await self._admit(context, stack)
            body = await self._arrived(context)
            if body is None and self._gate is not None:
                identity = caller.get()
                await self._gate.count_unparsed_request(self._agent, "" if identity is None else identity.owner)
            return body
        except AuthenticationError as e:
            if isinstance(e, CredentialsRefused) and self._authenticator is not None:
                source = call_source(context, method)
                self._authenticator.refusal_log.record(e.why.name.lower(), e.why.value, source)
            set_error(protocol_error(e), context)
        except Exception as e:  # otherwise, gRPC would send the exception's text
            set_error(to_a2a(e), context)
        return None

    async def _admit(self, context: grpc.aio.ServicerContext[Any, Any], stack: ExitStack) -> None:
        """Authenticate the caller, and count the call.

        Raises:
            AuthenticationError: The caller is unknown, or cannot be authenticated now.
            LimitExceededError: The caller has too many open calls, or has ignored the time in Retry-After.
        """
        if self._authenticator is None:
            return
        identity = await self._authenticator.identify(call_credentials(context), max_delayed=self._share)
        caller.set(identity)
        if identity is not None and self._gate is not None:
            stack.enter_context(self._gate.grpc_call(self._agent, identity.owner, self._share))
            await self._gate.require_token(self._agent, identity.owner)

    async def _arrived(self, context: grpc.aio.ServicerContext[Any, Any]) -> bytes | None:
        """Read the request, or set the status of a call without a request and return None."""
        try:
            async with self._clock.timeout(BODY_TIMEOUT):
                body: Any = await context.read()
        except TimeoutError:
            context.set_code(grpc.StatusCode.DEADLINE_EXCEEDED)
            context.set_details("The request did not arrive in time: send it faster, or send large data by URL")
            return None
        if isinstance(body, bytes):
            return body
        set_error(InvalidRequestError("The call has no request message"), context)
        return None


def call_credentials(context: grpc.aio.ServicerContext[Any, Any]) -> PresentedCredentials:
    """Return the credentials of a call."""
    metadata = [(key.lower(), value) for key, value in context.invocation_metadata() or () if isinstance(value, str)]
    return PresentedCredentials(
        lambda name: [value for key, value in metadata if key == name], peer_address(context.peer())
    )


def call_source(context: grpc.aio.ServicerContext[Any, Any], method: str) -> RequestSource:
    """Return the source of a call of `method`."""
    return RequestSource(peer_address(context.peer()), quote(method, safe=UNESCAPED), "grpc")


def peer_address(peer: str) -> str | None:
    """Return the IP address in a peer name of gRPC, such as ``ipv4:192.0.2.1:4711`` or ``ipv6:%5B2001:db8::1%5D:4711``,
    or None for any other kind of peer."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    return rest.rpartition(":")[0].strip("[]")


def _raw_body(body: bytes) -> bytes:
    return body
