"""Agent of the OpenAI Agents SDK that follows a script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agents import Agent, RunContextWrapper, Tool, function_tool, handoff
from agents.items import TResponseStreamEvent
from agents.testing import assistant_message, function_call

from a2a_celery import Turn
from a2a_celery.frameworks.openai_agents import openai_agent
from workers import with_openai_agents

from .script import Script


@dataclass
class Place:
    """Dataclass that the tool `place` returns."""

    at: str


class OpenAIAgentsScript(Script):
    """Agent of the OpenAI Agents SDK that follows a script.

    Args:
        hands_over: If true, the agent begins as a clerk that can hand over to the agent with the tools.
    """

    def __init__(self, *rounds: Sequence[str], durable: bool = True, hands_over: bool = False) -> None:
        super().__init__(*rounds, durable=durable)
        methods = [self.look, self.look_in_thread, self.fail, self.grow, self.place, self.nothing, self.read]
        tools: list[Tool] = [*map(function_tool, methods), function_tool(self.remember), function_tool(self.ask)]
        self._agent: Agent[Turn] = Agent(name="script", model=Model(self), tools=tools)
        if hands_over:
            clerk: Agent[Turn] = Agent(name="clerk", model=Model(self), handoffs=[handoff(self._agent)])
            self._agent.handoffs = [clerk]
            self._agent = clerk

    @property
    def function(self) -> Callable[[Turn], AsyncIterator[Any]]:
        return openai_agent(self._agent, context=lambda turn: turn, durable=self.durable)

    async def place(self, at: str) -> Place:
        self.calls.append(at)
        return Place(at)

    async def nothing(self, at: str) -> None:
        self.calls.append(at)

    async def read(self, at: str) -> bytes:
        self.calls.append(at)
        return at.encode()

    async def remember(self, context: RunContextWrapper[Turn], at: str) -> str:
        """Change the session."""
        return self.add_place(context.context.session.state, at)

    async def ask(self, context: RunContextWrapper[Turn], at: str) -> str:
        """Ask the client."""
        return await self.ask_client(context.context, at)


class Model(with_openai_agents.StandIn):
    """Model that follows a script."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def stream_response(
        self, system_instructions: str | None, input: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[TResponseStreamEvent]:
        rounds = {item["call_id"].split("-")[1] for item in input if item.get("type") == "function_call"}
        calls = self._script.begin_request(len(rounds))
        if calls:
            output = [function_call(call.name, call.arguments, call_id=call.id) for call in calls]
            yield with_openai_agents.completed(*output)
            return
        results = [str(item["output"]) for item in input if item.get("type") == "function_call_output"]
        text = self._script.results(*results)
        for delta in ("results: ", text.removeprefix("results: ")):
            yield with_openai_agents.text_delta(delta)
        yield with_openai_agents.completed(assistant_message(text))
