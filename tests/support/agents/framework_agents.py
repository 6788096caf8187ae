"""Framework agents whose model hangs before some calls, so that a test can kill the worker at these calls."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any

import agent_framework
import agents
import pydantic_ai
import strands
from agent_framework import ChatResponse, ChatResponseUpdate, Content, Message, ResponseStream
from agents.items import TResponseStreamEvent
from agents.testing import assistant_message, function_call
from celery import Celery
from google.adk.a2a.executor.a2a_agent_executor import A2aAgentExecutor
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms import types as llama
from llama_index.core.llms.callbacks import llm_chat_callback
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from strands.types.content import Messages
from strands.types.streaming import StreamEvent

from a2a_celery import A2A, Turn, current_step_key
from a2a_celery.frameworks.adk import ContextSessionService, ExecutionSteps
from a2a_celery.frameworks.agent_framework import framework_agent
from a2a_celery.frameworks.llamaindex import llamaindex_agent
from a2a_celery.frameworks.openai_agents import openai_agent
from a2a_celery.frameworks.pydantic_ai import pydantic_ai_agent
from a2a_celery.frameworks.strands import strands_agent
from tests.support.agents.basic import card
from tests.support.agents.durable_agents import is_passed, write_line
from tests.support.agents.framework_script import ANSWER, ROUNDS, STOPS
from workers import with_agent_framework, with_llamaindex, with_openai_agents, with_strands

app = Celery("tests", broker=os.environ.get("CELERY_BROKER_URL", "memory://"), set_as_current=False)
app.conf.update(task_default_queue=os.environ.get("TEST_QUEUE", "celery"))
a2a = A2A(app)


async def question(task: str, number: int) -> list[str]:
    """Record a model call and return the cities to look up. If the call is in `STOPS`, hang in the first attempt that
    reaches the call."""
    if number in STOPS and not is_passed(f"{task}.before-{number}"):
        await asyncio.Event().wait()
    write_line(task, "questions", str(number))
    return ROUNDS[number]


async def weather(task: str, city: str) -> str:
    """Record a tool call and return the weather of a city."""
    write_line(task, "looked-up", city)
    return f"warm in {city}"


class Model(with_agent_framework.StandIn):
    """agent-framework model that looks up the weather over several rounds of tool calls."""

    def __init__(self, task: str) -> None:
        super().__init__()
        self._task = task

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Awaitable[ChatResponse] | ResponseStream[ChatResponseUpdate, ChatResponse]:
        number = sum(message.role == "assistant" for message in messages)

        async def updates() -> AsyncIterator[ChatResponseUpdate]:
            cities = await question(self._task, number)
            for word in [] if cities else ANSWER.split(" "):
                yield ChatResponseUpdate(role="assistant", contents=[Content.from_text(f"{word} ")])
            calls = [Content.from_function_call(f"call-{city}", "look_up", arguments={"city": city}) for city in cities]
            yield ChatResponseUpdate(role="assistant", contents=calls, finish_reason="tool_calls" if calls else "stop")

        return self._build_response_stream(updates())


def make(turn: Turn) -> agent_framework.Agent[Any]:
    async def look_up(city: str) -> str:
        """Look up the weather of a city."""
        write_line(turn.text, "keys", current_step_key())
        return await weather(turn.text, city)

    return agent_framework.Agent(Model(turn.text), name="weather", tools=[agent_framework.tool(look_up)])


a2a.agent("agent-framework", description="Knows the weather.", session=True, max_attempts=5)(framework_agent(make))


class AdkModel(BaseLlm):
    """ADK model that looks up the weather over several rounds of tool calls."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the response."""
        number = sum(content.role == "model" for content in llm_request.contents)
        cities = await question("adk", number)
        calls = [types.FunctionCall(name="look_up", args={"city": city}) for city in cities]
        parts = [types.Part(function_call=call) for call in calls] or [types.Part(text=ANSWER)]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


async def look_up(city: str, tool_context: ToolContext) -> str:
    """Look up the weather of a city."""
    tool_context.state[city] = "known"
    return await weather("adk", city)


def executor() -> A2aAgentExecutor:
    agent = LlmAgent(name="weather", model=AdkModel(model="stand-in"), tools=[look_up])
    runner = Runner(
        app=App(name="weather", root_agent=agent, plugins=[ExecutionSteps()]), session_service=ContextSessionService()
    )
    return A2aAgentExecutor(runner=runner)


a2a.add_agent(card("adk"), executor, session=True, max_attempts=5)


