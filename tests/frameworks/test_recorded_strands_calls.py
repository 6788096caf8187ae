"""Recorded results of a strands agent's model and tool calls. Later runs of the turn repeat no call."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from a2a.types import Part
from celery import Celery
from pydantic import BaseModel
from strands import Agent, ModelRetryStrategy, ToolContext, tool
from strands.hooks import AfterInvocationEvent, AfterToolCallEvent
from strands.tools.executors import SequentialToolExecutor
from strands.types.content import Messages
from strands.types.exceptions import ModelThrottledException
from strands.types.streaming import StreamEvent

from a2a_celery import A2A, Turn, current_step_key
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.frameworks.strands import strands_agent
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from tests.execution.attempts import Task, WorkerDies
from tests.execution.scene import TurnByTurn
from workers import with_strands


class Place(BaseModel):
    """Pydantic model for the output of an agent."""

    at: str


class Script:
    """Agent whose model requests one round of tool calls in each response, and then returns the results.

    Attributes:
        calls: Model requests (by number) and tool calls of all attempts.
        dies_at: Number of the model request at which the worker dies.
        throttled: Number of the model request that the model throttles once.
        stateful: Whether the provider of the model stores the conversation.
    """

    def __init__(self, *rounds: Sequence[str], durable: bool = True, **options: Any) -> None:
        self.rounds = rounds
        self.durable = durable
        self.options = options
        self.calls: list[str] = []
        self.keys: set[str] = set()
        self.dies_at: int | None = None
        self.throttled: int | None = None
        self.stateful = False
        self.structured_output: Any = None
        self.hooks: list[Any] = [self.remember_output]

    def remember_output(self, event: AfterInvocationEvent) -> None:
        self.structured_output = event.result and event.result.structured_output

    async def run(self, turn: Turn) -> str:
        chunks = strands_agent(self.make, durable=self.durable)(turn)
        return "".join([chunk async for chunk in chunks if isinstance(chunk, str)])

    def make(self, turn: Turn) -> Agent:
        tools: list[Callable[..., Any]] = [self.look, self.look_in_thread, self.fail, self.draw, self.call_directly]
        tools = [*map(tool, tools), tool(context=True)(self.remember), tool(self.ask_with(turn))]
        retry = ModelRetryStrategy(initial_delay=0)
        options = {"callback_handler": None, "retry_strategy": retry, **self.options}
        self.agent = Agent(model=Model(self), tools=[*tools], **options)
        for hook in self.hooks:
            self.agent.add_hook(hook)
        return self.agent

    async def look(self, at: str) -> str:
        """Look at something."""
        self.calls.append(at)
        if self.durable:
            self.keys.add(current_step_key())
        return f"seen {at}"

    def look_in_thread(self, at: str) -> str:
        """Look at something, in a thread."""
        self.calls.append(at)
        self.keys.add(current_step_key())
        return f"seen {at}"

    async def fail(self, at: str) -> str:
        """Fail."""
        self.calls.append(at)
        raise KeyError(at)

    async def draw(self, at: str) -> dict[str, Any]:
        """Return an image."""
        self.calls.append(at)
        return {"status": "success", "content": [{"image": {"format": "png", "source": {"bytes": at.encode()}}}]}

    def call_directly(self, at: str) -> str:
        """Call a different tool on an event loop of the framework."""
        self.calls.append(f"direct {at}")
        self.keys.add(current_step_key())
        result = self.agent.tool.look_in_thread(at=at, record_direct_tool_call=False)
        return str(result["content"][0]["text"])

    async def remember(self, at: str, tool_context: ToolContext) -> str:
        """Change the state of the agent."""
        self.calls.append(at)
        state = tool_context.agent.state
        state.set("seen", [*(state.get("seen") or []), at])
        return ", ".join(state.get("seen"))

    def ask_with(self, turn: Turn) -> Callable[[str], Awaitable[str]]:
        async def ask(at: str) -> str:
            """Ask the client."""
            self.calls.append(at)
            return f"{at}: {await turn.ask(at)}"

        return ask


class Model(with_strands.StandIn):
    """Model that follows the rounds of a `Script`."""

    def __init__(self, script: Script) -> None:
        self._script = script

    @property
    def stateful(self) -> bool:
        return self._script.stateful

    async def stream(self, messages: Messages, *args: Any, **kwargs: Any) -> AsyncIterator[StreamEvent]:
        script, number = self._script, sum(message["role"] == "assistant" for message in messages)
        script.calls.append(f"question {number}")
        if number == script.dies_at:
            raise WorkerDies
        if number == script.throttled:
            script.throttled = None
            raise ModelThrottledException("too many questions")
        yield {"messageStart": {"role": "assistant"}}
        if number == len(script.rounds):
            results = [
                block["toolResult"]
                for request_message in messages
                for block in request_message["content"]
                if "toolResult" in block
            ]
            texts = [json.dumps(result["content"], default=bytes.decode) for result in results]
            yield {"contentBlockStart": {"start": {}}}
            for text in ("results: ", "; ".join(texts)):
                yield {"contentBlockDelta": {"delta": {"text": text}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}
            return
        for n, call in enumerate(script.rounds[number]):
            name, at = call.split(" ", 1)
            start: Any = {"toolUse": {"toolUseId": f"call-{number}-{n}", "name": name}}
            yield {"contentBlockStart": {"start": start}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps({"at": at})}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use"}}


def results(*texts: str) -> str:
    """Return the model's answer after the tools have returned `texts`."""
    return f"results: {'; '.join(json.dumps([{'text': text}]) for text in texts)}"


