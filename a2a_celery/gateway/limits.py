"""What one owner may ask of a deployment: requests a second, tasks at a time, and how long a name may be.

An owner is whose tasks they are: a tenant's user, with all agents. Callers whom nobody has authenticated are one owner
in each tenant, as they see each other's tasks: an address is no identity behind a proxy.

Source: A2A specification 13.4 (rate limits on all operations); RFC 6585 4 (429); RFC 9110 10.2.3 (Retry-After).
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from functools import wraps
from math import ceil
from typing import Any, Protocol, TypeVar

from a2a.server.context import ServerCallContext
from google.protobuf.message import Message as Proto

from ..agents import Agent
from ..clock import SYSTEM_CLOCK, Clock
from ..config import Settings
from ..errors import StoreUnavailable
from ..store import AsyncStore, Keys, Scope
from ..store.answers import Limited
from ..store.limits import TaskLimits, take_request
from .checks import check_bounds, require_tenant
from .faults import REACHED, LimitExceededError, to_a2a
from .metrics import Metrics
from .observing import OPERATIONS
from .retry_after import REFUSALS, note

REQUESTS = "requests"
"""The name of the limit of requests; those of tasks are called as in `TaskLimits`."""

WITHOUT_STORE = "on_get_extended_agent_card"
"""The operation that asks the store nothing: it is answered also when that is away, so nothing is taken for it."""

MOST_REMEMBERED = 10_000
"""Owners of whom a gateway knows that they have no token yet; it asks the store for any beyond."""

LONGEST_WAIT = 60
"""Seconds, the most that a refused message is told to wait: when a place gets free is an estimate."""

SAID = {
    REQUESTS: "More requests than may come in a second",
    "concurrent": "{} of your tasks are under way, and no more may be",
    "waiting": "{} of your tasks wait for a worker, and no more may",
    "queued": "{} messages wait for this agent, and no more may",
}


class Limits:
    """Those of a deployment that serves `agents`."""

    def __init__(
        self,
        settings: Settings,
        store: AsyncStore,
        keys: Keys,
        agents: Iterable[str],
        metrics: Metrics,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.metrics = metrics
        self._clock = clock
        self._store = store
        self._keys = keys
        self._per_second = settings.owner_requests_per_second
        self._refused_until: dict[Scope, float] = {}
        self._burst = settings.owner_request_burst or max(1, ceil(self._per_second or 0))
        named = tuple(agents)
        for agent in named:
            metrics.may_refuse(agent, SAID)
        limits = TaskLimits(
            named,
            settings.owner_max_concurrent_tasks,
            settings.owner_max_waiting_tasks,
            settings.agent_max_queue,
        )
        is_limited = (limits.concurrent, limits.waiting, limits.queued) != (None, None, None)
        self.of_tasks: TaskLimits | None = limits if is_limited else None

    async def take(self, agent: str, context: ServerCallContext) -> None:
        """Counts a request of its caller; costs one round trip to the store, nothing without the limit, and nothing
        while it is known that there is no token yet: whoever floods, floods no store.

        Raises:
            LimitExceededError: it is one too many.
            StoreUnavailable: the store is away: then what was asked for could not be done either.
        """
        if self._per_second is None:
            return
        scope = Scope(tenant=context.tenant, owner=context.user.user_name)
        wait = self._refused_until.get(scope, 0.0) - self._clock.monotonic()
        if wait <= 0:
            wait = await self._store.run(
                take_request(self._keys, scope, per_second=self._per_second, burst=self._burst)
            )
            self._remember(scope, wait)
        if wait > 0:
            raise self._error(agent, REQUESTS, SAID[REQUESTS], ceil(wait))

    def _remember(self, scope: Scope, wait: float) -> None:
        """A token that comes in `wait` seconds comes no sooner for another request, here or at another gateway."""
        now = self._clock.monotonic()
        self._refused_until.pop(scope, None)
        if len(self._refused_until) >= MOST_REMEMBERED:
            self._refused_until = {one: until for one, until in self._refused_until.items() if until > now}
        if wait > 0 and len(self._refused_until) < MOST_REMEMBERED:
            self._refused_until[scope] = now + wait

    def refusal(self, agent: str, answer: Limited) -> LimitExceededError:
        """What a client is told whose message was not taken."""
        seconds = min(LONGEST_WAIT, max(1, ceil(answer.again_in)))
        return self._error(agent, answer.limit, SAID[answer.limit].format(answer.most), seconds)

    def _error(self, agent: str, limit: str, said: str, seconds: int) -> LimitExceededError:
        self.metrics.refused(agent, limit)
        text = f"{said}: come again in {seconds} s"
        return LimitExceededError(text, data={"limit": limit, "retryAfter": str(seconds)})


class Limiting(Protocol):
    """Whose operations are limited."""

    agent: Agent
    limits: Limits


H = TypeVar("H", bound=type)


def within_limits(handler: H) -> H:
    """A class of handlers, each of whose operations begins only if its caller may have it now."""
    for name in OPERATIONS:
        method = getattr(handler, name)
        limited = _limited_stream if inspect.isasyncgenfunction(method) else _limited
        setattr(handler, name, limited(method, counts=name != WITHOUT_STORE))
    return handler


def _limited(method: Callable[..., Any], *, counts: bool) -> Callable[..., Any]:
    @wraps(method)
    async def unary(self: Limiting, params: Any, context: ServerCallContext) -> Any:
        try:
            await _may_begin(self, params, context, counts)
            return await method(self, params, context)
        except LimitExceededError as e:
            note(context.state.get(REFUSALS), e)
            raise

    return unary


def _limited_stream(method: Callable[..., AsyncGenerator[Any, None]], *, counts: bool) -> Callable[..., Any]:
    @wraps(method)
    async def stream(self: Limiting, params: Any, context: ServerCallContext) -> AsyncGenerator[Any, None]:
        refusals = context.state.get(REFUSALS)
        try:
            await _may_begin(self, params, context, counts)
            events = method(self, params, context)
            del params, context  # a stream is there for long
            async with aclosing(events):
                async for event in events:
                    yield event
                    del event
        except LimitExceededError as e:
            note(refusals, e)
            raise

    return stream


async def _may_begin(self: Limiting, params: Proto, context: ServerCallContext, counts: bool) -> None:
    context.state[REACHED] = True
    check_bounds(params, context)
    require_tenant(context)  # before it counts: whoever names tenants that are not theirs is nobody in them
    if counts:
        try:
            await self.limits.take(self.agent.name, context)
        except StoreUnavailable as e:
            raise to_a2a(e) from None
