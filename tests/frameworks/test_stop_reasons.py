"""Stop reasons of framework agents, and the final statuses of their tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pydantic_ai
import pytest
from a2a.types import Part, TaskState, TaskStatus, TaskStatusUpdateEvent
from agent_framework import Agent as FrameworkAgent
from google.adk.a2a.executor.executor_context import ExecutorContext
from google.adk.events.event import Event
from google.genai.types import FinishReason
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models import CompletedStreamedResponse, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.test import TestModel
from strands import Agent
from strands.agent import AgentResult
from strands.telemetry.metrics import EventLoopMetrics

from a2a_celery import InputRequired, Turn
from a2a_celery.errors import ConfigError
from a2a_celery.frameworks.adk import stop_reasons
from a2a_celery.frameworks.agent_framework import framework_agent
from a2a_celery.frameworks.pydantic_ai import pydantic_ai_agent
from a2a_celery.frameworks.strands import strands_agent
from a2a_celery.lifecycle.outcomes import NEEDS_INPUT
from a2a_celery.lifecycle.own_metadata import own_metadata
from a2a_celery.lifecycle.states import COMPLETED, FAILED, INPUT_REQUIRED
from tests.support.agents.booking_agents import turn
from tests.support.agents.early_stops import CutOff, Finishes
from workers import with_strands

FAILS = "The agent stopped early: {}."


class StoppingAgent(Agent):
    """Strands agent that stops for `reason`."""

    def __init__(self, reason: Any) -> None:
        super().__init__(model=with_strands.StandIn(), callback_handler=None)
        self._reason = reason

    async def stream_async(self, *_: Any, **__: Any) -> AsyncIterator[dict[str, Any]]:
        yield {"data": "half"}
        message: Any = {"role": "assistant", "content": [{"text": "half"}]}
        yield {"result": AgentResult(self._reason, message, EventLoopMetrics(), {}, interrupts=[])}


class StoppingModel(TestModel):
    """pydantic-ai model that finishes for `reason`."""

    def __init__(self, reason: Any) -> None:
        super().__init__()
        self._reason = reason

    @asynccontextmanager
    async def request_stream(self, *args: Any, **kwargs: Any) -> AsyncGenerator[StreamedResponse]:
        response = ModelResponse(parts=[TextPart("half")], finish_reason=self._reason)
        parameters = ModelRequestParameters()
        yield CompletedStreamedResponse(response, model_request_parameters=parameters, replay_events=True)


async def events_of(agent: Any, state: dict[str, Any]) -> list[Any]:
    return [piece async for piece in agent(turn(state, Part(text="hello")))]


def end(event: Any) -> tuple[TaskState, str, dict[str, Any]]:
    """Return the state, text and metadata of a status event."""
    assert isinstance(event, TaskStatusUpdateEvent)
    return event.status.state, "".join(part.text for part in event.status.message.parts), dict(event.metadata)


EARLY = [
    *("max_tokens", "limit_turns", "limit_total_tokens", "limit_output_tokens"),
    *("content_filtered", "guardrail_intervened"),
]


@pytest.mark.parametrize("reason", EARLY)
async def test_a_strands_agent_that_stops_early_completes_with_the_reason(reason: str) -> None:
    state: dict[str, Any] = {}

    text, last = await events_of(strands_agent(lambda _: StoppingAgent(reason)), state)

    assert (text, end(last)) == ("half", (COMPLETED, "", own_metadata({"stopReason": reason})))
    assert "memory" in state


@pytest.mark.parametrize("reason", EARLY)
async def test_a_strands_agent_that_stops_early_fails_with_the_option(reason: str) -> None:
    agent = strands_agent(lambda _: StoppingAgent(reason), fail_on={reason})

    _, last = await events_of(agent, {})

    assert end(last) == (FAILED, FAILS.format(reason), own_metadata({"stopReason": reason}))


async def test_a_strands_agent_that_its_model_cuts_off_fails_with_the_reason() -> None:
    """Strands raises an error for this stop reason. The conversation contains the text before the error."""
    state: dict[str, Any] = {}

    text, last = await events_of(strands_agent(lambda _: Agent(model=CutOff(), callback_handler=None)), state)

    assert (text, end(last)) == ("half", (COMPLETED, "", own_metadata({"stopReason": "max_tokens"})))
    assert "half" in str(state["memory"])


@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence"])
async def test_a_complete_strands_agent_has_no_stop_reason(reason: str) -> None:
    assert await events_of(strands_agent(lambda _: StoppingAgent(reason)), {}) == ["half"]


async def test_strands_that_was_cancelled_is_canceled_and_forgets_the_turn() -> None:
    state: dict[str, Any] = {}

    with pytest.raises(asyncio.CancelledError):
        await events_of(strands_agent(lambda _: StoppingAgent("cancelled")), state)

    assert state == {}


async def test_strands_pauses_without_interrupts_with_a_text() -> None:
    with pytest.raises(InputRequired, match=NEEDS_INPUT):
        await events_of(strands_agent(lambda _: StoppingAgent("interrupt")), {})


@pytest.mark.parametrize("fail_on", ["max_tokens", ["max_token"], [1]])
def test_strands_refuses_a_reason_that_never_comes(fail_on: Any) -> None:
    with pytest.raises(ConfigError, match="fail_on"):
        strands_agent(lambda _: StoppingAgent("end_turn"), fail_on=fail_on)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_an_agent_framework_agent_that_stops_early_has_the_reason(reason: str) -> None:
    def make(_: Turn) -> FrameworkAgent[Any]:
        return FrameworkAgent(Finishes(reason), name="cut")

    text, completion = await events_of(framework_agent(make), {})
    _, failure = await events_of(framework_agent(make, fail_on=[reason]), {})

    assert (text, end(completion)) == ("half", (COMPLETED, "", own_metadata({"stopReason": reason})))
    assert end(failure) == (FAILED, FAILS.format(reason), own_metadata({"stopReason": reason}))


async def test_a_complete_agent_framework_agent_has_no_stop_reason() -> None:
    assert await events_of(framework_agent(lambda _: FrameworkAgent(Finishes("stop"), name="done")), {}) == ["half"]


@pytest.mark.parametrize("reason", ["length", "content_filter", "error"])
async def test_a_pydantic_ai_agent_that_stops_early_has_the_reason(reason: Any) -> None:
    agent = pydantic_ai.Agent(StoppingModel(reason))

    text, completion = await events_of(pydantic_ai_agent(agent), {})
    _, failure = await events_of(pydantic_ai_agent(agent, fail_on=[reason]), {})

    assert (text, end(completion)) == ("half", (COMPLETED, "", own_metadata({"stopReason": reason})))
    assert end(failure) == (FAILED, FAILS.format(reason), own_metadata({"stopReason": reason}))


async def test_a_complete_pydantic_ai_agent_has_no_stop_reason() -> None:
    assert await events_of(pydantic_ai_agent(pydantic_ai.Agent(StoppingModel("stop"))), {}) == ["half"]


async def adk_end(state: TaskState, *reasons: FinishReason | None, fail_on: Sequence[str] = ()) -> Any:
    """Return the final status of ADK's executor after the model has finished for `reasons`."""
    interceptor, context = stop_reasons(fail_on=fail_on), ExecutorContext("clerk", "me", "c", cast(Any, None))
    status = TaskStatusUpdateEvent(task_id="t", context_id="c", status=TaskStatus(state=state))
    assert interceptor.after_event is not None
    assert interceptor.after_agent is not None
    for reason in reasons:
        event = interceptor.after_event(context, status, Event(author="clerk", finish_reason=reason))
        assert await cast(Awaitable[Any], event) is status
    return end(await interceptor.after_agent(context, status))


async def test_an_adk_agent_that_stops_early_has_the_reason() -> None:
    token_limit, stop = FinishReason.MAX_TOKENS, FinishReason.STOP

    assert await adk_end(COMPLETED, token_limit) == (COMPLETED, "", own_metadata({"stopReason": "max_tokens"}))
    assert await adk_end(COMPLETED, token_limit, fail_on=["max_tokens"]) == (
        *(FAILED, FAILS.format("max_tokens")),
        own_metadata({"stopReason": "max_tokens"}),
    )
    assert await adk_end(COMPLETED, stop, None) == (COMPLETED, "", {})
    assert await adk_end(COMPLETED, token_limit, None, stop) == (COMPLETED, "", {})
    assert await adk_end(INPUT_REQUIRED, token_limit) == (INPUT_REQUIRED, "", {})
    with pytest.raises(ConfigError, match="fail_on"):
        stop_reasons(fail_on=["never"])
