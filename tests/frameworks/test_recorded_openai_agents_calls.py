"""Recorded results of calls by agents that use the OpenAI Agents SDK. Later runs of the turn repeat no call."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from a2a.types import Part
from agents import Agent, RunContextWrapper, Tool, function_tool, handoff
from agents.items import TResponseStreamEvent
from agents.testing import assistant_message, function_call
from celery import Celery

from a2a_celery import A2A, Turn, current_step_key
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.frameworks.openai_agents import openai_agent
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from tests.execution.attempts import Task, WorkerDies
from tests.execution.scene import TurnByTurn
from tests.support.agents import card
from workers import with_openai_agents


@dataclass
class Place:
    """Dataclass that the tool `place` returns."""

    at: str


class Script:
    """Agent whose model requests one round of tool calls in each response, and then returns the results.

    Attributes:
        calls: Model requests (by number) and tool calls of all attempts.
        dies_at: Number of the model request at which the worker dies.
    """

    def __init__(self, *rounds: Sequence[str], durable: bool = True, hands_over: bool = False) -> None:
        self.rounds = rounds
        self.calls: list[str] = []
        self.keys: set[str] = set()
        self.places: list[Any] = []
        self.dies_at: int | None = None
        self.durable = durable
        methods = [self.look, self.look_in_thread, self.fail, self.grow, self.place, self.nothing, self.read]
        tools: list[Tool] = [*map(function_tool, methods), function_tool(self.remember), function_tool(self.ask)]
        agent: Agent[Turn] = Agent(name="script", model=ScriptModel(self), tools=tools)
        if hands_over:
            clerk: Agent[Turn] = Agent(name="clerk", model=ScriptModel(self), handoffs=[handoff(agent)])
            agent.handoffs = [clerk]
            agent = clerk
        self.function = openai_agent(agent, context=lambda turn: turn, durable=durable)

    async def run(self, turn: Turn) -> str:
        return "".join([chunk async for chunk in self.function(turn) if isinstance(chunk, str)])

    async def look(self, at: str) -> str:
        self.calls.append(at)
        if self.durable:
            self.keys.add(current_step_key())
        return f"seen {at}"

    def look_in_thread(self, at: str) -> str:
        self.calls.append(at)
        self.keys.add(current_step_key())
        return f"seen {at}"

    async def fail(self, at: str) -> str:
        self.calls.append(at)
        raise ValueError(at)

    async def grow(self, at: str) -> str:
        """Return more than can be recorded."""
        self.calls.append(at)
        return at * 2000

    async def place(self, at: str) -> Place:
        self.calls.append(at)
        return Place(at)

    async def nothing(self, at: str) -> None:
        self.calls.append(at)

    async def read(self, at: str) -> bytes:
        self.calls.append(at)
        return at.encode()

    async def remember(self, context: RunContextWrapper[Turn], at: str) -> str:
        """Change the session."""
        self.calls.append(at)
        places = context.context.session.state.setdefault("seen", [])
        places.append(at)
        return ", ".join(places)

    async def ask(self, context: RunContextWrapper[Turn], at: str) -> str:
        """Ask the client."""
        self.calls.append(at)
        return f"{at}: {await context.context.ask(at)}"


class ScriptModel(with_openai_agents.StandIn):
    """Model that follows the rounds of a `Script`."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def stream_response(
        self, system_instructions: str | None, input: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[TResponseStreamEvent]:
        script = self._script
        rounds = {item["call_id"].split("-")[1] for item in input if item.get("type") == "function_call"}
        number = len(rounds)
        script.calls.append(f"question {number}")
        if number == script.dies_at:
            raise WorkerDies
        if number < len(script.rounds):
            calls = [(f"call-{number}-{n}", *call.split(" ", 1)) for n, call in enumerate(script.rounds[number])]
            arguments = [{} if name.startswith("transfer") else {"at": at} for _, name, at in calls]
            output = [
                function_call(call[1], call_arguments, call_id=call[0])
                for call, call_arguments in zip(calls, arguments, strict=True)
            ]
            yield with_openai_agents.completed(*output)
            return
        results = "; ".join(str(item["output"])[:40] for item in input if item.get("type") == "function_call_output")
        for text in ("results: ", results):
            yield with_openai_agents.text_delta(text)
        yield with_openai_agents.completed(assistant_message(f"results: {results}"))


