"""Recorded results of model and tool calls. Later runs of the turn receive the results, and repeat no call."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from a2a.types import Part
from celery import Celery
from google.adk.agents.run_config import RunConfig
from strands.hooks import AfterToolCallEvent
from strands.tools.executors import SequentialToolExecutor

from a2a_celery import A2A
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.features.steps.journal import MAX_RESULT_BYTES
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from tests.execution.attempts import SETTINGS, Task
from tests.execution.scene import TurnByTurn
from tests.support.agents.basic import card

from .scripts.adk import ADKScript
from .scripts.agent_framework import AgentFrameworkScript
from .scripts.openai_agents import OpenAIAgentsScript
from .scripts.pydantic_ai import PydanticAIScript
from .scripts.script import Script
from .scripts.strands import Place, StrandsScript


def sequential(*rounds: list[str], **options: Any) -> StrandsScript:
    return StrandsScript(*rounds, tool_executor=SequentialToolExecutor(), **options)


each_framework = pytest.mark.parametrize(
    "create",
    [
        pytest.param(AgentFrameworkScript, id="agent-framework"),
        pytest.param(OpenAIAgentsScript, id="openai-agents"),
        pytest.param(PydanticAIScript, id="pydantic-ai"),
        pytest.param(StrandsScript, id="strands"),
        pytest.param(sequential, id="strands-sequential"),
    ],
)
Create = Callable[..., Script]


async def repeat(task: Task, script: Script, *, dies_at: int) -> str:
    """Lose the worker at a model request, and return the answer of the next attempt."""
    script.dies_at = dies_at
    assert await task.attempt(script.run) is None
    script.dies_at = None
    return str(await task.attempt(script.run))


class TestEachFramework:
    @each_framework
    async def test_each_call_is_made_once_wherever_the_worker_dies(self, task: Task, create: Create) -> None:
        task.settings = replace(SETTINGS, task_max_bytes=10_000)
        script = create(["look a"], ["look_in_thread b", "look c", "look c"])
        expected = ["question 0", "a", "question 1", "b", "c", "c", "question 2"]
        for script.dies_at in range(3):
            assert await task.attempt(script.run) is None
        script.dies_at = None

        text = script.results("seen a", "seen b", "seen c", "seen c")
        assert await task.attempt(script.run) == text
        assert await task.attempt(script.run) == text, "the recorded answer"
        repeated_requests = [f"question {number}" for number in range(3)]  # the model requests at which the worker died
        assert sorted(script.calls) == sorted(expected + repeated_requests)
        assert len(script.keys) == 4

    @each_framework
    async def test_a_failure_that_the_model_has_received_is_recorded(self, task: Task, create: Create) -> None:
        script = create(["fail a"], ["look b"])

        text = await repeat(task, script, dies_at=2)

        assert script.error in text
        assert text.endswith(script.results("seen b").removeprefix("results: "))
        assert script.calls == ["question 0", "a", "question 1", "b", "question 2", "question 2"]

    @each_framework
    async def test_a_tool_that_changes_the_session_is_called_again(self, task: Task, create: Create) -> None:
        script = create(["remember a"], ["remember b"])

        assert await repeat(task, script, dies_at=2) == script.results("a", "a, b")
        assert [call for call in script.calls if call in "ab"] == ["a", "b", "a", "b"]
        assert script.calls.count("question 0") == script.calls.count("question 1") == 1

    @each_framework
    async def test_a_result_that_is_too_large_fails_no_run(
        self, task: Task, create: Create, caplog: pytest.LogCaptureFixture
    ) -> None:
        script = create(["grow x"])

        with caplog.at_level(logging.WARNING, "a2a_celery"):
            assert await repeat(task, script, dies_at=1) == script.results("x" * MAX_RESULT_BYTES)

        assert script.calls == ["question 0", "x", "question 1", "x", "question 1"]
        assert "is not recorded, and may be repeated: tool 'grow" in caplog.text

    @each_framework
    async def test_without_durable_each_attempt_makes_each_call(self, task: Task, create: Create) -> None:
        script = create(["look a"], durable=False)

        assert await repeat(task, script, dies_at=1) == script.results("seen a")
        assert script.calls == ["question 0", "a", "question 1"] * 2

    @each_framework
    async def test_questions_of_tools_receive_their_own_answers(
        self, store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis, create: Create
    ) -> None:
        script = create(["look a"], ["ask One?"], ["ask Two?"])
        a2a = A2A(Celery("test", broker="memory://", set_as_current=False))
        a2a.add_agent(card("asks"), script.function, session=True)
        async with TurnByTurn(a2a, store, keys, redis_server.store_url) as turns:
            assert await turns.begin("asks") == (INPUT_REQUIRED, "One?")
            await turns.say("asks", 2, Part(text="1"))
            state, _ = await turns.say("asks", 3, Part(text="2"))

        assert state == COMPLETED
        assert script.calls.count("a") == 1
        assert [call for call in script.calls if call.startswith("question")] == [f"question {n}" for n in range(4)]
        assert [call for call in script.calls if call.endswith("?")] == ["One?", "One?", "Two?", "One?", "Two?"]


@pytest.mark.parametrize(
    ("create", "tool", "result"),
    [
        (OpenAIAgentsScript, "place", "Place(at='x')"),
        (OpenAIAgentsScript, "nothing", "None"),
        (OpenAIAgentsScript, "read", "b'x'"),
        (PydanticAIScript, "place", '{"at":"x"}'),
        (PydanticAIScript, "draw", "drawn x"),
        (StrandsScript, "draw", '"bytes": "x"'),
    ],
)
async def test_a_result_that_is_no_text_is_recorded(task: Task, create: Create, tool: str, result: str) -> None:
    script = create([f"{tool} x"])

    assert result in await repeat(task, script, dies_at=1)
    assert script.calls == ["question 0", "x", "question 1", "question 1"]
    if isinstance(script, PydanticAIScript):
        assert ("image/png" in str(script.prompts)) is (tool == "draw")


class TestOpenAIAgents:
    async def test_the_calls_of_an_agent_that_took_over_are_recorded(self, task: Task) -> None:
        script = OpenAIAgentsScript(["transfer_to_script x"], ["look a"], hands_over=True)

        assert (await repeat(task, script, dies_at=2)).endswith("; seen a")
        assert script.calls == ["question 0", "question 1", "a", "question 2", "question 2"]


class TestPydanticAI:
    async def test_a_prompt_that_contains_the_time_asks_no_question_again(self, task: Task) -> None:
        script, times = PydanticAIScript(["look a"]), count()
        script.agent.instructions(lambda: f"time {next(times)}")
        script.agent.system_prompt(lambda: f"time {next(times)}")

        assert await repeat(task, script, dies_at=1) == "results: seen a"
        assert script.calls == ["question 0", "a", "question 1", "question 1"]

    async def test_a_retry_that_the_model_has_received_is_recorded(self, task: Task) -> None:
        script = PydanticAIScript(["retry a"], ["look b"])

        assert (await repeat(task, script, dies_at=2)).endswith("; seen b")
        assert script.calls == ["question 0", "a", "question 1", "b", "question 2", "question 2"]

    async def test_a_tool_that_adds_a_message_is_called_again(self, task: Task) -> None:
        script = PydanticAIScript(["enqueue a"])

        assert await repeat(task, script, dies_at=1) == "results: done"
        assert script.calls == ["question 0", "a", "question 1", "a", "question 1"]
        assert "news of a" in str(script.prompts)


class TestStrands:
    async def test_a_failed_tool_and_its_retry_are_recorded(self, task: Task) -> None:
        script = StrandsScript(["fail a"], ["look b"])
        failures: list[Exception] = []

        def retry_once(event: AfterToolCallEvent[Any]) -> None:
            if event.exception is not None:
                failures.append(event.exception)
                event.retry = len(failures) % 2 == 1

        script.hooks = [retry_once]

        assert await repeat(task, script, dies_at=2) == script.results("Error: a", "seen b")
        assert script.calls == ["question 0", "a", "a", "question 1", "b", "question 2", "question 2"]
        assert [(type(error), error.args) for error in failures] == [(ValueError, ("a",))] * 4, "hooks receive it"

    async def test_a_question_that_the_model_refused_once_is_recorded(self, task: Task) -> None:
        script = StrandsScript(["look a"], ["look b"])
        script.throttled = 1

        assert await repeat(task, script, dies_at=2) == script.results("seen a", "seen b")
        assert script.calls == ["question 0", "a", "question 1", "question 1", "b", "question 2", "question 2"]

    async def test_a_tool_that_another_tool_calls_is_a_part_of_its_call(self, task: Task) -> None:
        script = StrandsScript(["call_directly a"])

        assert await repeat(task, script, dies_at=1) == script.results("seen a")
        assert script.calls == ["question 0", "direct a", "a", "question 1", "question 1"]
        assert len(script.keys) == 1

    async def test_a_stateful_model_is_asked_again(self, task: Task) -> None:
        script = StrandsScript(["look a"])
        script.stateful = True

        assert await repeat(task, script, dies_at=1) == script.results("seen a")
        assert script.calls == ["question 0", "a", "question 1", "question 0", "question 1"]

    async def test_a_structured_output_reaches_the_agent_in_each_attempt(self, task: Task) -> None:
        script = StrandsScript(["Place a"], structured_output_model=Place)
        for _ in range(2):
            await task.attempt(script.run)
            assert script.structured_output == Place(at="a")
        assert script.calls == ["question 0"]


class TestADK:
    async def test_each_call_is_made_once_wherever_the_worker_dies(self, task: Task) -> None:
        rounds = ["look_and_remember a"], ["look_and_remember b", "look_and_remember c", "look_and_remember c"]
        script = ADKScript(*rounds)
        for script.dies_at in range(3):
            assert await task.attempt(script.run) is None
        script.dies_at = None
        state = {"responses": 3, "a": "seen", "b": "seen", "c": "seen"}

        for _ in range(2):
            assert (await task.attempt(script.run), script.state) == ("done!", state), "also what callbacks change"
        questions = [call for call in script.calls if call.startswith("question")]
        assert sorted(questions) == [f"question {number}" for number in (0, 0, 1, 1, 2, 2)]
        assert sorted(call for call in script.calls if call not in questions) == ["a", "b", "c", "c"]

    async def test_without_durable_each_attempt_makes_each_call(self, task: Task) -> None:
        script = ADKScript(["look_and_remember a"], durable=False)

        assert await repeat(task, script, dies_at=1) == "done!"
        assert script.calls == ["question 0", "a", "question 1"] * 2

    async def test_responses_of_a_model_that_streams_are_not_recorded(self, task: Task) -> None:
        config = RunConfig.model_validate({"streaming_mode": "sse"})
        script = ADKScript(["look_and_remember a"], config=config)

        assert await task.attempt(script.run) == await task.attempt(script.run)
        assert script.calls == ["question 0", "a", "question 1", "question 0", "question 1"]
