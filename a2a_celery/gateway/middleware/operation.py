"""Decorator that adds metrics, spans, the owner's limits and error mapping to the handler's operations.

`operation` defines the order in which a request passes through the wrappers.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from a2a.server.context import ServerCallContext
from a2a.types import Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from google.protobuf.message import Message as Proto
from starlette.types import ASGIApp, Receive, Scope, Send

from ...agents import Agent
from ...errors import StoreUnavailable
from ...operations.errors import LimitExceededError
from ...telemetry.logs import about
from ...telemetry.names import Action, Attribute
from ...telemetry.tracing import CARRIED, tracing
from ..auth.refusal_log import SOURCE, RefusalLog
from ..metrics import Metrics
from ..operations.limits import OwnerLimits, meter_of, scope_of, sizes_of
from ..operations.validation import check_bounds, require_tenant
from ..protocol_errors import REACHED, RETRY_SECONDS, PermissionDeniedError, record_limit_error, to_a2a

if TYPE_CHECKING:
    from ...telemetry.spans import Span, Spans


logger = logging.getLogger(__name__)

OK, DISCONNECTED = "ok", "disconnected"
"""Outcomes without an error: the request was answered, or its client disconnected first."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class AccessedTask:
    """Task of an HTTP request, for the line of the access log."""

    task_id: str = ""


accessed_task: ContextVar[AccessedTask | None] = ContextVar("accessed_task", default=None)
"""Task of the current HTTP request. `AccessLog` sets the variable, and the request's operation fills in the id."""


class InstrumentedHandler(Protocol):
    """Interface of a handler whose operations are counted and traced, and whose refused calls are logged."""

    agent: Agent
    metrics: Metrics
    refusal_log: RefusalLog


def instrument(operation: str) -> Callable[[F], F]:
    """Return a decorator that counts and traces a method as `operation`. The method must raise only A2A errors."""

    def wrap(method: F) -> F:
        wrapper = _instrumented_stream if inspect.isasyncgenfunction(method) else _instrumented_unary
        return wrapper(operation, method)  # type: ignore[return-value]

    return wrap


