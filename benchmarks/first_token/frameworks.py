"""Texts of the frameworks without A2A."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import agents
import strands
from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner
from google.genai import types
from llama_index.core.agent.workflow import AgentStream, FunctionAgent

from workers import (
    with_adk,
    with_agent_framework,
    with_langgraph,
    with_llamaindex,
    with_openai_agents,
    with_pydantic_ai,
    with_strands,
)

from . import TEXT

Texts = AsyncIterator[str]


async def strands_alone() -> Texts:
    agent = strands.Agent(model=with_strands.StandIn(), tools=[with_strands.book], callback_handler=None)
    async for event in agent.stream_async(TEXT):
        yield event.get("data", "")


async def agent_framework_alone() -> Texts:
    async for update in with_agent_framework.make_agent(None).run(TEXT, stream=True):  # type: ignore[arg-type]
        yield update.text


async def adk_alone() -> Texts:
    tools: list[Any] = [with_adk.book]
    agent = LlmAgent(name="clerk", model=with_adk.StandIn(model="stand-in"), tools=tools)
    runner = InMemoryRunner(agent=agent, app_name="clerk")
    session = await runner.session_service.create_session(app_name="clerk", user_id="ann")
    message = types.Content(role="user", parts=[types.Part(text=TEXT)])
    async for event in runner.run_async(user_id="ann", session_id=session.id, new_message=message):
        yield "".join(part.text or "" for part in (event.content and event.content.parts) or [])


async def pydantic_ai_alone() -> Texts:
    async with with_pydantic_ai.agent.run_stream_events(TEXT) as events:
        async for event in events:
            part = getattr(event, "part", None) or getattr(event, "delta", None)
            yield getattr(part, "content", "") or getattr(part, "content_delta", "")


async def openai_agents_alone() -> Texts:
    agent = agents.Agent(name="clerk", model=with_openai_agents.StandIn(), tools=[with_openai_agents.book])
    config = agents.RunConfig(tracing_disabled=True)
    message: Any = {"role": "user", "content": [{"type": "input_text", "text": TEXT}]}
    async for event in agents.Runner.run_streamed(agent, [message], run_config=config).stream_events():
        yield getattr(getattr(event, "data", None), "delta", "")


async def langgraph_alone() -> Texts:
    graph = with_langgraph.graph.compile()
    async for message, _ in graph.astream({"messages": [("user", TEXT)]}, stream_mode="messages"):
        yield str(message.text)


async def llamaindex_alone() -> Texts:
    handler = FunctionAgent(name="clerk", llm=with_llamaindex.StandIn(), tools=[with_llamaindex.book]).run(TEXT)
    async for event in handler.stream_events():
        if isinstance(event, AgentStream):
            yield event.delta
    await handler


ALONE: dict[str, Callable[[], Texts]] = {
    "strands": strands_alone,
    "agent-framework": agent_framework_alone,
    "adk": adk_alone,
    "pydantic-ai": pydantic_ai_alone,
    "openai-agents": openai_agents_alone,
    "langgraph": langgraph_alone,
    "llamaindex": llamaindex_alone,
}
