"""Recorded results of an ADK agent's model and tool calls, including the changes that callbacks make."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.run_config import RunConfig
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from a2a_celery import Turn
from a2a_celery.execution.agents.session import CURRENT, ContextSession
from a2a_celery.execution.events.steps import CURRENT_EXECUTION, Execution
from a2a_celery.frameworks.adk import ContextSessionService, ExecutionSteps
from a2a_celery.lifecycle.execution import ExecutionState
from a2a_celery.store import AsyncStore, Keys
from tests.execution.attempts import Task, WorkerDies, open_task


@pytest.fixture
async def task(store: AsyncStore, keys: Keys) -> AsyncIterator[Task]:
    async with open_task(store, keys) as task:
        yield task


class Script:
    """ADK agent whose model calls the tool for the places of one round in each response."""

    def __init__(self, *rounds: str, durable: bool = True, config: RunConfig | None = None) -> None:
        self.rounds = rounds
        self.calls: list[str] = []
        self.dies_at: int | None = None
        self.plugin = ExecutionSteps(durable=durable)
        self._config = config or RunConfig()

    async def run(self, turn: Turn) -> tuple[str, dict[str, Any]]:
        """Run a turn, and return its last text and the state of the ADK session."""
        state: dict[str, Any] = {}
        execution = Execution()
        execution.transition(ExecutionState.INITIALIZING)
        CURRENT_EXECUTION.set(execution)
        token = CURRENT.set(cast(ContextSession, SimpleNamespace(state=state)))
        try:
            agent = LlmAgent(
                name="script", model=Model(self), tools=[self.look], after_model_callback=self.count_response
            )
            app = App(name="script", root_agent=agent, plugins=[self.plugin])
            runner = Runner(app=app, session_service=ContextSessionService())
            await runner.session_service.create_session(app_name="script", user_id="ann", session_id="s")
            message = types.Content(role="user", parts=[types.Part(text="hello")])
            text = ""
            async for event in runner.run_async(
                user_id="ann", session_id="s", new_message=message, run_config=self._config
            ):
                text = "".join(part.text or "" for part in (event.content and event.content.parts) or []) or text
        finally:
            CURRENT.reset(token)
            execution.transition(ExecutionState.CANCELLED)
        return text, state["adk"]["state"]

    async def look(self, at: str, tool_context: ToolContext) -> str | None:
        """Look at a place."""
        self.calls.append(at)
        tool_context.state[at] = "seen"
        return None if at == "b" else f"seen {at}"

    async def count_response(self, callback_context: CallbackContext, llm_response: LlmResponse) -> LlmResponse:
        """Change the state, and the text of the response."""
        callback_context.state["responses"] = callback_context.state.get("responses", 0) + 1
        for part in (llm_response.content and llm_response.content.parts) or []:
            part.text = part.text and f"{part.text}!"
        return llm_response


class Model(BaseLlm):
    """Model that follows the rounds of a `Script`."""

    def __init__(self, script: Script) -> None:
        super().__init__(model="script")
        self._script = script

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the calls of a round, or the last text."""
        number = sum(content.role == "model" for content in llm_request.contents)
        self._script.calls.append(f"question {number}")
        if number == self._script.dies_at:
            raise WorkerDies
        rounds = self._script.rounds
        places = rounds[number] if number < len(rounds) else ""
        calls = [types.FunctionCall(name="look", args={"at": at}) for at in places]
        parts = [types.Part(function_call=call) for call in calls] or [types.Part(text="done")]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


async def test_each_call_is_made_once_wherever_the_worker_dies(task: Task) -> None:
    script = Script("a", "bcc")
    for script.dies_at in range(3):
        assert await task.attempt(script.run) is None
    script.dies_at = None
    expected = ("done!", {"responses": 3, "a": "seen", "b": "seen", "c": "seen"})

    assert await task.attempt(script.run) == expected
    assert await task.attempt(script.run) == expected, "with the changes of callbacks and tools"
    questions = [call for call in script.calls if call.startswith("question")]
    assert sorted(questions) == [f"question {number}" for number in (0, 0, 1, 1, 2, 2)]
    assert sorted(call for call in script.calls if call not in questions) == ["a", "b", "c", "c"]
    assert script.plugin._calls._open == {}


async def test_without_durable_each_attempt_makes_each_call(task: Task) -> None:
    script = Script("a", durable=False)

    assert await task.attempt(script.run) == await task.attempt(script.run)
    assert script.calls == ["question 0", "a", "question 1"] * 2


async def test_responses_of_a_model_that_streams_are_not_recorded(task: Task) -> None:
    script = Script("a", config=RunConfig.model_validate({"streaming_mode": "sse"}))

    assert await task.attempt(script.run) == await task.attempt(script.run)
    assert script.calls == ["question 0", "a", "question 1", "question 0", "question 1"]
