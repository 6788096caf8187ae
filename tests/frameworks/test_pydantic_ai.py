"""pydantic-ai agents: questions, outputs, limits, and configurations that are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from a2a.helpers import new_data_part
from a2a.types import Message, Part, Role, TaskStatusUpdateEvent
from google.protobuf.json_format import MessageToDict
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel
from pydantic_ai import Agent, ApprovalRequired, BinaryContent, CallDeferred, DeferredToolRequests, RunContext
from pydantic_ai.capabilities import HandleDeferredToolCalls, Instrumentation
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.models.test import TestModel
from pydantic_ai.output import NativeOutput, PromptedOutput, TextOutput, ToolOutput
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset, FunctionToolset
from pydantic_ai.usage import UsageLimits

from a2a_celery import ConfigError, Failed, InputRequired, Turn
from a2a_celery.frameworks.pydantic_ai import pydantic_ai_agent
from a2a_celery.lifecycle.questions import schema_part
from tests.support.agents.booking_agents import turn
from workers import with_pydantic_ai

DEFERRED: list[Any] = [str, DeferredToolRequests]


def book(item: str) -> str:
    return f"{item} is booked"


def ask_reader(item: str) -> str:
    raise CallDeferred(kind="question")


def pay(context: RunContext[Any], amount: int) -> str:
    if not context.tool_call_approved:
        raise ApprovalRequired({"reason": "more than 10"})
    return f"paid {amount}"


async def calls_all(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Call the tools in one response, and then return their results."""
    results = [str(part.content) for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    if results:
        yield ", ".join(results)
        return
    calls = [("book", {"item": "a bed"}), ("pay", {"amount": 12}), ("ask_reader", {"item": "a name"})]
    yield {n: DeltaToolCall(name, json.dumps(args), tool_call_id=f"c{n}") for n, (name, args) in enumerate(calls)}


def new_inn() -> Any:
    agent = Agent(FunctionModel(stream_function=calls_all), output_type=DEFERRED, tools=[ask_reader])
    agent.tool_plain(requires_approval=True)(book)
    agent.tool(pay)
    return pydantic_ai_agent(agent)


async def say(answer: Any, turn: Turn) -> Any:
    """Return the chunks of the answer without its final status, or the question."""
    try:
        return [chunk async for chunk in answer(turn) if not isinstance(chunk, TaskStatusUpdateEvent)]
    except InputRequired as question:
        return question


async def test_all_deferred_calls_are_one_question_with_a_schema() -> None:
    inn, state = new_inn(), {}
    question = await say(inn, turn(state, Part(text="hello")))

    text, schema = question.parts[0].text, MessageToDict(question.parts[1].data)
    lines = ["Approve book(item='a bed')?", "Approve pay(amount=12)? (reason='more than 10')"]
    lines.append("Result of ask_reader(item='a name')?")
    assert sorted(line.partition(". ")[2] for line in text.splitlines()) == lines
    assert [schema["properties"][name]["title"] for name in ("c0", "c1", "c2")] == lines
    assert {name: field_schema.get("type") for name, field_schema in schema["properties"].items()} == {
        "c0": "boolean",
        "c1": "boolean",
        "c2": None,
    }
    assert sorted(schema["required"]) == ["c0", "c1", "c2"]

    json.dumps(state)
    answer = new_data_part({"c0": False, "c1": True, "c2": "Ada"})
    assert await say(new_inn(), turn(state, answer)) == ["The tool call was denied., paid 12, Ada"]


@pytest.mark.parametrize(
    "wrong", [new_data_part({"c0": True}), new_data_part({"c0": 1, "c1": 1, "c2": 1}), Part(text="yes")]
)
async def test_an_answer_that_does_not_fit_is_asked_for_again(wrong: Part) -> None:
    inn, state = new_inn(), {}
    question = await say(inn, turn(state, Part(text="hello")))

    second_answer = await say(inn, turn(state, wrong))

    assert second_answer.parts[0].text.startswith("The answer was not accepted. ")
    assert second_answer.parts[1:] == question.parts[1:]
    assert await say(inn, turn(state, new_data_part({"c0": True, "c1": True, "c2": 3}))) == [
        "a bed is booked, paid 12, 3"
    ]


async def test_an_answer_to_a_question_that_is_no_longer_stored_fails() -> None:
    late_turn = turn({}, new_data_part({"c0": True}))
    question = Message(message_id="q", role=Role.ROLE_AGENT, parts=[schema_part({"type": "object"})])
    late_turn.task.history.extend([question, late_turn.message])

    with pytest.raises(Failed, match="no longer open"):
        await say(new_inn(), late_turn)


class Place(BaseModel):
    """Pydantic model for the output of an agent."""

    name: str
    size: float


def words_of(text: str) -> list[str]:
    return text.split()


@pytest.mark.parametrize(
    ("output_type", "chunks"),
    [
        (Place, [{"name": "a", "size": 0.0}]),
        ([str, Place], ["success ", "(no ", "tool ", "calls)"]),
        (bool, [False]),
        (list[int], [[0]]),
        (ToolOutput(Place), [{"name": "a", "size": 0.0}]),
        (TextOutput(words_of), [["success", "(no", "tool", "calls)"]]),
    ],
)
async def test_an_output_that_is_no_text_is_data(output_type: Any, chunks: list[Any]) -> None:
    assert await say(pydantic_ai_agent(Agent(TestModel(), output_type=output_type)), turn({}, Part(text="x"))) == chunks


async def test_the_text_of_an_output_function_is_sent_after_the_text_of_the_model() -> None:
    def save_report(title: str) -> str:
        return f"report about {title}"

    async def save(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        yield "I save it. "
        yield {1: DeltaToolCall(info.output_tools[0].name, json.dumps({"title": "x"}), tool_call_id="c")}

    agent = pydantic_ai_agent(Agent(FunctionModel(stream_function=save), output_type=[str, save_report]))

    assert await say(agent, turn({}, Part(text="x"))) == ["I save it. ", "report about x"]


async def test_the_text_of_an_output_validator_is_sent() -> None:
    agent = Agent(TestModel(custom_output_text="abc"))
    agent.output_validator(str.upper)

    assert await say(pydantic_ai_agent(agent), turn({}, Part(text="x"))) == ["ABC"]


async def test_a_file_is_a_raw_part() -> None:
    def draw() -> BinaryContent:
        return BinaryContent(b"x", media_type="image/png")

    [part] = await say(pydantic_ai_agent(Agent(TestModel(), output_type=draw)), turn({}, Part(text="x")))

    assert (part.raw, part.media_type) == (b"x", "image/png")


async def test_the_conversation_is_stored_and_limits_apply_to_each_turn() -> None:
    agent = pydantic_ai_agent(with_pydantic_ai.agent, usage_limits=UsageLimits(request_limit=1))
    state: dict[str, Any] = {}
    for number in range(3):
        state = json.loads(json.dumps(state))
        text = "".join(await say(agent, turn(state, Part(text=str(number)))))

    assert text.strip() == "You said: 0; 1; 2."
    with pytest.raises(UsageLimitExceeded):
        await say(
            pydantic_ai_agent(with_pydantic_ai.agent, usage_limits=UsageLimits(request_limit=0)),
            turn({}, Part(text="x")),
        )


async def test_the_conversation_continues_after_a_tool_returned_none() -> None:
    def note(text: str) -> None:
        pass

    agent = pydantic_ai_agent(Agent(TestModel(), tools=[note]))
    state: dict[str, Any] = {}
    await say(agent, turn(state, Part(text="first")))

    chunks = await say(agent, turn(json.loads(json.dumps(state)), Part(text="second")))

    assert "".join(chunks) == '{"note":null}'


async def test_a_cancelled_turn_stops_its_tools() -> None:
    has_started, has_stopped = asyncio.Event(), asyncio.Event()

    async def hang() -> str:
        has_started.set()
        try:
            await asyncio.Event().wait()
        finally:
            has_stopped.set()
        return ""

    state: dict[str, Any] = {}
    running = asyncio.create_task(say(pydantic_ai_agent(Agent(TestModel(), tools=[hang])), turn(state, Part(text="x"))))
    await has_started.wait()
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert has_stopped.is_set()
    assert state == {}


async def test_a_turn_that_is_stopped_between_chunks_stops_the_model() -> None:
    has_stopped = asyncio.Event()

    async def hang(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        try:
            yield "a"
            yield "b"
            await asyncio.Event().wait()
        finally:
            has_stopped.set()

    chunks = pydantic_ai_agent(Agent(FunctionModel(stream_function=hang)))(turn({}, Part(text="x")))
    assert await anext(chunks) == "a"

    await chunks.aclose()

    await asyncio.wait_for(has_stopped.wait(), 30)


async def test_spans_of_the_agent_are_children_of_the_current_span() -> None:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentation = Instrumentation(settings=InstrumentationSettings(tracer_provider=provider))
    agent = pydantic_ai_agent(Agent(TestModel(), capabilities=[instrumentation]))

    with provider.get_tracer("test").start_as_current_span("run") as run:
        await say(agent, turn({}, Part(text="x")))

    spans = exporter.get_finished_spans()
    assert len(spans) > 2
    assert {span.context.trace_id for span in spans} == {run.get_span_context().trace_id}
    assert trace.get_current_span() is trace.INVALID_SPAN


class NonStreamingModel(Model):
    """Model without streaming."""

    model_name = system = "cannot-stream"

    async def request(self, *args: Any) -> Any:
        raise NotImplementedError


def approving() -> FunctionToolset[Any]:
    toolset: FunctionToolset[Any] = FunctionToolset()
    toolset.add_function(book, requires_approval=True)
    return toolset


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"deps_type": Turn}, "deps_type = Turn: pass deps"),
        ({"model": NonStreamingModel()}, "NonStreamingModel cannot stream"),
        ({"toolsets": [approving()]}, r"tool 'book' needs an approval .* add DeferredToolRequests to its output_type"),
        ({"toolsets": [approving().prefixed("x")]}, "DeferredToolRequests"),
        ({"toolsets": [FunctionToolset([book]).approval_required()]}, "DeferredToolRequests"),
        ({"toolsets": [ExternalToolset([ToolDefinition(name="fetch")])]}, "tool 'fetch' needs"),
    ],
)
def test_what_cannot_be_had_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        pydantic_ai_agent(Agent(**{"model": TestModel(), **options}))


@pytest.mark.parametrize(
    "output_type",
    [
        DEFERRED,
        str | DeferredToolRequests,
        [[str], DeferredToolRequests],
        [ToolOutput(Place), DeferredToolRequests],
        [NativeOutput(Place), DeferredToolRequests],
        [PromptedOutput(Place), DeferredToolRequests],
    ],
)
def test_an_agent_with_an_output_type_for_deferred_tools_is_accepted(output_type: Any) -> None:
    assert pydantic_ai_agent(Agent(TestModel(), output_type=output_type, toolsets=[approving()]))


def test_an_agent_that_handles_its_deferred_tools_is_accepted() -> None:
    handler: Any = HandleDeferredToolCalls(handler=lambda _, requests: requests.build_results(approve_all=True))

    assert pydantic_ai_agent(Agent(TestModel(), toolsets=[approving()], capabilities=[handler]))


@pytest.mark.parametrize("fail_on", ["length", ["max_tokens"]])
def test_a_reason_that_never_comes_is_refused(fail_on: Any) -> None:
    with pytest.raises(ConfigError, match="fail_on"):
        pydantic_ai_agent(Agent(TestModel()), fail_on=fail_on)
