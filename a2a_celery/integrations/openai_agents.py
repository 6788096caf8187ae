"""Private API of the OpenAI Agents SDK that the adapter for this SDK uses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from copy import copy
from typing import Any
from weakref import ref

from agents import Agent, FunctionTool, Handoff, Model, ModelProvider, ModelResponse, RunContextWrapper
from agents.items import TResponseStreamEvent
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest

from . import Library

OPENAI_AGENTS = Library("openai-agents>=0.24,<1", checked="0.24.0")
OPENAI_AGENTS.require(FunctionTool, "_is_agent_tool")
OPENAI_AGENTS.require(Handoff, "_agent_ref")
OPENAI_AGENTS.require(Model, "_cleanup_on_run_end")


class DelegatingModel(Model):
    """Model that passes each call to the wrapped `model`."""

    def __init__(self, model: Model) -> None:
        self.model = model

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """Return the response of the wrapped model."""
        return await self.model.get_response(*args, **kwargs)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        """Return an iterator over the events of the wrapped model."""
        return self.model.stream_response(*args, **kwargs)

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        """Return the retry advice of the wrapped model."""
        return self.model.get_retry_advice(request)

    async def close(self) -> None:
        """Close the wrapped model."""
        await self.model.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self.model._cleanup_on_run_end(owner)


class WrappingProvider(ModelProvider):
    """Model provider that applies the function `wrap` to the models of another provider."""

    def __init__(self, provider: ModelProvider, wrap: Callable[[Model], Model]) -> None:
        self._provider = provider
        self._wrap = wrap

    def get_model(self, model_name: str | None) -> Model:
        """Return the result of `wrap` for the model with this name."""
        return self._wrap(self._provider.get_model(model_name))


def is_agent_tool(tool: FunctionTool) -> bool:
    """Return True if `Agent.as_tool` has created the tool."""
    return tool._is_agent_tool


def with_copied_target(handoff: Handoff[Any, Any], copy_agent: Callable[[Agent[Any]], Agent[Any]]) -> Handoff[Any, Any]:
    """Return a copy of `handoff` that hands over to ``copy_agent(agent)`` instead of the original agent.

    Args:
        handoff: Handoff to an agent.
        copy_agent: Function that returns the copy of an agent. The function must return the same copy
            each time it is called with an agent.
    """
    invoke: Callable[[RunContextWrapper[Any], str], Awaitable[Agent[Any]]] = handoff.on_invoke_handoff

    async def invoke_copied(context: RunContextWrapper[Any], arguments: str) -> Agent[Any]:
        return copy_agent(await invoke(context, arguments))

    result = copy(handoff)
    result.on_invoke_handoff = invoke_copied
    target = None if handoff._agent_ref is None else handoff._agent_ref()
    if isinstance(target, Agent):
        result._agent_ref = ref(copy_agent(target))
    return result
