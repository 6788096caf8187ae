"""pydantic-ai agent. Its tool needs an approval, which may reach another worker."""

import json
from collections.abc import AsyncIterator

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import ModelMessage, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from a2a_celery.frameworks.pydantic_ai import pydantic_ai_agent

from .stand_in import Call, think


async def respond(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Yield the model's answer in chunks."""
    prompts = [part for message in messages for part in message.parts if isinstance(part, UserPromptPart)]
    texts = [text for prompt in prompts for text in prompt.content if isinstance(text, str)]
    results = [str(part.content) for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    answer = await think(texts, results[0] if results else None)
    if isinstance(answer, Call):
        yield {0: DeltaToolCall(answer.name, json.dumps(answer.arguments), tool_call_id=f"call-{len(messages)}")}
        return
    for word in answer.split(" "):
        yield word + " "


agent = Agent(FunctionModel(stream_function=respond), output_type=[str, DeferredToolRequests])
"""Agent with a stand-in for a model. For a real model, use a name such as "openai:gpt-5.2"."""


@agent.tool_plain(requires_approval=True)
def book(what: str) -> str:
    """Book something after the client approves."""
    return f"{what} is booked"


clerk = pydantic_ai_agent(agent)
