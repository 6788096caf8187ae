"""Questions to the client that the tools of framework agents ask with `Turn.ask`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import agent_framework
import agents
import pydantic_ai
import pytest
import strands
from celery import Celery
from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner
from llama_index.core.agent.workflow import FunctionAgent
from pydantic_ai.capabilities import AbstractCapability
from strands.types.content import Messages
from strands.types.streaming import StreamEvent

from a2a_celery import A2A, Turn
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.frameworks.agent_framework import framework_agent
from a2a_celery.frameworks.llamaindex import llamaindex_agent
from a2a_celery.frameworks.openai_agents import openai_agent
from a2a_celery.frameworks.pydantic_ai import pydantic_ai_agent
from a2a_celery.frameworks.strands import strands_agent
from a2a_celery.lifecycle.states import INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from tests.execution.scene import TurnByTurn
from tests.support.agents.basic import card
from workers import (
    with_adk,
    with_agent_framework,
    with_llamaindex,
    with_openai_agents,
    with_pydantic_ai,
    with_strands,
)

a2a = A2A(Celery("test", broker="memory://", set_as_current=False))

Tool = Callable[[str], Awaitable[str] | str]


def async_tool(turn: Turn) -> Tool:
    async def book(what: str) -> str:
        """Book something."""
        return f"{what} on {await turn.ask('On which day?')}"

    return book


def blocking_tool(turn: Turn) -> Tool:
    def book(what: str) -> str:
        """Book something."""
        return f"{what} on {turn.blocking.ask('On which day?')}"

    return book


class StrictStandIn(with_strands.StandIn):
    """Model that rejects a message without content, as most providers do."""

    async def stream(self, messages: Messages, *args: Any, **kwargs: Any) -> AsyncIterator[StreamEvent]:
        assert messages[-1]["content"], "strands sends no result of the tool that asked"
        async for event in super().stream(messages, *args, **kwargs):
            yield event


def made_with_strands(turn: Turn, tool: Callable[[Turn], Tool] = async_tool) -> strands.Agent:
    return strands.Agent(model=StrictStandIn(), tools=[strands.tool(tool(turn))], callback_handler=None)


def made_with_agent_framework(turn: Turn, tool: Callable[[Turn], Tool] = async_tool) -> agent_framework.Agent[Any]:
    tools = [agent_framework.tool(tool(turn))]
    return agent_framework.Agent(with_agent_framework.StandIn(), name="clerk", tools=tools)


async def book_async(context: pydantic_ai.RunContext[Turn], what: str) -> str:
    return f"{what} on {await context.deps.ask('On which day?')}"


def book_in_thread(context: pydantic_ai.RunContext[Turn], what: str) -> str:
    return f"{what} on {context.deps.blocking.ask('On which day?')}"


def made_with_pydantic_ai(tool: Any, *capabilities: AbstractCapability[Turn]) -> Any:
    tools = [pydantic_ai.Tool(tool, name="book")]
    agent = pydantic_ai.Agent(with_pydantic_ai.agent.model, deps_type=Turn, tools=tools, capabilities=capabilities)
    return pydantic_ai_agent(agent, deps=lambda turn: turn)


class ExceptionSwallower(AbstractCapability[Turn]):
    """Capability that returns a tool's exception as the tool's result."""

    async def wrap_tool_execute(self, ctx: Any, *, args: Any, handler: Any, **_: Any) -> Any:
        try:
            return await handler(args)
        except BaseException as error:
            return repr(error)


def made_with_openai_agents(tool: Any) -> Any:
    agent = agents.Agent(name="clerk", model=with_openai_agents.StandIn(), tools=[tool])
    return openai_agent(agent, context=lambda turn: turn)


@agents.function_tool(name_override="book")
async def book_for_openai(context: agents.RunContextWrapper[Turn], what: str) -> str:
    return f"{what} on {await context.context.ask('On which day?')}"


@agents.function_tool(name_override="book")
def book_for_openai_in_thread(context: agents.RunContextWrapper[Turn], what: str) -> str:
    return f"{what} on {context.context.blocking.ask('On which day?')}"


@agents.function_tool(name_override="book")
async def book_and_swallow(context: agents.RunContextWrapper[Turn], what: str) -> str:
    try:
        return f"{what} on {await context.context.ask('On which day?')}"
    except BaseException as error:
        return repr(error)


def made_with_llamaindex(turn: Turn, tool: Callable[[Turn], Tool] = async_tool) -> FunctionAgent:
    return FunctionAgent(llm=with_llamaindex.StandIn(), tools=[tool(turn)])


async def run_adk(turn: Turn, tool: Callable[[Turn], Tool]) -> str:
    agent = LlmAgent(name="clerk", model=with_adk.StandIn(model="stand-in"), tools=[tool(turn)])
    *_, last = await InMemoryRunner(agent).run_debug(turn.text, quiet=True)
    assert last.content is not None
    return "".join(part.text or "" for part in last.content.parts or [])


@a2a.agent("strands-alone", description="Books, without the package's own adapter.")
async def strands_alone(turn: Turn) -> str:
    return str(await made_with_strands(turn).invoke_async(turn.text)).strip()


@a2a.agent("strands-in-a-thread", description="Books.")
def strands_in_a_thread(turn: Turn) -> str:
    return str(made_with_strands(turn, blocking_tool)(turn.text)).strip()


@a2a.agent("agent-framework-alone", description="Books, without the package's own adapter.")
async def agent_framework_alone(turn: Turn) -> str:
    return (await made_with_agent_framework(turn).run(turn.text)).text.strip()


@a2a.agent("agent-framework-in-a-thread", description="Books.")
def agent_framework_in_a_thread(turn: Turn) -> str:
    async def run() -> str:
        return (await made_with_agent_framework(turn, blocking_tool).run(turn.text)).text.strip()

    return asyncio.run(run())


@a2a.agent("adk-alone", description="Books, without ADK's own A2A executor.")
async def adk_alone(turn: Turn) -> str:
    return await run_adk(turn, async_tool)


@a2a.agent("adk-in-a-thread", description="Books.")
def adk_in_a_thread(turn: Turn) -> str:
    return asyncio.run(run_adk(turn, blocking_tool))


a2a.agent("strands", description="Books.", session=True)(strands_agent(made_with_strands))
a2a.agent("agent-framework", description="Books.", session=True)(framework_agent(made_with_agent_framework))
a2a.agent("llamaindex", description="Books.", session=True)(llamaindex_agent(made_with_llamaindex))
a2a.agent("llamaindex-in-a-thread", description="Books.", session=True)(
    llamaindex_agent(lambda turn: made_with_llamaindex(turn, blocking_tool))
)
a2a.add_agent(card("pydantic-ai"), made_with_pydantic_ai(book_async))
a2a.add_agent(card("pydantic-ai-in-a-thread"), made_with_pydantic_ai(book_in_thread))
a2a.add_agent(card("pydantic-ai-swallows"), made_with_pydantic_ai(book_async, ExceptionSwallower()))
a2a.add_agent(card("openai-agents"), made_with_openai_agents(book_for_openai))
a2a.add_agent(card("openai-agents-in-a-thread"), made_with_openai_agents(book_for_openai_in_thread))
a2a.add_agent(card("openai-agents-swallows"), made_with_openai_agents(book_and_swallow))

ASKING = [
    "strands",
    "strands-alone",
    "strands-in-a-thread",
    "agent-framework",
    "agent-framework-alone",
    "agent-framework-in-a-thread",
    "adk-alone",
    "adk-in-a-thread",
    "pydantic-ai",
    "pydantic-ai-in-a-thread",
    "pydantic-ai-swallows",
    "openai-agents",
    "openai-agents-in-a-thread",
    "openai-agents-swallows",
    "llamaindex",
    "llamaindex-in-a-thread",
]


@pytest.fixture
async def turns(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[TurnByTurn]:
    async with TurnByTurn(a2a, store, keys, redis_server.store_url) as turns:
        yield turns


@pytest.mark.parametrize("agent", ASKING)
async def test_a_question_of_a_tool_is_answered(turns: TurnByTurn, agent: str) -> None:
    assert await turns.begin(agent, "book a table") == (INPUT_REQUIRED, "On which day?")

    assert [" ".join(text.split()) for text in await turns.answer(agent, "Monday")] == ["Done: a table on Monday."]
