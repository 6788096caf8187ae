"""Token counts of a turn in the metadata of its task. All frameworks have the same format, and the counts include the
run before a question."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import agent_framework
import agents
import pydantic_ai
import pytest
import strands
from a2a.types import Part, TaskStatusUpdateEvent
from agent_framework import ChatResponse, ChatResponseUpdate, Content, Message, ResponseStream
from agents import RunConfig
from agents.items import TResponseStreamEvent
from google.adk.a2a.executor.a2a_agent_executor import A2aAgentExecutor
from google.adk.a2a.executor.config import A2aAgentExecutorConfig
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.tools.function_tool import FunctionTool
from google.genai import types
from google.protobuf.json_format import MessageToDict, ParseDict
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai.types.responses import ResponseCompletedEvent, ResponseUsage
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.usage import RequestUsage
from strands.types.content import Messages
from strands.types.streaming import StreamEvent

from a2a_celery.client import Result
from a2a_celery.frameworks.adk import ContextSessionService, ExecutionSteps
from a2a_celery.frameworks.agent_framework import framework_agent
from a2a_celery.frameworks.langgraph import langgraph_agent
from a2a_celery.frameworks.openai_agents import openai_agent
from a2a_celery.frameworks.pydantic_ai import pydantic_ai_agent
from a2a_celery.frameworks.strands import strands_agent
from a2a_celery.frameworks.usage import Usage
from a2a_celery.testing import AgentTester
from tests.support.agents.booking_agents import BOOKING_AGENTS
from workers import with_adk, with_agent_framework, with_langgraph, with_openai_agents, with_pydantic_ai, with_strands

INPUTS, OUTPUTS, CACHED, REASONED = 30, 7, 20, 5
"""Tokens that each model reports for each of its calls."""


class StrandsModel(with_strands.StandIn):
    """Strands model that reports token counts."""

    def get_config(self) -> dict[str, Any]:
        return {"model_id": "m"}

    async def stream(self, messages: Messages, *args: Any, **kwargs: Any) -> AsyncIterator[StreamEvent]:
        async for event in super().stream(messages, *args, **kwargs):
            yield event
        usage: Any = {"inputTokens": INPUTS, "outputTokens": OUTPUTS, "totalTokens": INPUTS + OUTPUTS}
        yield {"metadata": {"usage": usage | {"cacheReadInputTokens": CACHED}, "metrics": {"latencyMs": 1}}}


class FrameworkModel(with_agent_framework.StandIn):
    """agent-framework chat client that reports token counts."""

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Awaitable[ChatResponse] | ResponseStream[ChatResponseUpdate, ChatResponse]:
        response: Any = super()._inner_get_response(messages=messages, stream=stream, options=options, **kwargs)

        async def updates() -> AsyncIterator[ChatResponseUpdate]:
            async for update in response:
                yield update
            usage: Any = {"input_token_count": INPUTS, "output_token_count": OUTPUTS}
            usage |= {"cache_read_input_token_count": CACHED, "reasoning_output_token_count": REASONED}
            yield ChatResponseUpdate(role="assistant", contents=[Content.from_usage(usage)], model="m")

        return self._build_response_stream(updates())


class AdkModel(with_adk.StandIn):
    """ADK model that reports token counts."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        async for response in super().generate_content_async(llm_request, stream):
            response.model_version = "m"
            response.usage_metadata = types.GenerateContentResponseUsageMetadata(
                prompt_token_count=INPUTS,
                candidates_token_count=OUTPUTS - REASONED,
                thoughts_token_count=REASONED,
                cached_content_token_count=CACHED,
            )
            yield response


class PydanticModel(WrapperModel):
    """pydantic-ai model that reports token counts."""

    def request_stream(self, *args: Any, **kwargs: Any) -> Any:
        return _PydanticStream(super().request_stream(*args, **kwargs))


class _PydanticStream:
    def __init__(self, stream: Any) -> None:
        self._manager = stream

    async def __aenter__(self) -> Any:
        stream = await self._manager.__aenter__()
        response: Callable[[], ModelResponse] = stream.get

        def get() -> ModelResponse:
            usage = RequestUsage(input_tokens=INPUTS, output_tokens=OUTPUTS, cache_read_tokens=CACHED)
            model_response = response()
            model_response.usage, model_response.model_name = usage, "m"
            usage.details["reasoning_tokens"] = REASONED
            return model_response

        stream.get = get
        return stream

    async def __aexit__(self, *error: Any) -> Any:
        return await self._manager.__aexit__(*error)


class OpenAIModel(with_openai_agents.StandIn):
    """OpenAI Agents SDK model that reports token counts."""

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        async for event in super().stream_response(*args, **kwargs):
            if isinstance(event, ResponseCompletedEvent):
                event.response.model = "m"
                event.response.usage = ResponseUsage(
                    input_tokens=INPUTS,
                    input_tokens_details=InputTokensDetails(cached_tokens=CACHED, cache_write_tokens=0),
                    output_tokens=OUTPUTS,
                    output_tokens_details=OutputTokensDetails(reasoning_tokens=REASONED),
                    total_tokens=INPUTS + OUTPUTS,
                )
            yield event


