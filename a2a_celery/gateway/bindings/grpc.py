"""gRPC binding of the protocols 1.0 and 0.3, on one port for all agents. The request's tenant selects the agent.

This module requires the extra ``grpc``. The fields of a large request are counted before the request is parsed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from functools import cache, partial
from time import sleep
from typing import Any

import grpc.aio
from a2a.auth.user import User
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.extensions.common import HTTP_EXTENSION_HEADER
from a2a.server.request_handlers import grpc_handler
from a2a.types import a2a_pb2_grpc
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0
from a2a.utils.errors import A2AError, InvalidParamsError
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor

from ...clock import SYSTEM_CLOCK, Clock
from ...errors import ConfigError
from ...lifecycle.references import Scope
from ...operations.errors import LimitExceededError
from ...operations.requests import MAX_JSON_VALUES
from ..auth.authenticator import Authenticator
from ..auth.grpc import AdmissionInterceptor, call_source, called_method, caller
from ..call import Call, active_extensions, require_version
from ..gate import SMALL
from ..handler import GatewayHandler
from ..protocol_errors import ServiceUnavailableError
from ..shutdown import WAIT_TIMEOUT, GatewayShutdown
from .grpc_errors import retry_after, set_error, shortened, status_code
from .legacy import StrictLegacyHandler, map_legacy_error
from .sdk_handler import Convert, SdkHandler, unchanged

MAX_VARINT_BYTES = 10

FIELDS_PER_PAUSE = 1_000
PAUSE = 0.0001
"""Seconds for which `count_fields` releases the GIL after `FIELDS_PER_PAUSE` fields, so that the event loop does not
wait for the GIL."""


def count_fields(body: bytes, message: Descriptor, limit: int) -> int:
    """Count the fields of `body`, a serialized `message`, including the fields of nested messages.

    Returns:
        The number of fields, or ``limit + 1`` if there are more than `limit` fields, the body is malformed, or the body
        has groups, which A2A does not use. The parser could create many objects before it refuses such a body.
    """
    count, pause_after = 0, FIELDS_PER_PAUSE
    pending = [(0, len(body), _message_fields(message))]
    try:
        while pending:
            position, end, messages = pending.pop()
            while position < end:
                count += 1
                if count > limit:
                    return limit + 1
                if count == pause_after:
                    pause_after += FIELDS_PER_PAUSE
                    sleep(PAUSE)
                tag, position = _read_varint(body, position)
                match tag & 7:
                    case 2:  # a length and that many bytes
                        size, position = _read_varint(body, position)
                        if size and tag >> 3 in messages:
                            pending.append((position, position + size, _message_fields(messages[tag >> 3])))
                        position += size
                    case 0:  # a varint
                        _, position = _read_varint(body, position)
                    case 1:  # 64 bits
                        position += 8
                    case 5:  # 32 bits
                        position += 4
                    case _:
                        return limit + 1
                if position > end:
                    return limit + 1
    except (IndexError, ValueError):
        return limit + 1
    return count


@cache
def _message_fields(message: Descriptor) -> dict[int, Descriptor]:
    """Return the message type of each field of `message` that contains messages, by field number."""
    return {number: field.message_type for number, field in message.fields_by_number.items() if field.message_type}


def _read_varint(body: bytes, position: int) -> tuple[int, int]:
    """Return the number at `position` and the position after it.

    Raises:
        IndexError: The body ends within the number.
        ValueError: The number is longer than protobuf allows.
    """
    byte = body[position]
    if byte < 0x80:  # the usual case
        return byte, position + 1
    value = 0
    for shift in range(0, 7 * MAX_VARINT_BYTES, 7):
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a varint of more than ten bytes")


MAX_CONCURRENT_CALLS = 10_000
"""Maximum number of concurrent calls to a gateway process, including streams. Further calls fail with
RESOURCE_EXHAUSTED. An authenticated owner may have a tenth of them; see `AdmissionInterceptor`."""

MAX_FIELDS = 5 * MAX_JSON_VALUES
"""Maximum number of protobuf fields in a request. A JSON value in a Struct takes four or five fields."""

MAX_SMALL_BODY = 1 << 16
"""Maximum size in bytes of a request whose fields are not counted, because a request of this size cannot have more than
`MAX_FIELDS` fields."""

POOL = descriptor_pool.Default()

STOP_TIMEOUT = WAIT_TIMEOUT + 1
"""Seconds from the start of the shutdown until open calls are cancelled. Blocking calls end after `WAIT_TIMEOUT`, and
then have one second to send their responses."""

END_OF_STREAM = object()

MIN_PING_INTERVAL = "grpc.http2.min_ping_interval_without_data_ms"
"""Channel argument with the minimum time between two pings of a client. gRPC closes the connection of a client that
pings more often while the server sends nothing."""

CONNECTION_OPTIONS = (
    ("grpc.so_reuseport", 1),  # several gateway processes share the port
    ("grpc.max_concurrent_streams", 1000),
    ("grpc.http2.bdp_probe", 0),  # a stream's window grows only while the gateway reads its request
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 600_000),
    ("grpc.keepalive_time_ms", 60_000),  # detect dead connections
    ("grpc.keepalive_timeout_ms", 20_000),
    # clients may ping a silent stream, or a connection without calls, every 10 s; a second is left for delays
    (MIN_PING_INTERVAL, 9_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
"""Channel arguments that limit the calls and pings on a connection and close idle connections.