EXECUTORS = pytest.mark.parametrize(
    "options", [{}, {"tool_executor": SequentialToolExecutor()}], ids=["concurrent", "sequential"]
)


@EXECUTORS
async def test_each_call_is_made_once_wherever_the_worker_dies(task: Task, options: dict[str, Any]) -> None:
    script = Script(["look a"], ["look_in_thread b", "look c", "look c"], **options)
    expected = ["question 0", "a", "question 1", "b", "c", "c", "question 2"]
    for script.dies_at in range(3):
        assert await task.attempt(script.run) is None
    script.dies_at = None

    text = results("seen a", "seen b", "seen c", "seen c")
    assert await task.attempt(script.run) == text
    assert await task.attempt(script.run) == text, "the recorded answer"
    repeated_requests = [f"question {number}" for number in range(3)]  # the model requests at which the worker died
    assert sorted(script.calls) == sorted(expected + repeated_requests)
    assert len(script.keys) == 4


async def test_a_failed_tool_and_its_retry_are_recorded(task: Task) -> None:
    script = Script(["fail a"], ["look b"])
    failures: list[Exception] = []

    def retry_once(event: AfterToolCallEvent[Agent]) -> None:
        if event.exception is not None:
            failures.append(event.exception)
            event.retry = len(failures) % 2 == 1

    script.hooks = [retry_once]
    script.dies_at = 2
    await task.attempt(script.run)
    script.dies_at = None

    assert await task.attempt(script.run) == results("Error: KeyError - 'a'", "seen b")
    assert script.calls == ["question 0", "a", "a", "question 1", "b", "question 2", "question 2"]
    assert [(type(error), error.args) for error in failures] == [(KeyError, ("a",))] * 4, "hooks receive the exception"


async def test_a_question_that_the_model_refused_once_is_recorded(task: Task) -> None:
    script = Script(["look a"], ["look b"])
    script.throttled, script.dies_at = 1, 2
    await task.attempt(script.run)
    script.dies_at = None

    assert await task.attempt(script.run) == results("seen a", "seen b")
    assert script.calls == ["question 0", "a", "question 1", "question 1", "b", "question 2", "question 2"]


@EXECUTORS
async def test_a_tool_that_changes_the_state_is_called_again(task: Task, options: dict[str, Any]) -> None:
    script = Script(["remember a"], ["remember b"], **options)
    script.dies_at = 2
    await task.attempt(script.run)
    script.dies_at = None

    assert await task.attempt(script.run) == results("a", "a, b")
    assert [call for call in script.calls if call in "ab"] == ["a", "b", "a", "b"]
    assert script.calls.count("question 0") == script.calls.count("question 1") == 1


async def test_a_result_with_bytes_is_recorded(task: Task) -> None:
    script = Script(["draw x"])
    script.dies_at = 1
    await task.attempt(script.run)
    script.dies_at = None

    assert '"bytes": "x"' in (await task.attempt(script.run) or "")
    assert script.calls == ["question 0", "x", "question 1", "question 1"]


async def test_a_tool_that_another_tool_calls_is_a_part_of_its_call(task: Task) -> None:
    script = Script(["call_directly a"])
    script.dies_at = 1
    await task.attempt(script.run)
    script.dies_at = None

    assert await task.attempt(script.run) == results("seen a")
    assert script.calls == ["question 0", "direct a", "a", "question 1", "question 1"]
    assert len(script.keys) == 1


async def test_a_stateful_model_is_asked_again(task: Task) -> None:
    script = Script(["look a"])
    script.stateful, script.dies_at = True, 1
    await task.attempt(script.run)
    script.dies_at = None

    assert await task.attempt(script.run) == results("seen a")
    assert script.calls == ["question 0", "a", "question 1", "question 0", "question 1"]


async def test_a_structured_output_reaches_the_agent_in_each_attempt(task: Task) -> None:
    script = Script(["Place a"], structured_output_model=Place)
    for _ in range(2):
        await task.attempt(script.run)
        assert script.structured_output == Place(at="a")
    assert script.calls == ["question 0"]


async def test_without_durable_each_attempt_makes_each_call(task: Task) -> None:
    script = Script(["look a"], durable=False)
    script.dies_at = 1
    await task.attempt(script.run)
    script.dies_at = None

    assert await task.attempt(script.run) == results("seen a")
    assert script.calls == ["question 0", "a", "question 1"] * 2


async def test_questions_of_tools_receive_their_own_answers(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    script = Script(["look a"], ["ask One?"], ["ask Two?"])
    a2a = A2A(Celery("test", broker="memory://", set_as_current=False))
    a2a.agent("asks", description="Asks twice.", session=True)(strands_agent(script.make))
    async with TurnByTurn(a2a, store, keys, redis_server.store_url) as turns:
        assert await turns.begin("asks") == (INPUT_REQUIRED, "One?")
        await turns.say("asks", 2, Part(text="1"))
        state, _ = await turns.say("asks", 3, Part(text="2"))

    assert state == COMPLETED
    assert script.calls.count("a") == 1
    assert [call for call in script.calls if call.startswith("question")] == [f"question {n}" for n in range(4)]
    assert [call for call in script.calls if call.endswith("?")] == ["One?", "One?", "Two?", "One?", "Two?"]
