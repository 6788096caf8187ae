"""Pipeline of a call: `serving` shows in which order a request passes the gate, is validated, performed and counted.

The callers are authenticated before a request is read (`auth`), and the bindings parse requests and write responses.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from a2a.types import Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from starlette.types import ASGIApp, Receive, Scope, Send

from ..store.log.follower import StreamEvent
from ..telemetry.names import Attribute
from ..telemetry.tracing import CARRIED, tracing
from .call import Call
from .middleware.access_log import AccessedTask, accessed_task
from .operations.validation import check_bounds, require_tenant
from .protocol_errors import PermissionDeniedError, to_a2a

if TYPE_CHECKING:
    from ..telemetry.spans import Span, Spans

OK, DISCONNECTED = "ok", "disconnected"
"""Outcomes without an error: the request was answered, or its client disconnected first."""

T = TypeVar("T")

Write = Callable[[Any], Awaitable[T]]
"""Function of a binding that writes a result in the form in which the binding sends it."""


class Operation(NamedTuple):
    """Operation of a gateway.

    Attributes:
        name: Name in metrics and spans.
        perform: Function that performs the operation for a handler, a request and a call. It returns a result, or for a
            stream an async generator of pages of events.
        is_counted: True if calls count against the caller's rate limit. False for an operation that must work while the
            store is unavailable.
        is_stream: True if the operation streams.
        reads_tasks: True if the operation reads whole tasks, whose result may be large.
    """

    name: str
    perform: Callable[..., Any]
    is_counted: bool = True
    is_stream: bool = False
    reads_tasks: bool = False


async def perform(operation: Operation, params: Any, call: Call, write: Write[T]) -> T:
    """Perform an operation that does not stream, and return its written result.

    Raises:
        A2AError: The operation has failed or was refused.
    """
    async with serving(operation, params, call) as recorder:
        return await write(await recorder.result(operation.perform(call.handler, params, call)))


async def stream(operation: Operation, params: Any, call: Call, write: Write[T]) -> AsyncGenerator[T, None]:
    """Perform an operation that streams, and yield its written pages.

    Raises:
        A2AError: The operation has failed or was refused.
    """
    async with serving(operation, params, call) as recorder:
        pages: AsyncGenerator[list[StreamEvent], None] = operation.perform(call.handler, params, call)
        del params, call  # a long stream must not keep the request in memory
        async with aclosing(pages):
            while (page := await recorder.result(anext(pages, None))) is not None:
                written = await write(page)
                del page
                recorder.result_written()
                yield written
                del written


@asynccontextmanager
async def serving(operation: Operation, params: Any, call: Call) -> AsyncIterator[CallRecorder]:
    """Let a call pass the gate, perform it inside the ``async with`` block, map its errors and count it."""
    call.choose_agent()
    call.has_begun = True
    recorder = CallRecorder(operation.name, call)
    agent, gate, scope = call.handler.agent.name, call.handler.gate, call.scope
    try:
        check_bounds(params, call)
        require_tenant(call)  # before the request is counted: a caller has no account in such a tenant
        del params, call  # a long stream must not keep the request in memory
        if operation.is_counted:
            await gate.count_request(agent, scope)
        with gate.stream(agent, scope) if operation.is_stream else nullcontext():
            if operation.reads_tasks:
                recorder.end_read = await gate.begin_read(agent, scope)
            yield recorder
    except Exception as e:
        raise recorder.failed(to_a2a(e)) from None
    except BaseException:
        recorder.outcome = DISCONNECTED
        raise
    finally:
        recorder.end()


class CallRecorder:
    """Metrics and span of one call, and the log line of a refusal.

    Attributes:
        outcome: Outcome of the call for the metrics.
        end_read: Function that ends the read of tasks of the call, or None.
    """

    def __init__(self, operation: str, call: Call) -> None:
        self.outcome = OK
        self.end_read: Callable[[], None] | None = None
        self._operation = operation
        self._handler, self._scope = call.handler, call.scope
        self._call: Call | None = call
        self._accessed: AccessedTask | None = accessed_task.get()
        self._spans: Spans | None = tracing()
        self._span: Span | None = None
        if self._spans is not None:
            headers = {name: value for name, value in call.headers.items() if name in CARRIED}
            self._span, self._trace_context = self._spans.start_request(operation, call.handler.agent.name, headers)

    async def result(self, work: Awaitable[T]) -> T:
        """Return the result of `work` when its owner may receive it. Label the span and the access log with its
        task."""
        result = await self._run(work)
        self._name_task(result)
        await self._handler.gate.pace_result(self._scope, result)
        return result

    async def _run(self, work: Awaitable[T]) -> T:
        """Await `work` inside the span. The span is current only while `work` runs, not while the caller runs."""
        if self._spans is None:
            return await work
        with self._spans.within(self._trace_context):
            return await work

    def _name_task(self, result: object) -> None:
        """Label the span and the access log with the task and the context of the first result."""
        is_first, self._call = self._call is not None, None  # a long stream must not keep the request in memory
        if is_first and (self._span is not None or self._accessed is not None):
            task_id, context_id = _ids(result)
            if self._accessed is not None:
                self._accessed.task_id = task_id
            if task_id and self._span is not None:
                self._span.set_attributes({Attribute.TASK: task_id, Attribute.CONTEXT: context_id})

    def result_written(self) -> None:
        """End the read of tasks after the first result is written."""
        end_read, self.end_read = self.end_read, None
        if end_read is not None:
            end_read()

    def failed(self, error: Exception) -> Exception:
        """Record `error` as the outcome, and return it. Log a denied permission."""
        self.outcome = type(error).__name__
        call = self._call
        if call is not None:
            call.note_limit(error)
            if isinstance(error, PermissionDeniedError):
                agent = self._handler.agent.name
                self._handler.refusal_log.record_denial(error, call.source(), call.user.user_name, agent)
        return error

    def end(self) -> None:
        """Count the call, and end its span."""
        self.result_written()
        self._handler.metrics.count_request(self._handler.agent.name, self._operation, self.outcome)
        if self._span is not None and self._spans is not None:
            self._spans.end(self._span, self.outcome, fine=self.outcome in (OK, DISCONNECTED))


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


class MountPath:
    """ASGI middleware that records where this application is mounted, for the addresses on agent cards.

    The middleware is needed because, in nested applications, Starlette's ``app_root_path`` is the path of the outermost
    application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Save the path at which this application is mounted in `scope`, and call the application."""
        scope["app_root_path"] = scope.get("root_path", "")
        await self._app(scope, receive, send)


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
