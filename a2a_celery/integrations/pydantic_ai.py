"""Private API of pydantic-ai that the adapter for pydantic-ai uses."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent
from pydantic_ai.agent import AbstractAgent, WrapperAgent

from . import Library

PYDANTIC_AI = Library("pydantic-ai-slim>=2.68,<3", checked="2.68.0")
PYDANTIC_AI.require(Agent, "_output_validators")


def has_output_validators(agent: AbstractAgent[Any, Any]) -> bool:
    """Return True if the agent, or the agent that it wraps, has output validators."""
    while isinstance(agent, WrapperAgent):
        agent = agent.wrapped
    return isinstance(agent, Agent) and bool(agent._output_validators)
