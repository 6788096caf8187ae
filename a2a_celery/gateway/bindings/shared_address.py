"""Choice of an agent at an address that all agents share, by the tenant of the request.

The gRPC port and the HTTP root are shared addresses, where a tenant has the form "agent" or "agent/tenant".

Source: A2A specification 4.4.6 (`AgentInterface.tenant`), 5.1 (the same result in every binding).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from a2a.server.context import ServerCallContext

from ...operations.errors import invalid
from ..cards import ADDRESS
from ..handler import GatewayHandler
from ..middleware.service_parameters import CARDS


def choose_agent(handlers: Mapping[str, GatewayHandler], context: ServerCallContext) -> GatewayHandler:
    """Return the handler of the agent in the tenant, and store the rest of the tenant in `context`.

    The first of `handlers` serves requests without a tenant. A single handler serves every tenant.

    Raises:
        InvalidParamsError: There are several agents, and the tenant does not begin with the name of one.
    """
    agent, _, tenant = context.tenant.partition("/")
    if agent not in handlers:
        if context.tenant and len(handlers) > 1:
            raise invalid("tenant", f"Send AGENT/{tenant or agent}, with the name of an agent: {', '.join(handlers)}.")
        return next(iter(handlers.values()))
    context.tenant = tenant
    address = context.state.get(ADDRESS)
    context.state[ADDRESS] = lambda: (address()[0] if address else "", f"/agents/{agent}")
    context.state.setdefault(CARDS, []).append(handlers[agent].agent.card)
    return handlers[agent]


class SharedAddress:
    """Request handler of a shared address. The tenant of each call selects the agent."""

    def __init__(self, handlers: Mapping[str, GatewayHandler]) -> None:
        self._handlers = handlers

    @classmethod
    def of(cls, handlers: Mapping[str, GatewayHandler]) -> GatewayHandler:
        """Return a shared address for the HTTP bindings, which call operations by their names in `GatewayHandler`."""
        return cast(GatewayHandler, cls(handlers))

    async def perform(self, name: str, params: Any, context: ServerCallContext) -> Any:
        """Perform the operation `name` of a feature, and return its response."""
        return await choose_agent(self._handlers, context).perform(name, params, context)

    def __getattr__(self, name: str) -> Any:
        first = next(iter(self._handlers.values()))
        if not callable(getattr(GatewayHandler, name, None)):
            return getattr(first, name)

        def operation(params: Any, context: ServerCallContext) -> Any:
            call: Callable[..., Any] = getattr(choose_agent(self._handlers, context), name)
            return call(params, context)

        return operation
