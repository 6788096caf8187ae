"""Microsoft agent-framework agent. Its tool needs an approval, which may reach another worker."""

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
    tool,
)

from a2a_celery import Turn
from a2a_celery.frameworks.agent_framework import framework_agent

from .stand_in import Call, think


class StandIn(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
    """Stand-in for a model. For a real model, use one of agent-framework's chat clients."""

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Awaitable[ChatResponse] | ResponseStream[ChatResponseUpdate, ChatResponse]:
        async def updates() -> AsyncIterator[ChatResponseUpdate]:
            for content in await _answer(messages):
                yield ChatResponseUpdate(role="assistant", contents=[content])

        async def response() -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", await _answer(messages))])

        return self._build_response_stream(updates()) if stream else response()


async def _answer(messages: Sequence[Message]) -> list[Content]:
    texts = [message.text for message in messages if message.role == "user" and message.text]
    results = [content.result for content in messages[-1].contents if content.type == "function_result"]
    answer = await think(texts, str(results[0]) if results else None)
    if isinstance(answer, Call):
        return [Content.from_function_call(f"call-{len(messages)}", answer.name, arguments=answer.arguments)]
    return [Content.from_text(word + " ") for word in answer.split(" ")]


@tool(approval_mode="always_require")
def book(what: str) -> str:
    """Book something after the client approves."""
    return f"{what} is booked"


def make_agent(turn: Turn) -> Agent[Any]:
    """Return an agent for one run."""
    return Agent(StandIn(), name="clerk", tools=[book])


clerk = framework_agent(make_agent)
