"""A question that a framework's tool asks with `Turn.ask` reaches the client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import agent_framework
import pytest
import strands
from celery import Celery

from a2a_celery import A2A, Turn
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.frameworks.agent_framework import framework_agent
from a2a_celery.frameworks.strands import strands_agent
from a2a_celery.lifecycle.states import INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from tests.execution.scene import TurnByTurn
from workers import with_agent_framework, with_strands

a2a = A2A(Celery("test", broker="memory://", set_as_current=False))


def booking_tool(turn: Turn) -> Callable[[str], Awaitable[str]]:
    async def book(what: str) -> str:
        """Book something."""
        return f"{what} on {await turn.ask('On which day?')}"

    return book


def made_with_strands(turn: Turn) -> strands.Agent:
    tool = strands.tool(booking_tool(turn))
    return strands.Agent(model=with_strands.StandIn(), tools=[tool], callback_handler=None)


def made_with_agent_framework(turn: Turn) -> agent_framework.Agent[Any]:
    tool = agent_framework.tool(booking_tool(turn))
    return agent_framework.Agent(with_agent_framework.StandIn(), name="clerk", tools=[tool])


@a2a.agent("strands-alone", description="Books, without the package's own adapter.")
async def strands_alone(turn: Turn) -> str:
    return str(await made_with_strands(turn).invoke_async(turn.text)).strip()


@a2a.agent("agent-framework-alone", description="Books, without the package's own adapter.")
async def agent_framework_alone(turn: Turn) -> str:
    return (await made_with_agent_framework(turn).run(turn.text)).text.strip()


a2a.agent("strands", description="Books.", session=True)(strands_agent(made_with_strands))
a2a.agent("agent-framework", description="Books.", session=True)(framework_agent(made_with_agent_framework))


@pytest.fixture
async def turns(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[TurnByTurn]:
    async with TurnByTurn(a2a, store, keys, redis_server.store_url) as turns:
        yield turns


@pytest.mark.parametrize("agent", ["strands", "strands-alone", "agent-framework", "agent-framework-alone"])
async def test_a_question_of_a_tool_is_answered(turns: TurnByTurn, agent: str) -> None:
    assert await turns.begin(agent, "book a table") == (INPUT_REQUIRED, "On which day?")

    assert [" ".join(text.split()) for text in await turns.answer(agent, "Monday")] == ["Done: a table on Monday."]
