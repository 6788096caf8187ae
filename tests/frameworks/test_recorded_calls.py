"""Recorded results of model and tool calls. Later runs of the turn receive the results, and repeat no call."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from a2a.types import Part
from agent_framework import (
    Agent,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationContext,
    Message,
    ResponseStream,
    UsageDetails,
    tool,
)
from celery import Celery

from a2a_celery import A2A, Turn, current_step_key
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.frameworks.agent_framework import framework_agent
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from tests.execution.attempts import Task, WorkerDies
from tests.execution.scene import TurnByTurn
from workers import with_agent_framework


class Script:
    """Agent whose model requests one round of tool calls in each response, and then returns the results.

    Attributes:
        calls: Model requests (by number) and tool calls of all attempts.
        dies_at: Number of the model request at which the worker dies.
    """

    def __init__(self, *rounds: Sequence[str], durable: bool = True) -> None:
        self.rounds = rounds
        self.durable = durable
        self.calls: list[str] = []
        self.keys: set[str] = set()
        self.dies_at: int | None = None

    async def run(self, turn: Turn) -> str:
        chunks = framework_agent(self.make, durable=self.durable)(turn)
        return "".join([chunk async for chunk in chunks if isinstance(chunk, str)])

    def make(self, turn: Turn) -> Agent[Any]:
        tools = (self.look, self.fail, self.remember, self.grow, self.ask_with(turn))
        return Agent(Model(self), name="script", tools=[tool(function) for function in tools])

    async def look(self, at: str) -> str:
        """Look at something."""
        self.calls.append(at)
        if self.durable:
            self.keys.add(current_step_key())
        return f"seen {at}"

    async def fail(self, at: str) -> str:
        """Fail."""
        self.calls.append(at)
        raise ValueError(at)

    async def remember(self, at: str, context: FunctionInvocationContext) -> str:
        """Change the session."""
        self.calls.append(at)
        assert context.session is not None
        places = context.session.state.setdefault("seen", [])
        places.append(at)
        return ", ".join(places)

    async def grow(self, at: str) -> str:
        """Return more than can be recorded."""
        self.calls.append(at)
        return at * 2000

    def ask_with(self, turn: Turn) -> Callable[[str], Awaitable[str]]:
        async def ask(at: str) -> str:
            """Ask the client."""
            self.calls.append(at)
            return f"{at}: {await turn.ask(at)}"

        return ask


class Model(with_agent_framework.StandIn):
    """Model that follows the rounds of a `Script`."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Awaitable[ChatResponse] | ResponseStream[ChatResponseUpdate, ChatResponse]:
        return self._build_response_stream(self._updates(messages))

    async def _updates(self, messages: Sequence[Message]) -> AsyncIterator[ChatResponseUpdate]:
        script, number = self._script, sum(message.role == "assistant" for message in messages)
        script.calls.append(f"question {number}")
        contents = [item for message in messages for item in message.contents]
        results = [str(item.result) for item in contents if item.type == "function_result"]
        if number == script.dies_at:
            raise WorkerDies
        if number == len(script.rounds):
            for text in ("results: ", "; ".join(result[:40] for result in results)):
                yield ChatResponseUpdate(role="assistant", contents=[Content.from_text(text)])
            usage = Content.from_usage(UsageDetails(input_token_count=number))
            yield ChatResponseUpdate(role="assistant", contents=[usage], finish_reason="stop")
            return
        calls = [(f"call-{number}-{n}", *item.split(" ", 1)) for n, item in enumerate(script.rounds[number])]
        contents = [Content.from_function_call(i, name, arguments=json.dumps({"at": at})) for i, name, at in calls]
        yield ChatResponseUpdate(role="assistant", contents=contents, finish_reason="tool_calls")


async def test_each_call_is_made_once_wherever_the_worker_dies(task: Task) -> None:
    script = Script(["look a"], ["look b", "look c", "look c"])
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

    assert "Error" in text
    assert text.endswith("; seen b")
    assert script.calls == ["question 0", "a", "question 1", "b", "question 2", "question 2"]


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
    assert "is not recorded, and may be repeated: tool 'grow(" in caplog.text


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
    a2a.agent("asks", description="Asks twice.", session=True)(framework_agent(script.make))
    async with TurnByTurn(a2a, store, keys, redis_server.store_url) as turns:
        assert await turns.begin("asks") == (INPUT_REQUIRED, "One?")
        await turns.say("asks", 2, Part(text="1"))
        state, _ = await turns.say("asks", 3, Part(text="2"))

    assert state == COMPLETED
    assert script.calls.count("a") == 1
    assert [call for call in script.calls if call.startswith("question")] == [f"question {n}" for n in range(4)]
    assert [call for call in script.calls if call.endswith("?")] == ["One?", "One?", "Two?", "One?", "Two?"]