class LangChainModel(with_langgraph.StandIn):
    """LangChain model that reports token counts."""

    async def _astream(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        async for chunk in super()._astream(messages, *args, **kwargs):
            yield chunk
        last = AIMessageChunk(
            content="",
            response_metadata={"model_name": "m"},
            usage_metadata={
                "input_tokens": INPUTS,
                "output_tokens": OUTPUTS,
                "total_tokens": INPUTS + OUTPUTS,
                "input_token_details": {"cache_read": CACHED},
                "output_token_details": {"reasoning": REASONED},
            },
        )
        yield ChatGenerationChunk(message=last)


def adk_executor() -> A2aAgentExecutor:
    steps = ExecutionSteps()
    tools: list[Any] = [FunctionTool(with_adk.book, require_confirmation=True)]
    app = App(name="clerk", root_agent=LlmAgent(name="clerk", model=AdkModel(model="m"), tools=tools), plugins=[steps])
    config = A2aAgentExecutorConfig(execute_interceptors=[steps.token_usage()])
    return A2aAgentExecutor(runner=Runner(app=app, session_service=ContextSessionService()), config=config)


def graph() -> Any:
    async def ask_model(state: MessagesState) -> dict[str, list[BaseMessage]]:
        return {"messages": [await LangChainModel().ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", ask_model)
    builder.add_node("tools", ToolNode([with_langgraph.book]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return langgraph_agent(builder)


def pydantic_agent() -> Any:
    agent = pydantic_ai.Agent(
        PydanticModel(with_pydantic_ai.agent.model),  # type: ignore[arg-type]
        output_type=[str, pydantic_ai.DeferredToolRequests],
    )
    agent.tool_plain(requires_approval=True)(with_pydantic_ai.book)
    return pydantic_ai_agent(agent)


AGENTS: dict[str, Callable[[], Any]] = {
    "strands": lambda: strands_agent(
        lambda turn: strands.Agent(model=StrandsModel(), tools=[with_strands.book], callback_handler=None)
    ),
    "agent-framework": lambda: framework_agent(
        lambda turn: agent_framework.Agent(FrameworkModel(), name="clerk", tools=[with_agent_framework.book])
    ),
    "adk": adk_executor,
    "pydantic-ai": pydantic_agent,
    "openai-agents": lambda: openai_agent(
        agents.Agent(name="clerk", model=OpenAIModel(), tools=[with_openai_agents.book]),
        run_config=RunConfig(tracing_disabled=True),
    ),
    "langgraph": graph,
}


def counts(calls: int, name: str) -> dict[str, dict[str, float]]:
    tokens = {"inputTokens": INPUTS, "outputTokens": OUTPUTS, "cacheReadTokens": CACHED, "reasoningTokens": REASONED}
    if name == "strands":  # strands does not count reasoning tokens
        del tokens["reasoningTokens"]
    return {"m": {field: calls * count for field, count in tokens.items()}}


def usage_of(result: Result) -> Any:
    return MessageToDict(result.raw.metadata).get("a2a_celery/usage")


COUNTED = [agent for agent in BOOKING_AGENTS if agent.name in AGENTS]


@pytest.mark.parametrize("agent", COUNTED, ids=lambda agent: agent.name)
async def test_the_tokens_of_all_runs_of_a_turn(agent: Any) -> None:
    async with AgentTester(AGENTS[agent.name](), session=True, max_attempts=2) as tester:
        hello = await tester.send("hello")
        assert usage_of(hello) == counts(1, agent.name)

        question_result = await tester.send("book a table", context_id=hello.context_id)
        assert usage_of(question_result) is None
        [question] = [MessageToDict(part) for part in question_result.raw.status.message.parts if part.HasField("data")]
        answer = agent.answer(question, True)
        content = answer["text"] if "text" in answer else [ParseDict(answer, Part())]
        result = await tester.answer(question_result, content)

        assert result.text.strip() == "Done: a table is booked."
        assert usage_of(result) == counts(2, agent.name)


@pytest.mark.parametrize("name", [name for name in AGENTS if name not in ("adk", "langgraph")])
async def test_the_tokens_of_recorded_calls_count_once(name: str) -> None:
    async with AgentTester(AGENTS[name](), session=True, max_attempts=2) as tester:
        tester.crash_after("model")

        assert usage_of(await tester.send("hello")) == counts(1, name)


async def test_a_model_that_reports_no_tokens_leaves_no_metadata() -> None:
    async with AgentTester(with_strands.clerk, session=True) as tester:
        assert usage_of(await tester.send("hello")) is None


def test_sums_are_by_model() -> None:
    usage = Usage()
    usage.add("a", inputs=1, outputs=2, cache_writes=3)
    usage.add("a", inputs=10, outputs=None, cache_reads=0)
    usage.add(None, inputs=None, outputs=4)
    usage.add("b", inputs=0, outputs=None, reasoning=9)

    assert usage.by_model == {
        "a": {"inputTokens": 11, "outputTokens": 2, "cacheWriteTokens": 3},
        "": {"inputTokens": 0, "outputTokens": 4},
    }
    assert dict(Usage().apply(TaskStatusUpdateEvent()).metadata) == {}
