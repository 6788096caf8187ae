"""google-adk agent, run by ADK's unmodified A2A executor. Its tool needs the client's confirmation."""

from collections.abc import AsyncGenerator

from google.adk.a2a.executor.a2a_agent_executor import A2aAgentExecutor
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.tools.function_tool import FunctionTool
from google.genai import types

from a2a_celery.frameworks.adk import ContextSessionService, ExecutionSteps

from .stand_in import Call, think


class StandIn(BaseLlm):
    """Stand-in for a model. For a real model, use a name such as "gemini-…", or a class in ``google.adk.models``."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the model's answer."""
        contents = llm_request.contents
        texts = [part.text for one in contents if one.role == "user" for part in one.parts or [] if part.text]
        results = [part.function_response for part in contents[-1].parts or [] if part.function_response]
        answer = await think(texts, str((results[0].response or {}).get("result")) if results else None)
        if isinstance(answer, Call):
            part = types.Part(function_call=types.FunctionCall(name=answer.name, args=answer.arguments))
        else:
            part = types.Part(text=answer)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def book(what: str) -> str:
    """Book something after the client approves."""
    return f"{what} is booked"


def executor() -> A2aAgentExecutor:
    """Return ADK's executor, created as in ADK's documentation, with sessions that all workers share."""
    tools = [FunctionTool(book, require_confirmation=True)]
    agent = LlmAgent(name="clerk", model=StandIn(model="stand-in"), tools=list(tools))
    app = App(name="clerk", root_agent=agent, plugins=[ExecutionSteps()])
    return A2aAgentExecutor(runner=Runner(app=app, session_service=ContextSessionService()))
