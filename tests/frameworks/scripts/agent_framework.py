"""Agent of Microsoft's Agent Framework that follows a script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from agent_framework import (
    Agent,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationContext,
    Message,
    ResponseStream,
    UsageDetails,
    tool,
)

from a2a_celery import Turn
from a2a_celery.frameworks.agent_framework import framework_agent
from workers import with_agent_framework

from .script import Script


class AgentFrameworkScript(Script):
    """Agent of Microsoft's Agent Framework that follows a script."""

    @property
    def function(self) -> Callable[[Turn], AsyncIterator[Any]]:
        return framework_agent(self.make, durable=self.durable)

    def make(self, turn: Turn) -> Agent[Any]:
        async def ask(at: str) -> str:
            """Ask the client."""
            return await self.ask_client(turn, at)

        tools = (self.look, self.look_in_thread, self.fail, self.remember, self.grow, ask)
        return Agent(Model(self), name="script", tools=[tool(function) for function in tools])

    async def remember(self, at: str, context: FunctionInvocationContext) -> str:
        """Change the session."""
        assert context.session is not None
        return self.add_place(context.session.state, at)


class Model(with_agent_framework.StandIn):
    """Model that follows a script."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Awaitable[ChatResponse] | ResponseStream[ChatResponseUpdate, ChatResponse]:
        return self._build_response_stream(self._updates(messages))

    async def _updates(self, messages: Sequence[Message]) -> AsyncIterator[ChatResponseUpdate]:
        number = sum(message.role == "assistant" for message in messages)
        calls = self._script.begin_request(number)
        if calls:
            contents = [Content.from_function_call(call.id, call.name, arguments=call.json) for call in calls]
            yield ChatResponseUpdate(role="assistant", contents=contents, finish_reason="tool_calls")
            return
        contents = [content for message in messages for content in message.contents]
        results = [str(content.result) for content in contents if content.type == "function_result"]
        for text in ("results: ", self._script.results(*results).removeprefix("results: ")):
            yield ChatResponseUpdate(role="assistant", contents=[Content.from_text(text)])
        usage = Content.from_usage(UsageDetails(input_token_count=number))
        yield ChatResponseUpdate(role="assistant", contents=[usage], finish_reason="stop")
