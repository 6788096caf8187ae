"""Agent of pydantic-ai that follows a script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai import Agent, BinaryContent, ModelRetry, RunContext, ToolFailed, ToolReturn
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from a2a_celery import Turn
from a2a_celery.frameworks.pydantic_ai import pydantic_ai_agent

from .script import Script


@dataclass
class Place:
    """Dataclass that the tool `place` returns."""

    at: str


class PydanticAIScript(Script):
    """Agent of pydantic-ai that follows a script.

    Attributes:
        prompts: User texts of the last model request.
    """

    error = "never a"

    def __init__(self, *rounds: Sequence[str], durable: bool = True) -> None:
        super().__init__(*rounds, durable=durable)
        self.prompts: list[str] = []
        tools = [self.look, self.look_in_thread, self.retry, self.fail, self.grow, self.place, self.draw]
        self.agent = Agent(FunctionModel(stream_function=self.respond), deps_type=Turn, tools=tools, retries=5)
        for with_context in (self.remember, self.enqueue, self.ask):
            self.agent.tool(with_context)

    @property
    def function(self) -> Callable[[Turn], AsyncIterator[Any]]:
        return pydantic_ai_agent(self.agent, deps=lambda turn: turn, durable=self.durable)

    async def retry(self, at: str) -> str:
        self.calls.append(at)
        raise ModelRetry(f"not {at}")

    async def fail(self, at: str) -> str:
        self.calls.append(at)
        raise ToolFailed(f"never {at}")

    async def place(self, at: str) -> Place:
        self.calls.append(at)
        return Place(at)

    async def draw(self, at: str) -> ToolReturn[Any]:
        self.calls.append(at)
        image = BinaryContent(at.encode(), media_type="image/png")
        return ToolReturn(return_value=f"drawn {at}", content=["look:", image])

    async def remember(self, context: RunContext[Turn], at: str) -> str:
        """Change the session."""
        return self.add_place(context.deps.session.state, at)

    async def enqueue(self, context: RunContext[Turn], at: str) -> str:
        """Add a message."""
        self.calls.append(at)
        context.enqueue(f"news of {at}")
        return "done"

    async def ask(self, context: RunContext[Turn], at: str) -> str:
        """Ask the client."""
        return await self.ask_client(context.deps, at)

    async def respond(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        calls = self.begin_request(sum(isinstance(message, ModelResponse) for message in messages))
        parts = [part for message in messages for part in message.parts]
        self.prompts = [str(part.content) for part in parts if isinstance(part, UserPromptPart)]
        for index, call in enumerate(calls):
            yield {index: DeltaToolCall(call.name, call.json, tool_call_id=call.id)}
        if not calls:
            results = [part.model_response_str() for part in parts if isinstance(part, ToolReturnPart)]
            for text in ("results: ", self.results(*results).removeprefix("results: ")):
                yield text
