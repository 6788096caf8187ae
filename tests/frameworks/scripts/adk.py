"""ADK agent that follows a script, with callbacks and tools that change the state of its session."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import Any, cast

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
from a2a_celery.execution.events.activities import CURRENT_EXECUTION, Execution
from a2a_celery.features.sessions.session import CURRENT, ContextSession
from a2a_celery.frameworks.adk import ContextSessionService, ExecutionSteps
from a2a_celery.lifecycle.execution import ExecutionState

from .script import Script


class ADKScript(Script):
    """ADK agent that follows a script. The adapter is a plugin of the agent's app.

    Attributes:
        state: State of the ADK session at the end of the last run.
    """

    def __init__(self, *rounds: Sequence[str], durable: bool = True, config: RunConfig | None = None) -> None:
        super().__init__(*rounds, durable=durable)
        self.plugin = ExecutionSteps(durable=durable)
        self.state: dict[str, Any] = {}
        self._config = config or RunConfig()

    async def run(self, turn: Turn) -> str:
        """Run a turn in an execution and a session of its own, and return the last text."""
        session: dict[str, Any] = {}
        execution = Execution()
        execution.transition(ExecutionState.INITIALIZING)
        CURRENT_EXECUTION.set(execution)
        token = CURRENT.set(cast(ContextSession, SimpleNamespace(state=session)))
        try:
            return await self._run()
        finally:
            CURRENT.reset(token)
            execution.transition(ExecutionState.CANCELLED)
            self.state = session["adk"]["state"]

    async def _run(self) -> str:
        tools = [self.look_and_remember, self.grow]
        agent = LlmAgent(name="script", model=Model(self), tools=[*tools], after_model_callback=self.count_response)
        app = App(name="script", root_agent=agent, plugins=[self.plugin])
        runner = Runner(app=app, session_service=ContextSessionService())
        await runner.session_service.create_session(app_name="script", user_id="ann", session_id="s")
        message = types.Content(role="user", parts=[types.Part(text="hello")])
        events = runner.run_async(user_id="ann", session_id="s", new_message=message, run_config=self._config)
        texts = ["".join(part.text or "" for part in (e.content and e.content.parts) or []) async for e in events]
        return next(text for text in reversed(texts) if text)

    async def look_and_remember(self, at: str, tool_context: ToolContext) -> str | None:
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
    """Model that follows a script."""

    def __init__(self, script: Script) -> None:
        super().__init__(model="script")
        self._script = script

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the calls of a round, or the last text."""
        calls = self._script.begin_request(sum(content.role == "model" for content in llm_request.contents))
        parts = [types.Part(function_call=types.FunctionCall(name=call.name, args=call.arguments)) for call in calls]
        yield LlmResponse(content=types.Content(role="model", parts=parts or [types.Part(text="done")]))
