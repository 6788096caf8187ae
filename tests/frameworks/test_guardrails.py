"""Guardrails and output checks of frameworks: text that the framework withholds reaches no client, and a tripwire is a
named end of the turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import agent_framework
import pytest
import strands
from a2a.types import Part, TaskState, TaskStatusUpdateEvent
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    OutputGuardrail,
    RunConfig,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolOutputGuardrail,
    function_tool,
    handoff,
)
from agents.items import TResponseStreamEvent
from agents.testing import assistant_message, function_call
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import DeferredToolRequests, ModelRetry, UnexpectedModelBehavior
from pydantic_ai.agent import WrapperAgent
from pydantic_ai.capabilities import Hooks
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from a2a_celery import ConfigError, InputRequired
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.frameworks.agent_framework import framework_agent
from a2a_celery.frameworks.openai_agents import openai_agent
from a2a_celery.frameworks.pydantic_ai import pydantic_ai_agent
from a2a_celery.frameworks.strands import strands_agent
from a2a_celery.lifecycle.own_metadata import own_metadata
from a2a_celery.lifecycle.states import COMPLETED, FAILED, REJECTED
from a2a_celery.store import AsyncStore, Keys
from tests.execution.local_agents import LocalAgents, local_agents
from tests.support.agents.basic import card
from tests.support.agents.booking_agents import turn
from workers import with_agent_framework, with_strands
from workers.with_openai_agents import StandIn, completed, text_delta


@pytest.fixture
async def agents(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[LocalAgents]:
    async with local_agents(store, keys, redis_server.store_url) as agents:
        yield agents


def texts(task: Any) -> list[str]:
    """Return the text of each artifact."""
    return ["".join(part.text for part in artifact.parts) for artifact in task.artifacts]


DECLINED = "A guardrail has declined the request."


class Script(StandIn):
    """Model that answers with each of `responses` in turn: a text, in two chunks, or a function call."""

    def __init__(self, *responses: Any) -> None:
        self._responses = list(responses)

    async def pause(self) -> None:
        """Wait between the chunks of a text."""

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        response = self._responses.pop(0)
        if not isinstance(response, str):
            yield completed(response)
            return
        first, _, rest = response.partition(" ")
        yield text_delta(first)
        await self.pause()
        yield text_delta(f" {rest}")
        yield completed(assistant_message(response))


def trips_on(word: str, wait: Callable[[], Any] | None = None) -> Callable[..., Any]:
    """Return a guardrail function that trips if the checked value contains `word`."""

    async def check(context: Any, agent: Any, value: Any) -> GuardrailFunctionOutput:
        if wait is not None:
            await wait()
        return GuardrailFunctionOutput(output_info=f"found {word}", tripwire_triggered=word in str(value))

    return check


def output_guardrail(word: str = "secret") -> OutputGuardrail[Any]:
    return OutputGuardrail(guardrail_function=trips_on(word))


async def events_of(agent: Any, text: str = "hello", state: dict[str, Any] | None = None) -> list[Any]:
    return [event async for event in agent(turn({} if state is None else state, Part(text=text)))]


def end(event: Any) -> tuple[TaskState, str, dict[str, Any]]:
    """Return the state, text and metadata of a status event."""
    assert isinstance(event, TaskStatusUpdateEvent)
    return event.status.state, "".join(part.text for part in event.status.message.parts), dict(event.metadata)


def refused(reason: str, state: TaskState = REJECTED, text: str = DECLINED) -> tuple[TaskState, str, dict[str, Any]]:
    return state, text, own_metadata({"stopReason": reason})


@pytest.mark.parametrize("place", ["agent", "run_config", "handoff"])
async def test_text_that_an_output_guardrail_blocks_is_never_sent(place: str) -> None:
    guardrails = [output_guardrail()]
    clerk: Agent[None] = Agent(name="clerk", model=Script("secret 4711"))
    start, config = clerk, RunConfig(tracing_disabled=True)
    if place == "run_config":
        config.output_guardrails = guardrails
    else:
        clerk.output_guardrails = guardrails
    if place == "handoff":
        call = function_call("transfer_to_clerk", {}, call_id="h")
        start = Agent(name="door", model=Script(call), handoffs=[handoff(clerk)])
    state: dict[str, Any] = {}

    events = await events_of(openai_agent(start, run_config=config), state=state)

    assert [end(event) for event in events] == [refused("output_guardrail")]
    assert state == {}


async def test_text_that_an_output_guardrail_accepts_is_sent_once() -> None:
    clerk: Agent[None] = Agent(name="clerk", model=Script("good answer"), output_guardrails=[output_guardrail()])

    assert await events_of(openai_agent(clerk)) == ["good answer"]


class SlowModel(Script):
    """Model that sets `has_begun` after its first chunk, and then waits for `gate`."""

    def __init__(self, *responses: Any) -> None:
        super().__init__(*responses)
        self.has_begun, self.gate = asyncio.Event(), asyncio.Event()

    async def pause(self) -> None:
        self.has_begun.set()
        await self.gate.wait()


async def test_text_waits_for_input_guardrails_beside_the_model() -> None:
    model, is_checked = SlowModel("one two"), asyncio.Event()
    guardrail = InputGuardrail(guardrail_function=trips_on("bomb", is_checked.wait))
    clerk: Agent[None] = Agent(name="clerk", model=model, input_guardrails=[guardrail])
    chunks = openai_agent(clerk)(turn({}, Part(text="hello")))
    first = asyncio.ensure_future(anext(chunks))
    await model.has_begun.wait()
    for _ in range(50):  # iterations of the event loop, in which the chunk would arrive
        await asyncio.sleep(0)
    assert not first.done()

    is_checked.set()
    model.gate.set()

    assert "".join([await first, *[chunk async for chunk in chunks]]) == "one two"


async def test_text_that_an_input_guardrail_declines_is_never_sent() -> None:
    model = SlowModel("how to")

    async def let_the_model_finish() -> None:
        await model.has_begun.wait()
        model.gate.set()

    guardrail = InputGuardrail(guardrail_function=trips_on("bomb", let_the_model_finish))
    clerk: Agent[None] = Agent(name="clerk", model=model, input_guardrails=[guardrail])

    events = await events_of(openai_agent(clerk), "a bomb")

    assert [end(event) for event in events] == [refused("input_guardrail")]


@pytest.mark.parametrize("run_in_parallel", [True, False])
async def test_an_input_guardrail_that_accepts_changes_nothing(run_in_parallel: bool) -> None:
    guardrail = InputGuardrail(guardrail_function=trips_on("bomb"), run_in_parallel=run_in_parallel)
    clerk: Agent[None] = Agent(name="clerk", model=Script("good answer"), input_guardrails=[guardrail])

    assert "".join(await events_of(openai_agent(clerk))) == "good answer"


@pytest.mark.parametrize("kind", ["tool_input_guardrail", "tool_output_guardrail"])
async def test_a_tripwire_of_a_tool_is_a_named_end(kind: str) -> None:
    @function_tool
    def look(place: str) -> str:
        return f"a secret in {place}"

    def trip(data: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.raise_exception("a secret")

    if kind == "tool_input_guardrail":
        look.tool_input_guardrails = [ToolInputGuardrail(guardrail_function=trip)]
    else:
        look.tool_output_guardrails = [ToolOutputGuardrail(guardrail_function=trip)]
    model = Script(function_call("look", {"place": "Oslo"}, call_id="c"))

    events = await events_of(openai_agent(Agent(name="clerk", model=model, tools=[look])))

    assert [end(event) for event in events] == [refused(kind)]


async def test_the_author_chooses_the_state_and_the_text(caplog: pytest.LogCaptureFixture) -> None:
    clerk: Agent[None] = Agent(name="clerk", model=Script("secret 4711"), output_guardrails=[output_guardrail()])
    agent = openai_agent(clerk, fail_on=["output_guardrail"], guardrail_text="I may not say this.")

    with caplog.at_level(logging.WARNING):
        events = await events_of(agent)

    assert [end(event) for event in events] == [refused("output_guardrail", FAILED, "I may not say this.")]
    assert caplog.text == ""


async def test_a_tripwire_ends_the_task_without_a_retry_and_without_the_text(agents: LocalAgents) -> None:
    clerk: Agent[None] = Agent(name="clerk", model=Script("secret 4711"), output_guardrails=[output_guardrail()])
    agents.a2a.add_agent(card("guarded"), openai_agent(clerk), autoretry_for=(Exception,))

    task = await agents.play("guarded")

    assert (task.status.state, texts(task)) == (REJECTED, [])
    assert task.metadata["a2a_celery/stopReason"] == "output_guardrail"
    assert "secret" not in str(await agents.seeds.log("t"))


@pytest.mark.parametrize("fail_on", ["output_guardrail", ["max_tokens"]])
def test_a_reason_that_never_comes_is_refused(fail_on: Any) -> None:
    with pytest.raises(ConfigError, match="fail_on"):
        openai_agent(Agent(name="clerk"), fail_on=fail_on)


def pydantic_model(*responses: str | tuple[str, str]) -> FunctionModel:
    """Return a model that answers with each of `responses` in turn: a text, in two chunks, or a text before a call of
    the tool with the given name."""
    rest = list(responses)

    async def respond(messages: Any, info: Any) -> AsyncIterator[Any]:
        response = rest.pop(0)
        text, tool = (response, "") if isinstance(response, str) else response
        yield text[:3]
        yield text[3:]
        if tool:
            yield {0: DeltaToolCall(tool, "{}", tool_call_id="c")}

    return FunctionModel(stream_function=respond)


async def collect(agent: Any, chunks: list[Any]) -> None:
    """Append the chunks that an agent yields to `chunks`, also if the agent raises an exception."""
    async for chunk in agent(turn({}, Part(text="hello"))):
        chunks.append(chunk)


async def refuse_secrets(output: str) -> str:
    if "secret" in output:
        raise ModelRetry("no secrets")
    return output


def look() -> str:
    """Look."""
    return "seen"


async def test_text_that_an_output_validator_rejects_is_never_sent() -> None:
    agent = PydanticAgent(pydantic_model(("look: ", "look"), "secret 4711", "good answer"), tools=[look])
    agent.output_validator(refuse_secrets)

    *chunks, _ = await events_of(pydantic_ai_agent(WrapperAgent(agent)))

    assert chunks == ["look: ", "good answer"]


async def test_text_that_an_output_validator_always_rejects_is_never_sent() -> None:
    agent = PydanticAgent(pydantic_model("secret 1", "secret 2", "secret 3"), retries=1)
    agent.output_validator(refuse_secrets)
    chunks: list[Any] = []

    with pytest.raises(UnexpectedModelBehavior):
        await collect(pydantic_ai_agent(agent), chunks)

    assert chunks == []


async def test_text_before_a_question_is_sent_although_the_agent_has_a_validator() -> None:
    agent = PydanticAgent(pydantic_model(("I ask. ", "look")), output_type=[str, DeferredToolRequests])
    agent.tool_plain(requires_approval=True)(look)
    agent.output_validator(lambda output: output)
    chunks: list[Any] = []

    with pytest.raises(InputRequired):
        await collect(pydantic_ai_agent(agent), chunks)

    assert chunks == ["I ask. "]


async def change(ctx: Any, *, output_context: Any, output: Any) -> Any:
    return await refuse_secrets(output) + "!"


async def test_streamed_text_that_a_hook_rejects_or_changes_is_replaced(agents: LocalAgents) -> None:
    model = pydantic_model(("look: ", "look"), "secret 4711", "good answer")
    agent = PydanticAgent(model, tools=[look], capabilities=[Hooks(after_output_process=change)])
    agents.a2a.add_agent(card("pydantic"), pydantic_ai_agent(agent))

    task = await agents.play("pydantic")

    assert texts(task) == ["look: good answer!"]
    assert task.status.state == COMPLETED


async def test_streamed_text_that_a_hook_always_rejects_is_withdrawn(agents: LocalAgents) -> None:
    model = pydantic_model(("look: ", "look"), "secret 1", "secret 2", "secret 3")
    agent = PydanticAgent(model, tools=[look], retries=1, capabilities=[Hooks(after_output_process=change)])
    agents.a2a.add_agent(card("pydantic"), pydantic_ai_agent(agent))

    task = await agents.play("pydantic")

    assert texts(task) == ["look: "]
    assert task.status.state == FAILED


class GuardedModel(with_strands.StandIn):
    """Strands model that calls a tool, and whose guardrail then redacts the answer after it was streamed."""

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        is_answer = len(messages) > 1
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockDelta": {"delta": {"text": "secret 4711" if is_answer else "look: "}}}
        yield {"contentBlockStop": {}}
        if not is_answer:
            yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "t", "name": "look"}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "guardrail_intervened" if is_answer else "tool_use"}}
        if is_answer:
            yield {"redactContent": {"redactAssistantContentMessage": "[redacted]"}}


async def test_text_that_a_guardrail_of_strands_redacts_is_replaced(agents: LocalAgents) -> None:
    agent = strands_agent(
        lambda _: strands.Agent(model=GuardedModel(), tools=[strands.tool(look)], callback_handler=None)
    )
    agents.a2a.add_agent(card("strands"), agent)

    task = await agents.play("strands")

    assert texts(task) == ["look: [redacted]"]
    assert task.metadata["a2a_celery/stopReason"] == "guardrail_intervened"


class Redaction(agent_framework.AgentMiddleware):
    """agent-framework middleware that replaces the text of a streamed response."""

    async def process(self, context: Any, call_next: Any) -> None:
        async def redact(response: Any) -> Any:
            text = agent_framework.Content.from_text("[redacted]")
            response.messages = [agent_framework.Message("assistant", [text])]
            return response

        context.stream_result_hooks.append(redact)
        await call_next()


async def test_text_that_middleware_of_agent_framework_changes_is_replaced(agents: LocalAgents) -> None:
    def make(turn: Any) -> Any:
        model = with_agent_framework.StandIn()
        return agent_framework.Agent(model, name="clerk", middleware=[Redaction()])

    agents.a2a.add_agent(card("framework"), framework_agent(make))

    assert texts(await agents.play("framework", "secret")) == ["[redacted]"]
