"""Framework agents whose model stops early, each with and without the option `fail_on`."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from typing import Any, cast

import agent_framework
import strands
from agent_framework import ChatResponseUpdate, Content, Message
from celery import Celery
from google.adk.a2a.executor.a2a_agent_executor import A2aAgentExecutor
from google.adk.a2a.executor.config import A2aAgentExecutorConfig
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import types
from strands.hooks import BeforeModelCallEvent
from strands.types.content import Messages
from strands.types.streaming import StreamEvent

from a2a_celery import A2A, Turn
from a2a_celery.frameworks.adk import ContextSessionService, stop_reasons
from a2a_celery.frameworks.agent_framework import framework_agent
from a2a_celery.frameworks.strands import strands_agent
from tests.support.agents.basic import card
from workers import with_agent_framework, with_strands

REASONS = {"strands": "max_tokens", "agent-framework": "length", "adk": "max_tokens"}
"""Stop reason of each framework's model. Only the agent "<name>-fails" lists the reason in `fail_on`."""

app = Celery("tests", broker=os.environ.get("CELERY_BROKER_URL", "memory://"), set_as_current=False)
app.conf.update(task_default_queue=os.environ.get("TEST_QUEUE", "celery"))
a2a = A2A(app)


class CutOff(with_strands.StandIn):
    """Strands model whose response is truncated at the maximum length."""

    async def stream(self, messages: Messages, *args: Any, **kwargs: Any) -> AsyncIterator[StreamEvent]:
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": "half"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "max_tokens"}}


class Finishes(with_agent_framework.StandIn):
    """agent-framework model whose responses have the finish reason `reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self._reason = reason

    def _inner_get_response(self, *, messages: Sequence[Message], **kwargs: Any) -> Any:
        async def updates() -> AsyncIterator[ChatResponseUpdate]:
            yield ChatResponseUpdate(
                role="assistant", contents=[Content.from_text("half")], finish_reason=cast(Any, self._reason)
            )

        return self._build_response_stream(updates())


class AdkCutOff(BaseLlm):
    """ADK model whose response is truncated at the maximum length."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the response."""
        content = types.Content(role="model", parts=[types.Part(text="half")])
        yield LlmResponse(content=content, finish_reason=types.FinishReason.MAX_TOKENS)


def cut_off(_: Turn) -> strands.Agent:
    """Return a Strands agent whose model stops early."""
    return strands.Agent(model=CutOff(), callback_handler=None)


def cancels_itself(turn: Turn) -> strands.Agent:
    """Return a Strands agent that a hook cancels before the model is called."""
    agent = cut_off(turn)
    agent.hooks.add_callback(BeforeModelCallEvent, lambda event: event.agent.cancel())
    return agent


def finishes(_: Turn) -> agent_framework.Agent[Any]:
    """Return an agent-framework agent whose model stops early."""
    return agent_framework.Agent(Finishes("length"), name="cut")


def executor(fail_on: Sequence[str]) -> A2aAgentExecutor:
    """Return ADK's executor for an agent whose model stops early."""
    agent = LlmAgent(name="cut", model=AdkCutOff(model="stand-in"))
    runner = Runner(app=App(name="cut", root_agent=agent), session_service=ContextSessionService())
    config = A2aAgentExecutorConfig(execute_interceptors=[stop_reasons(fail_on=fail_on)])
    return A2aAgentExecutor(runner=runner, config=config)


for suffix, fails in (("", False), ("-fails", True)):
    reasons = {name: [reason] if fails else [] for name, reason in REASONS.items()}
    a2a.agent(f"strands{suffix}", description="Is cut off.", session=True)(
        strands_agent(cut_off, fail_on=reasons["strands"])
    )
    a2a.agent(f"agent-framework{suffix}", description="Is cut off.", session=True)(
        framework_agent(finishes, fail_on=reasons["agent-framework"])
    )
    a2a.add_agent(card(f"adk{suffix}"), partial(executor, reasons["adk"]), session=True)
a2a.agent("strands-cancelled", description="Is cancelled.", session=True)(strands_agent(cancels_itself))
