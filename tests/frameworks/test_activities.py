"""Execution activities that are recorded for the model and tool calls of framework agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.types import Message, Part, Role, SendMessageRequest
from google.protobuf.json_format import MessageToDict, ParseDict

from a2a_celery import InputRequired, Turn
from a2a_celery.execution.events.activities import CURRENT_EXECUTION, Execution
from a2a_celery.features.sessions.session import CURRENT, ContextSession
from a2a_celery.frameworks.conversation import OpenActivities
from a2a_celery.lifecycle.execution import ExecutionState
from tests.support.agents.booking_agents import BOOKING_AGENTS, BookingAgent, turn
from workers import with_adk, with_agent_framework, with_openai_agents, with_pydantic_ai, with_strands

AGENTS: dict[str, Any] = {
    "strands": with_strands.clerk,
    "agent-framework": with_agent_framework.clerk,
    "pydantic-ai": with_pydantic_ai.clerk,
    "openai-agents": with_openai_agents.clerk,
}


class Scene:
    """Execution and session of the current run."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.begin()

    def begin(self) -> None:
        """Begin the next run of the context."""
        self.execution = Execution()
        self.execution.transition(ExecutionState.INITIALIZING)
        CURRENT_EXECUTION.set(self.execution)
        self.session = cast(ContextSession, SimpleNamespace(state=self.state))
        CURRENT.set(self.session)

    @property
    def activities(self) -> list[str]:
        """Model and tool calls of the agent in this run."""
        return [
            f"{transition.after} {transition.detail.get('tool', '')}".strip()
            for transition in self.execution.history[1:]
        ]

    async def say(self, agent: str, part: Part) -> dict[str, Any]:
        """Send a message and return the data part of the question, or {} without a question."""
        message = Message(message_id="m", role=Role.ROLE_USER, parts=[part])
        if agent == "adk":
            return await self._ask_executor(message)
        return await self._ask_function(AGENTS[agent], turn(self.state, part))

    async def _ask_function(self, answer: Callable[[Turn], AsyncGenerator[str, None]], turn: Turn) -> dict[str, Any]:
        try:
            async for _ in answer(turn):
                pass
        except InputRequired as question:
            return MessageToDict(question.parts[-1])
        return {}

    async def _ask_executor(self, message: Message) -> dict[str, Any]:
        events: asyncio.Queue[Any] = asyncio.Queue()
        context = RequestContext(
            ServerCallContext(), request=SendMessageRequest(message=message), task_id="t", context_id="c"
        )
        await with_adk.executor().execute(context, cast(EventQueue, SimpleNamespace(enqueue_event=events.put)))
        message = [events.get_nowait() for _ in range(events.qsize())][-1].status.message
        return MessageToDict(message.parts[0]) if message.parts else {}


IN_THE_SESSION = [agent for agent in BOOKING_AGENTS if agent.name not in ("langgraph", "llamaindex")]
"""Agents whose question is in the session, not in the journal of a task."""


@pytest.mark.parametrize("agent", IN_THE_SESSION, ids=lambda agent: agent.name)
async def test_each_call_of_a_model_and_a_tool_is_an_activity(agent: BookingAgent) -> None:
    scene = Scene()
    question = await scene.say(agent.name, Part(text="book a table"))
    assert scene.activities[0] == "MODEL_CALL"
    assert set(scene.activities[1:]) <= {"TOOL_EXECUTION book"}  # some agents ask in the tool, others before it

    scene.begin()
    assert await scene.say(agent.name, ParseDict(agent.answer(question, True), Part())) == {}
    assert scene.activities == ["TOOL_EXECUTION book", "MODEL_CALL"]


async def test_a_call_that_never_ended_is_forgotten_with_its_run() -> None:
    scene, activities = Scene(), OpenActivities()
    activities.tool_call("a", "hung")
    scene.execution.transition(ExecutionState.CANCELLED)
    scene.begin()

    activities.model_call("b")
    activities.end("a")
    activities.end("b")

    assert scene.activities == ["MODEL_CALL"]
    assert len(activities) == 0


async def test_nothing_happens_outside_of_a_run() -> None:
    activities = OpenActivities()

    activities.model_call("a", "m")
    activities.end("a")