Source: https://grpc.github.io/grpc/core/group__grpc__arg__keys.html
"""

_call: ContextVar[Call | None] = ContextVar("call", default=None)
"""Call of the current request, or None if the request has failed before it got a call."""


class GrpcCalls(grpc_handler.DefaultGrpcServerCallContextBuilder):
    """Builder of the calls of one version of the protocol. Unlike the SDK's builder, it adds the metadata as headers
    and checks the version (A2A specification 3.6)."""

    def __init__(self, version: str, handlers: Mapping[str, GatewayHandler]) -> None:
        self._version = version
        self._handlers = handlers

    def build_user(self, context: grpc.aio.ServicerContext[Any, Any]) -> User:
        """Return the caller that `AdmissionInterceptor` has identified, or the SDK's default user."""
        return caller.get() or super().build_user(context)

    def build(self, context: grpc.aio.ServicerContext[Any, Any]) -> Call:
        """Return the call of a request.

        Raises:
            VersionNotSupportedError: The request is for a different version.
        """
        sdk_context = super().build(context)
        metadata = {k.lower(): v for k, v in context.invocation_metadata() or () if isinstance(v, str)}
        call = Call(
            user=sdk_context.user,
            state={**sdk_context.state, "headers": metadata},
            requested_extensions=sdk_context.requested_extensions,
            handler=next(iter(self._handlers.values())),
            source=partial(call_source, context, called_method.get()),
            agents=self._handlers,
            protocol=self._version,
        )
        _call.set(call)
        require_version(metadata.get("a2a-version", ""), self._version)
        return call