class StrandsModel(with_strands.StandIn):
    """Strands model that looks up the weather over several rounds of tool calls."""

    async def stream(self, messages: Messages, *args: Any, **kwargs: Any) -> AsyncIterator[StreamEvent]:
        """Yield the response."""
        cities = await question("strands", sum(message["role"] == "assistant" for message in messages))
        yield {"messageStart": {"role": "assistant"}}
        for word in [] if cities else ANSWER.split(" "):
            yield {"contentBlockDelta": {"delta": {"text": f"{word} "}}}
        for city in cities:
            start: Any = {"toolUse": {"toolUseId": f"call-{city}", "name": "look_up_in_thread"}}
            yield {"contentBlockStart": {"start": start}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps({"city": city})}}}}
            yield {"contentBlockStop": {}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if cities else "end_turn"}}


@strands.tool
def look_up_in_thread(city: str) -> str:
    """Look up the weather of a city."""
    write_line("strands", "keys", current_step_key())
    return asyncio.run(weather("strands", city))


def make_with_strands(turn: Turn) -> strands.Agent:
    return strands.Agent(model=StrandsModel(), tools=[look_up_in_thread], callback_handler=None)


a2a.agent("strands", description="Knows the weather.", session=True, max_attempts=5)(strands_agent(make_with_strands))


async def respond(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Yield a response as a pydantic-ai model that looks up the weather over several rounds of tool calls."""
    cities = await question("pydantic-ai", sum(isinstance(message, ModelResponse) for message in messages))
    for word in [] if cities else ANSWER.split(" "):
        yield f"{word} "
    for index, city in enumerate(cities):
        yield {index: DeltaToolCall("look_up_city", json.dumps({"city": city}), tool_call_id=f"call-{city}")}


async def look_up_city(city: str) -> str:
    """Look up the weather of a city."""
    write_line("pydantic-ai", "keys", current_step_key())
    return await weather("pydantic-ai", city)


meteorologist = pydantic_ai.Agent(FunctionModel(stream_function=respond), tools=[look_up_city])
a2a.add_agent(card("pydantic-ai"), pydantic_ai_agent(meteorologist), max_attempts=5)


class OpenAIModel(with_openai_agents.StandIn):
    """OpenAI Agents SDK model that looks up the weather over several rounds of tool calls."""

    async def stream_response(
        self, system_instructions: str | None, input: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Yield the response."""
        result_count = sum(item.get("type") == "function_call_output" for item in input)
        cities = await question("openai-agents", min(result_count, len(ROUNDS) - 1))
        for word in [] if cities else ANSWER.split(" "):
            yield with_openai_agents.text_delta(f"{word} ")
        calls = [function_call("look_up_city_with_key", {"city": city}, call_id=f"call-{city}") for city in cities]
        yield with_openai_agents.completed(*(calls or [assistant_message(ANSWER)]))


@agents.function_tool
async def look_up_city_with_key(city: str) -> str:
    """Look up the weather of a city."""
    write_line("openai-agents", "keys", current_step_key())
    return await weather("openai-agents", city)


forecaster = agents.Agent(name="weather", model=OpenAIModel(), tools=[look_up_city_with_key])
a2a.add_agent(card("openai-agents"), openai_agent(forecaster), max_attempts=5)


class LlamaModel(with_llamaindex.StandIn):
    """LlamaIndex model that looks up the weather over several rounds of tool calls."""

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[llama.ChatMessage], **kwargs: Any) -> llama.ChatResponseAsyncGen:
        """Return the response in chunks."""

        async def chunks() -> AsyncGenerator[llama.ChatResponse, None]:
            cities = await question("llamaindex", sum(message.role == "assistant" for message in messages))
            calls = [
                llama.ToolCallBlock(
                    tool_call_id=f"call-{city}", tool_name="look_up_for_workflow", tool_kwargs={"city": city}
                )
                for city in cities
            ]
            if calls:
                yield llama.ChatResponse(message=llama.ChatMessage(role="assistant", blocks=calls))
                return
            for word in ANSWER.split(" "):
                yield llama.ChatResponse(message=llama.ChatMessage(role="assistant", content=ANSWER), delta=f"{word} ")

        return chunks()


async def look_up_for_workflow(city: str) -> str:
    """Look up the weather of a city."""
    return await weather("llamaindex", city)


observer = FunctionAgent(name="weather", llm=LlamaModel(), tools=[look_up_for_workflow])
a2a.add_agent(card("llamaindex"), llamaindex_agent(observer), max_attempts=5)
