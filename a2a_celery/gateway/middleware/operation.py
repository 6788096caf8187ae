"""Decorator of the handler's operations. `operation` shows in which order a request passes the wrappers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from a2a.server.context import ServerCallContext
from google.protobuf.message import Message as Proto

from ...agents import Agent
from ...errors import StoreUnavailable
from ..operations.limits import OwnerLimits
from ..operations.validation import check_bounds, require_tenant
from ..protocol_errors import REACHED, LimitExceededError, to_a2a
from .instrumentation import instrumented
from .retry_after import LIMIT_ERRORS, record_limit_error

F = TypeVar("F", bound=Callable[..., Any])


def operation(name: str, *, counted: bool = True) -> Callable[[F], F]:
    """Return the decorator of the operation `name`, a coroutine method or an async generator method of the handler.

    Args:
        name: Name of the operation in metrics and spans.
        counted: False for an operation that needs no store: it takes no token, so it works while the store is down.
    """

    def wrap(method: F) -> F:
        # the outermost wrapper first: metrics and span, then the owner's limits, then the operation's errors
        return instrumented(name)(limited(counted)(maps_errors(method)))

    return wrap


def maps_errors(method: F) -> F:
    """Make `method` raise A2A errors only."""
    if inspect.isasyncgenfunction(method):

        @functools.wraps(method)
        async def stream(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            events = method(*args, **kwargs)
            del args, kwargs  # a long stream must not keep its request in memory
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
    """Handler whose operations are limited."""

    agent: Agent
    limits: OwnerLimits


def limited(counted: bool) -> Callable[[F], F]:
    """Return a decorator that starts an operation only within the limits of its owner.

    Args:
        counted: Whether the operation takes a token of the owner's request rate.
    """

    def wrap(method: F) -> F:
        return (_limited_stream if inspect.isasyncgenfunction(method) else _limited_unary)(method, counted)  # type: ignore[return-value]

    return wrap


def _limited_unary(method: Callable[..., Any], counted: bool) -> Callable[..., Any]:
    @functools.wraps(method)
    async def unary(self: LimitedHandler, params: Any, context: ServerCallContext) -> Any:
        try:
            await _require_within_limits(self, params, context, counted)
            return await method(self, params, context)
        except LimitExceededError as e:
            record_limit_error(context.state.get(LIMIT_ERRORS), e)
            raise

    return unary


def _limited_stream(method: Callable[..., AsyncGenerator[Any, None]], counted: bool) -> Callable[..., Any]:
    @functools.wraps(method)
    async def stream(self: LimitedHandler, params: Any, context: ServerCallContext) -> AsyncGenerator[Any, None]:
        limit_errors = context.state.get(LIMIT_ERRORS)
        try:
            await _require_within_limits(self, params, context, counted)
            with self.limits.stream(self.agent.name, context):
                events = method(self, params, context)
                del params, context  # a long stream must not keep its request in memory
                async with aclosing(events):
                    async for event in events:
                        yield event
                        del event
        except LimitExceededError as e:
            record_limit_error(limit_errors, e)
            raise

    return stream


async def _require_within_limits(
    self: LimitedHandler, params: Proto, context: ServerCallContext, counted: bool
) -> None:
    context.state[REACHED] = True
    check_bounds(params, context)
    require_tenant(context)  # before the request is counted: a caller has no account in a foreign tenant
    if counted:
        try:
            await self.limits.count_request(self.agent.name, context)
        except StoreUnavailable as e:
            raise to_a2a(e) from None
