"""What is told of a request: it is counted, and where this process traces, it has a span.

The span belongs to the client's trace (``traceparent``, a header or gRPC metadata), or to what another instrumentation
has begun around it. What is written and published meanwhile is inside.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from a2a.server.context import ServerCallContext
from a2a.types import Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from starlette.types import ASGIApp, Receive, Scope, Send

from ..agents import Agent
from ..telemetry.logs import about
from ..telemetry.names import Action, Attribute
from ..telemetry.tracing import CARRIED, tracing
from .metrics import Metrics

if TYPE_CHECKING:
    from ..telemetry.spans import Span, Spans

logger = logging.getLogger(__name__)

OK, LEFT = "ok", "left"
"""Outcomes that are no error: it was answered; the client went away before."""


class Observed(Protocol):
    """Whose operations are told of."""

    agent: Agent
    metrics: Metrics


OPERATIONS = {
    "on_message_send": "SendMessage",
    "message_pages": "SendStreamingMessage",
    "subscription_pages": "SubscribeToTask",
    "on_get_task": "GetTask",
    "on_list_tasks": "ListTasks",
    "on_cancel_task": "CancelTask",
    "on_get_extended_agent_card": "GetExtendedAgentCard",
    "on_create_task_push_notification_config": "CreateTaskPushNotificationConfig",
    "on_get_task_push_notification_config": "GetTaskPushNotificationConfig",
    "on_list_task_push_notification_configs": "ListTaskPushNotificationConfigs",
    "on_delete_task_push_notification_config": "DeleteTaskPushNotificationConfig",
}
"""The operations of A2A, by the methods that carry them out."""

H = TypeVar("H", bound=type)


def told_of(handler: H) -> H:
    """A class of handlers, each of whose operations is counted and traced."""
    for name, operation in OPERATIONS.items():
        method = getattr(handler, name)
        tell = observed_stream if inspect.isasyncgenfunction(method) else observed
        setattr(handler, name, tell(operation, method))
    return handler


def observed(operation: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """`method`, which raises nothing but A2A errors, counted and traced as `operation`."""

    @wraps(method)
    async def unary(self: Observed, params: Any, context: ServerCallContext) -> Any:
        telling = _Telling(self, operation, context)
        try:
            return telling.gave(await telling.step(method(self, params, context)))
        except BaseException as e:
            telling.raised(e)
            raise
        finally:
            telling.end()

    return unary


def observed_stream(operation: str, method: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., Any]:
    """The same for a method that streams."""

    @wraps(method)
    async def stream(self: Observed, params: Any, context: ServerCallContext) -> AsyncGenerator[Any, None]:
        telling, events = _Telling(self, operation, context), method(self, params, context)
        del params, context  # a stream is there for long, and its client may say nothing of them again
        try:
            with self.metrics.streaming(self.agent.name):
                async with aclosing(events):
                    while (event := await telling.step(anext(events, None))) is not None:
                        yield telling.gave(event)
                        del event
        except BaseException as e:
            telling.raised(e)
            raise
        finally:
            telling.end()

    return stream


class _Telling:
    """What becomes of one request."""

    def __init__(self, of: Observed, operation: str, context: ServerCallContext) -> None:
        self._of = of
        self._operation = operation
        self._outcome = OK
        self._named = False
        self._spans: Spans | None = tracing()
        self._span: Span | None = None
        if self._spans is not None:
            headers = {name: value for name, value in context.state.get("headers", {}).items() if name in CARRIED}
            self._span, self._here = self._spans.requested(operation, of.agent.name, headers)

    async def step(self, work: Any) -> Any:
        """What `work` gives, done inside the span."""
        if self._spans is None:
            return await work
        with self._spans.within(self._here):  # a step each: nothing is at hand while somebody else's code runs
            return await work

    def gave(self, answer: Any) -> Any:
        """The `answer`; the span is named after the first."""
        if self._span is not None and not self._named:
            self._named = True
            task_id, context_id = _ids(answer)
            if task_id:
                self._span.set_attributes({Attribute.TASK: task_id, Attribute.CONTEXT: context_id})
        return answer

    def raised(self, error: BaseException) -> None:
        """It ended with `error`: the protocol's, or the client's going away."""
        self._outcome = type(error).__name__ if isinstance(error, Exception) else LEFT

    def end(self) -> None:
        """It is over."""
        self._of.metrics.requested(self._of.agent.name, self._operation, self._outcome)
        if self._span is not None and self._spans is not None:
            self._spans.ended(self._span, self._outcome, fine=self._outcome in (OK, LEFT))


def _ids(answer: Any) -> tuple[str, str]:
    match answer:
        case [first, *_]:
            return _ids(first.event)
        case Task():
            return answer.id, answer.context_id
        case Message() | TaskStatusUpdateEvent() | TaskArtifactUpdateEvent():
            return answer.task_id, answer.context_id
        case _:
            return "", ""


def cancel_asked(agent: str, task_id: str, answer: object) -> None:
    """A client asked to cancel; the store's `answer` says what that did."""
    said = about(Action.CANCEL_ASKED, agent=agent, task=task_id)
    logger.info("task %s: its client cancels: %s", task_id, type(answer).__name__, extra=said)


class TraceContext:
    """An ASGI application with the client's trace at hand: spans that others make on the way, such as the SDK's, belong
    to it too. Where an instrumentation of the server has begun a span, that is at hand already, and stays."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves the request."""
        spans = tracing() if scope["type"] == "http" else None
        if spans is None:
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        with spans.within(spans.arriving(headers)):
            await self._app(scope, receive, send)
