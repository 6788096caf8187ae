"""Recorded results of a pydantic-ai agent's model and tool calls. Later runs of the turn repeat no call."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest
from a2a.types import Part
from celery import Celery
from pydantic_ai import Agent, BinaryContent, ModelRetry, RunContext, ToolFailed, ToolReturn
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from a2a_celery import A2A, Turn, current_step_key
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.frameworks.pydantic_ai import pydantic_ai_agent
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from tests.execution.attempts import SETTINGS, Task, WorkerDies
from tests.execution.scene import TurnByTurn
from tests.support.agents import card


@dataclass
class Place:
    """Dataclass that the tool `place` returns."""

    at: str


class Script:
    """Agent whose model requests one round of tool calls in each response, and then returns the results.

    Attributes:
        calls: Model requests (by number) and tool calls of all attempts.
        prompts: User texts that the model received in all attempts.
        dies_at: Number of the model request at which the worker dies.
    """

    def __init__(self, *rounds: Sequence[str], durable: bool = True) -> None:
        self.rounds = rounds
        self.calls: list[str] = []
        self.prompts: list[str] = []
        self.keys: set[str] = set()
        self.dies_at: int | None = None
        self.durable = durable
        tools = [self.look, self.look_in_thread, self.retry, self.fail, self.grow, self.place, self.draw]
        self.agent = Agent(FunctionModel(stream_function=self.respond), deps_type=Turn, tools=tools, retries=5)
        for with_context in (self.remember, self.enqueue, self.ask):
            self.agent.tool(with_context)
        self.function = pydantic_ai_agent(self.agent, deps=lambda turn: turn, durable=durable)

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

    async def retry(self, at: str) -> str:
        self.calls.append(at)
        raise ModelRetry(f"not {at}")

    async def fail(self, at: str) -> str:
        self.calls.append(at)
        raise ToolFailed(f"never {at}")

    async def grow(self, at: str) -> str:
        """Return more than can be recorded."""
        self.calls.append(at)
        return at * 2000

    async def place(self, at: str) -> Place:
        self.calls.append(at)
        return Place(at)

    async def draw(self, at: str) -> ToolReturn[Any]:
        self.calls.append(at)
        image = BinaryContent(at.encode(), media_type="image/png")
        return ToolReturn(return_value=f"drawn {at}", content=["look:", image])

    async def remember(self, context: RunContext[Turn], at: str) -> str:
        """Change the session."""
        self.calls.append(at)
        places = context.deps.session.state.setdefault("seen", [])
        places.append(at)
        return ", ".join(places)

    async def enqueue(self, context: RunContext[Turn], at: str) -> str:
        """Add a message."""
        self.calls.append(at)
        context.enqueue(f"news of {at}")
        return "done"

    async def ask(self, context: RunContext[Turn], at: str) -> str:
        """Ask the client."""
        self.calls.append(at)
        return f"{at}: {await context.deps.ask(at)}"

    async def respond(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        self.calls.append(f"question {number}")
        if number == self.dies_at:
            raise WorkerDies
        parts = [part for message in messages for part in message.parts]
        self.prompts = [str(part.content) for part in parts if isinstance(part, UserPromptPart)]
        if number < len(self.rounds):
            for index, call in enumerate(self.rounds[number]):
                name, at = call.split(" ", 1)
                yield {index: DeltaToolCall(name, json.dumps({"at": at}), tool_call_id=f"call-{number}-{index}")}
            return
        results = [part.model_response_str() for part in parts if isinstance(part, ToolReturnPart)]
        for text in ("results: ", "; ".join(result[:40] for result in results)):
            yield text


async def test_each_call_is_made_once_wherever_the_worker_dies(task: Task) -> None:
    task.settings = replace(SETTINGS, step_max_bytes=1500, task_max_bytes=10_000)
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


async def test_a_prompt_that_contains_the_time_asks_no_question_again(task: Task) -> None:
    script, times = Script(["look a"]), count()
    script.agent.instructions(lambda: f"time {next(times)}")
    script.agent.system_prompt(lambda: f"time {next(times)}")
    script.dies_at = 1
    await task.attempt(script.run)
    script.dies_at = None

    assert await task.attempt(script.run) == "results: seen a"
    assert script.calls == ["question 0", "a", "question 1", "question 1"]


@pytest.mark.parametrize("tool", ["retry", "fail"])
async def test_a_failure_that_the_model_has_received_is_recorded(task: Task, tool: str) -> None:
    script = Script([f"{tool} a"], ["look b"])
    script.dies_at = 2
    await task.attempt(script.run)
    script.dies_at = None

    text = await task.attempt(script.run)

    assert {"retry": "not a", "fail": "never a"}[tool] in text
    assert text.endswith("; seen b")
    assert script.calls == ["question 0", "a", "question 1", "b", "question 2", "question 2"]


@pytest.mark.parametrize(("tool", "result"), [("place", '{"at":"x"}'), ("draw", "drawn x")])
async def test_a_result_that_is_more_than_text_is_recorded(task: Task, tool: str, result: str) -> None:
    script = Script([f"{tool} x"])
    script.dies_at = 1
    await task.attempt(script.run)
    script.dies_at = None

    assert await task.attempt(script.run) == f"results: {result}"
    assert script.calls == ["question 0", "x", "question 1", "question 1"]
    assert ("image/png" in str(script.prompts)) is (tool == "draw")


async def test_a_tool_that_changes_the_session_is_called_again(task: Task) -> None:
    script = Script(["remember a"], ["remember b"])
    script.dies_at = 2
    await task.attempt(script.run)
    script.dies_at = None

    assert await task.attempt(script.run) == "results: a; a, b"
    assert [call for call in script.calls if call in "ab"] == ["a", "b", "a", "b"]
    assert script.calls.count("question 0") == script.calls.count("question 1") == 1


async def test_a_tool_that_adds_a_message_is_called_again(task: Task) -> None:
    script = Script(["enqueue a"])
    script.dies_at = 1
    await task.attempt(script.run)
    script.dies_at = None

    assert await task.attempt(script.run) == "results: done"
    assert script.calls == ["question 0", "a", "question 1", "a", "question 1"]
    assert "news of a" in str(script.prompts)


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