class GrpcBinding(grpc_handler.GrpcHandler):
    """Servicer of protocol 1.0 that sends errors with all details; see `grpc_errors`."""

    async def abort_context(self, error: A2AError, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Set `error` as the status of the call; see `set_error`."""
        set_error(error, context)


class LegacyGrpcBinding(CompatGrpcHandler):
    """Servicer of protocol 0.3 that sends errors without typed details. The trailing metadata of a limit error contains
    the retry delay."""

    def __init__(self, request_handler: SdkHandler, context_builder: GrpcCalls) -> None:
        super().__init__(request_handler, context_builder)
        self.handler03 = StrictLegacyHandler(request_handler)

    async def abort_context(self, error: A2AError, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Set `error` as the status of the call; see `set_error`."""
        if isinstance(error, LimitExceededError):
            context.set_trailing_metadata(retry_after(error))
        context.set_code(status_code(error))
        context.set_details(f"{type(error).__name__}: {shortened(error.message)}")


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Interceptor that maps exceptions of servicers and undecodable requests to A2A errors. Without this
    interceptor, gRPC would send the text of the exception.

    A call that fails before it reaches an operation also counts against the caller's rate limit.

    Args:
        handler: Any of the served handlers, which all have the same gate. With None, failed calls are not counted.
    """

    def __init__(self, handler: GatewayHandler | None = None) -> None:
        self._handler = handler

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        """Return a handler that maps the errors of the method, or None for a method that is not served."""
        method = await continuation(details)
        if method is None:
            return None
        parse = partial(self._parse, method.request_deserializer, _request_of(details.method))

        async def unary(body: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                response = await method.unary_unary(await parse(body), context)
                if context.code() is not None:  # the servicer has set an error
                    await self._count()
                return response
            except Exception as e:
                set_error(map_legacy_error(await self._count(e) or e, _call.get()), context)

        async def stream(body: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncGenerator[Any, None]:
            try:
                async with aclosing(method.unary_stream(await parse(body), context)) as events:
                    async for event in events:
                        yield event
                if context.code() is not None:  # the servicer has set an error
                    await self._count()
            except Exception as e:
                set_error(map_legacy_error(await self._count(e) or e, _call.get()), context)

        if method.response_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, None, method.response_serializer)
        return grpc.unary_unary_rpc_method_handler(unary, None, method.response_serializer)

    async def _parse(self, parse: Callable[[bytes], Any], request: Descriptor, body: bytes) -> Any:
        """Parse `body`, a serialized `request`. A large body is parsed in a thread.

        Raises:
            InvalidParamsError: The body has too many fields, or is malformed.
        """
        if self._handler is None or len(body) <= SMALL:
            return parse(body)
        scope = Scope(owner=_owner())
        work = partial(self._handler.gate.work, scope)
        await self._handler.gate.pace(scope, len(body))
        if len(body) > MAX_SMALL_BODY and await work(count_fields, body, request, MAX_FIELDS) > MAX_FIELDS:
            raise InvalidParamsError(
                f"The request has more than {MAX_FIELDS} fields, or is not well-formed: send large data as a file part"
            )
        return await work(parse, body)

    async def _count(self, error: Exception | None = None) -> LimitExceededError | None:
        """Count a call that failed with `error` before it reached an operation.

        Returns:
            The limit error if the caller has no token left, or None.
        """
        call = _call.get()
        is_counted = isinstance(error, LimitExceededError) or (call is not None and call.has_begun)
        if self._handler is None or is_counted:
            return None
        try:
            await self._handler.gate.count_unparsed_request(self._handler.agent.name, _owner())
        except LimitExceededError as e:
            return e
        return None


def _owner() -> str:
    """Return the owner of the current call, or "" for an unauthenticated caller."""
    identity = caller.get()
    return "" if identity is None else identity.owner


@cache
def _request_of(path: str) -> Descriptor:
    """Return the request type of the method at `path`."""
    service, _, name = path.removeprefix("/").rpartition("/")
    return POOL.FindServiceByName(service).methods_by_name[name].input_type


class GrpcOperations(SdkHandler):
    """Handler that sends the active extensions before an operation to a client of protocol 1.0, and ends streams when
    the gateway stops."""

    async def perform(self, operation: str, params: Any, call: Call, convert: Convert = unchanged) -> Any:
        """Perform an operation that does not stream, and return its result."""
        await _echo_extensions(call)
        return await super().perform(operation, params, call, convert)

    async def stream(
        self, operation: str, params: Any, call: Call, convert: Convert = unchanged
    ) -> AsyncGenerator[Any, None]:
        """Perform an operation that streams, and yield its events.

        Raises:
            ServiceUnavailableError: The gateway is stopping. Status OK would state that the stream is complete.
        """
        await _echo_extensions(call)
        shutdown = call.handler.shutdown
        end_count = shutdown.end_count
        async with aclosing(super().stream(operation, params, call, convert)) as events:
            del params, call  # a long stream must not keep the request in memory
            while shutdown.end_count == end_count:
                event: Any = None
                # The scope excludes `yield`, because gRPC writes the event in the same asyncio task.
                with shutdown.streaming():
                    event = await anext(events, END_OF_STREAM)
                if event is END_OF_STREAM:
                    return
                if event is not None:
                    yield event
        raise ServiceUnavailableError("The gateway is stopping: subscribe to the task again")


async def _echo_extensions(call: Call) -> None:
    """Choose the agent, and send its active extensions in the initial metadata to a client of protocol 1.0."""
    call.choose_agent()
    active = active_extensions(call.handler.agent.card, call.requested_extensions)
    if active and call.protocol == PROTOCOL_VERSION_1_0:
        await call.state["grpc_context"].send_initial_metadata(((HTTP_EXTENSION_HEADER.lower(), active),))


class GrpcServer:
    """gRPC server of all agents.

    Args:
        handlers: Handlers by agent name.
        host: Address to listen on.
        port: Port to listen on.
        max_bytes: Maximum size of a request.
        authenticator: Authenticator of the callers, or None to serve every caller.
        max_calls: Maximum number of concurrent calls.
        clock: Clock of the timeout for requests.
    """

    def __init__(
        self,
        handlers: Mapping[str, GatewayHandler],
        host: str,
        port: int,
        max_bytes: int,
        authenticator: Authenticator | None = None,
        *,
        max_calls: int = MAX_CONCURRENT_CALLS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        handler = next(iter(handlers.values()), None)
        gate, agent = (None, "") if handler is None else (handler.gate, handler.agent.name)
        self._guards = [
            AdmissionInterceptor(authenticator, gate, agent, max_calls, clock),
            ErrorInterceptor(handler),
        ]
        self._max_calls = max_calls
        self._handlers = handlers
        self._shutdown = GatewayShutdown() if handler is None else handler.shutdown
        self._shutdown.add_callback(self._begin_stop)
        self._stopping: asyncio.Task[None] | None = None
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._max_bytes = max_bytes
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Open the port.

        Raises:
            ConfigError: The port is in use, or the address is not an address of this machine.
        """
        options = (("grpc.max_receive_message_length", self._max_bytes), *CONNECTION_OPTIONS)
        self._server = grpc.aio.server(
            interceptors=self._guards, options=options, maximum_concurrent_rpcs=self._max_calls
        )
        a2a_pb2_grpc.add_A2AServiceServicer_to_server(  # type: ignore[no-untyped-call]
            GrpcBinding(GrpcOperations(), GrpcCalls(PROTOCOL_VERSION_1_0, self._handlers)), self._server
        )
        a2a_v0_3_pb2_grpc.add_A2AServiceServicer_to_server(  # type: ignore[no-untyped-call]
            LegacyGrpcBinding(GrpcOperations(), GrpcCalls(PROTOCOL_VERSION_0_3, self._handlers)), self._server
        )
        try:
            self._server.add_insecure_port(self._address)
        except RuntimeError:
            raise ConfigError(
                f"gRPC cannot listen on {self._address}: choose another port with A2A_GRPC_PORT, or another address "
                "with --host or a2a.asgi(grpc_host=…)"
            ) from None
        await self._server.start()
        self._stopping = None

    async def stop(self, grace: float = STOP_TIMEOUT) -> None:
        """Begin the gateway's shutdown unless it has begun, end the streams, and wait for the other calls.

        Args:
            grace: Seconds after which open calls are cancelled.
        """
        if self._server is None:
            return
        if self._stopping is None:
            self._shutdown.begin()
        self._shutdown.end_streams()
        await self._server.stop(grace)

    def _begin_stop(self) -> None:
        """Stop accepting calls. Open calls are cancelled after `STOP_TIMEOUT`."""
        if self._server is not None and self._stopping is None:
            self._stopping = asyncio.create_task(self._server.stop(STOP_TIMEOUT), name="a2a-stop-grpc")