async def test_each_call_is_made_once_wherever_the_worker_dies(task: Task) -> None:
    script = Script(["look a"], ["look_in_thread b", "look c", "look c"])
    expected = ["question 0", "a", "question 1", "b", "c", "c", "question 2"]
    for script.dies_at in range(3):
        assert await task.attempt(script.run) is None
    script.dies_at = None

    text = "results: seen a; seen b; seen c; seen c"
    assert await task.attempt(script.run) == text
    assert await task.attempt(script.run) == text, "the recorded answer"
    repeated_requests = [f"question {number}" for number in range(3)]  # the model requests at which the worker died
    assert sorted(script.calls) == sorted(expected + repeated_requests)
    assert len(script.keys) == 4


async def test_a_failure_that_the_model_has_received_is_recorded(task: Task) -> None:
    script = Script(["fail a"], ["look b"])
    script.dies_at = 2
    await task.attempt(script.run)
    script.dies_at = None

    text = await task.attempt(script.run)

    assert "error" in text
    assert text.endswith("; seen b")
    assert script.calls == ["question 0", "a", "question 1", "b", "question 2", "question 2"]


@pytest.mark.parametrize(("tool", "result"), [("place", "Place(at='x')"), ("nothing", "None"), ("read", "b'x'")])
async def test_a_result_that_is_no_text_is_recorded(task: Task, tool: str, result: str) -> None:
    script = Script([f"{tool} x"])
    script.dies_at = 1
    await task.attempt(script.run)
    script.dies_at = None

    assert result in (await task.attempt(script.run))
    assert script.calls == ["question 0", "x", "question 1", "question 1"]


async def test_the_calls_of_an_agent_that_took_over_are_recorded(task: Task) -> None:
    script = Script(["transfer_to_script x"], ["look a"], hands_over=True)
    script.dies_at = 2
    await task.attempt(script.run)
    script.dies_at = None

    assert (await task.attempt(script.run)).endswith("; seen a")
    assert script.calls == ["question 0", "question 1", "a", "question 2", "question 2"]


async def test_a_tool_that_changes_the_session_is_called_again(task: Task) -> None:
    script = Script(["remember a"], ["remember b"])
    script.dies_at = 2
    await task.attempt(script.run)
    script.dies_at = None

    assert await task.attempt(script.run) == "results: a; a, b"
    assert [call for call in script.calls if call in "ab"] == ["a", "b", "a", "b"]
    assert script.calls.count("question 0") == script.calls.count("question 1") == 1


async def test_a_result_that_is_too_large_fails_no_run(task: Task, caplog: pytest.LogCaptureFixture) -> None:
    script = Script(["grow x"])
    script.dies_at = 1
    with caplog.at_level(logging.WARNING, "a2a_celery"):
        await task.attempt(script.run)
    script.dies_at = None

    assert await task.attempt(script.run) == f"results: {'x' * 40}"
    assert script.calls == ["question 0", "x", "question 1", "x", "question 1"]
    assert "is not recorded, and may be repeated: tool 'grow" in caplog.text


async def test_without_durable_each_attempt_makes_each_call(task: Task) -> None:
    script = Script(["look a"], durable=False)
    script.dies_at = 1
    await task.attempt(script.run)
    script.dies_at = None

    assert await task.attempt(script.run) == "results: seen a"
    assert script.calls == ["question 0", "a", "question 1"] * 2


async def test_questions_of_tools_receive_their_own_answers(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    script = Script(["look a"], ["ask One?"], ["ask Two?"])
    a2a = A2A(Celery("test", broker="memory://", set_as_current=False))
    a2a.add_agent(card("asks"), script.function)
    async with TurnByTurn(a2a, store, keys, redis_server.store_url) as turns:
        assert await turns.begin("asks") == (INPUT_REQUIRED, "One?")
        await turns.say("asks", 2, Part(text="1"))
        state, _ = await turns.say("asks", 3, Part(text="2"))

    assert state == COMPLETED
    assert script.calls.count("a") == 1
    assert [call for call in script.calls if call.startswith("question")] == [f"question {n}" for n in range(4)]
    assert [call for call in script.calls if call.endswith("?")] == ["One?", "One?", "Two?", "One?", "Two?"]