def _instrumented_unary(operation: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def unary(self: InstrumentedHandler, params: Any, context: ServerCallContext) -> Any:
        request = _RequestSpan(self, operation, context)
        try:
            return request.name_task(await request.run(method(self, params, context)))
        except BaseException as e:
            request.fail(e)
            raise
        finally:
            request.end()

    return unary


def _instrumented_stream(operation: str, method: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def stream(self: InstrumentedHandler, params: Any, context: ServerCallContext) -> AsyncGenerator[Any, None]:
        request, events = _RequestSpan(self, operation, context), method(self, params, context)
        del params, context  # a long stream must not keep the request in memory
        try:
            with self.metrics.open_stream(self.agent.name):
                async with aclosing(events):
                    while (event := await request.run(anext(events, None))) is not None:
                        yield request.name_task(event)
                        del event
        except BaseException as e:
            request.fail(e)
            raise
        finally:
            request.end()

    return stream


class _RequestSpan:
    """Metrics and span of one request, and the log line of a refusal."""

    def __init__(self, handler: InstrumentedHandler, operation: str, context: ServerCallContext) -> None:
        self._handler = handler
        self._operation = operation
        self._source, self._owner = context.state.get(SOURCE), context.user.user_name
        self._outcome = OK
        self._has_task = False
        self._accessed = accessed_task.get()
        self._spans: Spans | None = tracing()
        self._span: Span | None = None
        if self._spans is not None:
            headers = {name: value for name, value in context.state.get("headers", {}).items() if name in CARRIED}
            self._span, self._trace_context = self._spans.start_request(operation, handler.agent.name, headers)

    async def run(self, work: Any) -> Any:
        """Await `work` inside the span. The span is current only while `work` runs, not while the caller runs."""
        if self._spans is None:
            return await work
        with self._spans.within(self._trace_context):
            return await work

    def name_task(self, result: Any) -> Any:
        """Return `result`. Label the span and the access log with the task and the context of the first result."""
        self._source = None  # a long stream must not keep the request in memory
        if not self._has_task and (self._span is not None or self._accessed is not None):
            self._has_task = True
            task_id, context_id = _ids(result)
            if self._accessed is not None:
                self._accessed.task_id = task_id
            if task_id and self._span is not None:
                self._span.set_attributes({Attribute.TASK: task_id, Attribute.CONTEXT: context_id})
        return result

    def fail(self, error: BaseException) -> None:
        """Record `error`, an A2A error or a disconnect of the client, as the outcome. Log a denied permission."""
        if isinstance(error, PermissionDeniedError) and self._source is not None:
            agent = self._handler.agent.name
            self._handler.refusal_log.record_denial(error, self._source(), self._owner, agent)
        self._outcome = type(error).__name__ if isinstance(error, Exception) else DISCONNECTED

    def end(self) -> None:
        """Count the request and end its span."""
        self._handler.metrics.count_request(self._handler.agent.name, self._operation, self._outcome)
        if self._span is not None and self._spans is not None:
            self._spans.end(self._span, self._outcome, fine=self._outcome in (OK, DISCONNECTED))


def _ids(result: Any) -> tuple[str, str]:
    match result:
        case [first, *_]:
            return _ids(first.event)
        case Task():
            return result.id, result.context_id
        case Message() | TaskStatusUpdateEvent() | TaskArtifactUpdateEvent():
            return result.task_id, result.context_id
        case _:
            return "", ""


def log_cancel_request(agent: str, task_id: str, result: object) -> None:
    """Log a client's request to cancel a task and the store's `result`."""
    fields = about(Action.CANCEL_REQUESTED, agent=agent, task=task_id)
    logger.info("task %s: cancellation requested by its client: %s", task_id, type(result).__name__, extra=fields)


class TraceContext:
    """ASGI middleware that makes the client's trace current, so that the SDK's spans join the trace.

    A span that the server's instrumentation has started stays current.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, in the client's trace if OpenTelemetry is in use."""
        spans = tracing() if scope["type"] == "http" else None
        if spans is None:
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        with spans.within(spans.parent_of(headers)):
            await self._app(scope, receive, send)


def operation(name: str, *, counted: bool = True, in_turn: bool = False, bounded: bool = False) -> Callable[[F], F]:
    """Return the decorator of the operation `name`, a coroutine method or an async generator method of the handler.

    Args:
        name: Name of the operation in metrics and spans.
        counted: True if calls count against the caller's rate limit. Use False for an operation that must work while
            the store is unavailable.
        in_turn: True for an operation that reads many tasks. An owner's calls are executed one after another, because
            many concurrent large reads delay the reads of other owners.
        bounded: True for an operation that reads one task. An owner may have `UNPAID_READS` concurrent calls. A stream
            counts as a call until its first page is charged to the rate limit.

    Without a rate limit, `in_turn` and `bounded` have no effect.
    """

    def wrap(method: F) -> F:
        # from the outermost wrapper to the innermost: metrics and span, then the owner's limits, then the mapping of
        # errors
        return instrument(name)(limited(counted, in_turn, bounded)(maps_errors(method)))

    return wrap


def maps_errors(method: F) -> F:
    """Wrap `method` so that it raises an A2A error for every exception."""
    if inspect.isasyncgenfunction(method):

        @functools.wraps(method)
        async def stream(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            events = method(*args, **kwargs)
            del args, kwargs  # a long stream must not keep the request in memory
            try:
                async for event in events:
                    yield event
                    del event
            except Exception as e:
                raise to_a2a(e) from None
            finally:
                await events.aclose()

        return stream  # type: ignore[return-value]

    @functools.wraps(method)
    async def unary(*args: Any, **kwargs: Any) -> Any:
        try:
            return await method(*args, **kwargs)
        except Exception as e:
            raise to_a2a(e) from None

    return unary  # type: ignore[return-value]


class LimitedHandler(Protocol):
    """Interface of a handler that enforces the limits of its callers (`OwnerLimits`)."""

    agent: Agent
    limits: OwnerLimits


def limited(counted: bool, in_turn: bool, bounded: bool) -> Callable[[F], F]:
    """Return a decorator that starts an operation only if the caller's limits allow it. See `operation` for the
    arguments."""

    def wrap(method: F) -> F:
        if inspect.isasyncgenfunction(method):
            return _limited_stream(method, counted, bounded)  # type: ignore[return-value]
        return _limited_unary(method, counted, in_turn, bounded)  # type: ignore[return-value]

    return wrap


def _limited_unary(method: Callable[..., Any], counted: bool, in_turn: bool, bounded: bool) -> Callable[..., Any]:
    @functools.wraps(method)
    async def unary(self: LimitedHandler, params: Any, context: ServerCallContext) -> Any:
        try:
            await _require_within_limits(self, params, context, counted)
            if not (counted and self.limits.counts_requests):
                return await method(self, params, context)
            meter, scope = meter_of(context), scope_of(context)
            if in_turn:
                await meter.take_turn(self.limits, self.agent.name, scope)
            if bounded:
                await meter.acquire_read(self.limits, self.agent.name, scope)
            result = await method(self, params, context)
            await meter.begin(self.limits, scope, await _size(result))
            return result
        except LimitExceededError as e:
            record_limit_error(context.state.get(RETRY_SECONDS), e)
            raise

    return unary


def _limited_stream(
    method: Callable[..., AsyncGenerator[Any, None]], counted: bool, bounded: bool
) -> Callable[..., Any]:
    @functools.wraps(method)
    async def stream(self: LimitedHandler, params: Any, context: ServerCallContext) -> AsyncGenerator[Any, None]:
        seconds, meter, scope = context.state.get(RETRY_SECONDS), meter_of(context), scope_of(context)
        try:
            await _require_within_limits(self, params, context, counted)
            with self.limits.stream(self.agent.name, context):
                if bounded and self.limits.counts_requests:
                    await meter.acquire_read(self.limits, self.agent.name, scope)
                pages = method(self, params, context)
                del params, context  # a long stream must not keep the request in memory
                async with aclosing(pages):
                    async for page in pages:
                        if self.limits.counts_requests:
                            await meter.begin(self.limits, scope, await _size(page))
                        try:
                            yield page
                        finally:
                            await meter.pay()
                        del page
        except LimitExceededError as e:
            record_limit_error(seconds, e)
            raise

    return stream


MEASURED = 1 << 18
"""Number of bytes of a result that are measured without a pause."""


async def _size(result: Any) -> int:
    """Return the size in bytes of an operation's result. For a page of a stream, return the size of its stored
    events."""
    match result:
        case Proto():
            messages = [result]
        case list():
            messages = [event.event for event in result if event.is_stored]
        case _:
            return len(str(result))  # a dict, whose JSON is about as long
    size = before_pause = 0
    for part in chain.from_iterable(map(sizes_of, messages)):
        size += part
        if size - before_pause > MEASURED:
            before_pause = size
            await asyncio.sleep(0)
    return size


async def _require_within_limits(
    self: LimitedHandler, params: Proto, context: ServerCallContext, counted: bool
) -> None:
    context.state.setdefault(REACHED, []).append(self.agent.name)
    check_bounds(params, context)
    # before the request is counted, because a caller has no account in a tenant that the caller may not use
    require_tenant(context)
    if counted:
        try:
            await self.limits.count_request(self.agent.name, context)
        except StoreUnavailable as e:
            raise to_a2a(e) from None
