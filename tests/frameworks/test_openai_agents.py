"""Agents that use the OpenAI Agents SDK: questions, outputs, contexts, and configurations that are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from a2a.helpers import new_data_part
from a2a.types import Message, Part, Role, Task, TaskState, TaskStatus
from agents import Agent, RunConfig, RunContextWrapper, SessionSettings, function_tool, handoff
from agents.exceptions import MaxTurnsExceeded
from agents.items import TResponseStreamEvent
from agents.testing import assistant_message, function_call
from google.protobuf.json_format import MessageToDict
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from pydantic import BaseModel

from a2a_celery import ConfigError, Failed, InputRequired, Turn
from a2a_celery.client import InputRequest
from a2a_celery.frameworks.openai_agents import openai_agent
from a2a_celery.lifecycle.questions import schema_part
from tests.support.agents.booking_agents import turn
from workers import with_openai_agents
from workers.with_openai_agents import StandIn, completed


class Calls(StandIn):
    """Model that calls tools in one response, and then returns their results.

    Args:
        calls: Arguments of each call by its id and the name of its tool.
    """

    def __init__(self, **calls: tuple[str, dict[str, Any]]) -> None:
        self._calls = calls

    async def stream_response(
        self, system_instructions: str | None, input: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[TResponseStreamEvent]:
        outputs = [item for item in input if item.get("type") == "function_call_output"]
        results = [str(item["output"]) for item in outputs if item["call_id"] in self._calls]
        if results:
            yield completed(assistant_message(", ".join(results)))
        else:
            yield completed(*(function_call(name, args, call_id=id) for id, (name, args) in self._calls.items()))


@function_tool(needs_approval=True)
def book(item: str) -> str:
    return f"{item} is booked"


async def is_expensive(context: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str) -> bool:
    return int(arguments["amount"]) > 10


@function_tool(needs_approval=is_expensive)
def pay(context: RunContextWrapper[Turn], amount: int) -> str:
    return f"paid {amount} for {context.context.text!r}"


TWO = {"c0": ("book", {"item": "a bed"}), "c1": ("pay", {"amount": 12}), "c2": ("pay", {"amount": 3})}


class HandoffModel(StandIn):
    """Model that hands over to a different agent in each turn."""

    async def stream_response(
        self, system_instructions: str | None, input: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[TResponseStreamEvent]:
        yield completed(function_call("transfer_to_clerk", {}, call_id=f"hand-{len(input)}"))


async def say(answer: Callable[[Turn], AsyncIterator[Any]], turn: Turn) -> Any:
    """Return the chunks of the answer, or the question."""
    try:
        return [chunk async for chunk in answer(turn)]
    except InputRequired as question:
        return question


def new_clerk() -> Any:
    clerk: Agent[Turn] = Agent(name="clerk", model=Calls(**TWO), tools=[book, pay])
    return openai_agent(clerk, context=lambda turn: turn)


async def test_all_approvals_are_one_question_with_a_schema() -> None:
    state: dict[str, Any] = {}
    question = await say(new_clerk(), turn(state, Part(text="hello")))

    text, schema = question.parts[0].text, MessageToDict(question.parts[1].data)
    assert text.splitlines() == [
        "1. Approve book(item='a bed')?",
        "2. Approve pay(amount=12)?",
        "Answer yes or no for all calls, or send a decision on each call.",
    ]
    assert {name: field_schema["type"] for name, field_schema in schema["properties"].items()} == {
        "c0": "boolean",
        "c1": "boolean",
    }
    assert sorted(schema["required"]) == ["c0", "c1"]

    state = json.loads(json.dumps(state))
    [text] = await say(new_clerk(), turn(state, new_data_part({"c0": False, "c1": True})))
    assert "not approved" in text
    assert "a bed is booked" not in text
    assert "paid 12 for ''" in text, "the context of the run that continues"
    assert text.count("paid 3") == 1


WRONG = [new_data_part({"c0": True}), new_data_part({"c0": 1, "c1": 1}), Part(text="maybe")]


@pytest.mark.parametrize("wrong", WRONG)
async def test_an_answer_that_does_not_fit_is_asked_for_again(wrong: Part) -> None:
    clerk, state = new_clerk(), {}
    question = await say(clerk, turn(state, Part(text="hello")))

    second_answer = await say(clerk, turn(state, wrong))

    assert second_answer.parts[0].text.startswith("The answer was not accepted. ")
    assert second_answer.parts[1:] == question.parts[1:]
    [text] = await say(clerk, turn(state, new_data_part({"c0": True, "c1": True})))
    assert "a bed is booked" in text


@pytest.mark.parametrize("answer", [Part(text="Yes"), Part(text=" approve "), Part(text="true"), new_data_part(True)])
async def test_a_word_approves_every_call(answer: Part) -> None:
    clerk, state = new_clerk(), {}
    await say(clerk, turn(state, Part(text="hello")))
    [text] = await say(clerk, turn(state, answer))
    assert "a bed is booked" in text
    assert "paid 12" in text


async def test_a_word_rejects_a_single_call_and_another_is_explained() -> None:
    clerk: Agent[None] = Agent(name="clerk", model=Calls(c0=TWO["c0"]), tools=[book])
    agent, state = openai_agent(clerk), {}
    question = await say(agent, turn(state, Part(text="hello")))
    [field] = InputRequest.of(waiting(question)).fields
    assert (field.name, field.kind, field.label) == ("c0", "boolean", "Approve book(item='a bed')?")

    repeated_question = await say(agent, turn(state, Part(text="maybe")))
    assert repeated_question.parts[0].text.splitlines() == [
        "The answer was not accepted. Send yes or no, or a data part that matches the schema.",
        "Approve book(item='a bed')? (yes or no)",
    ]
    [text] = await say(agent, turn(state, Part(text="no")))
    assert "not approved" in text


def waiting(question: InputRequired) -> Task:
    message = Message(message_id="q", role=Role.ROLE_AGENT, parts=question.parts)
    return Task(id="t", status=TaskStatus(state=TaskState.TASK_STATE_INPUT_REQUIRED, message=message))


async def test_an_answer_to_a_question_that_is_no_longer_stored_fails() -> None:
    late_turn = turn({}, new_data_part({"c0": True}))
    question = Message(message_id="q", role=Role.ROLE_AGENT, parts=[schema_part({"type": "object"})])
    late_turn.task.history.extend([question, late_turn.message])

    with pytest.raises(Failed, match="no longer open"):
        await say(new_clerk(), late_turn)


async def test_an_approval_of_an_agent_that_took_over_is_answered() -> None:
    clerk: Agent[None] = Agent(name="clerk", model=Calls(c0=TWO["c0"]), tools=[book])
    door = openai_agent(Agent(name="door", model=HandoffModel(), handoffs=[handoff(clerk)]))
    state: dict[str, Any] = {}
    question = await say(door, turn(state, Part(text="hello")))
    assert question.parts[0].text == "Approve book(item='a bed')? (yes or no)"

    state = json.loads(json.dumps(state))
    assert await say(door, turn(state, new_data_part({"c0": True}))) == ["a bed is booked"]


async def test_an_approval_of_an_agent_that_is_a_tool_is_answered() -> None:
    def new_boss() -> Any:
        clerk: Agent[None] = Agent(name="clerk", model=Calls(inner=("book", {"item": "a bed"})), tools=[book])
        tool = clerk.as_tool("clerk", "Books.", run_config=RunConfig(tracing_disabled=True))
        return openai_agent(Agent(name="boss", model=Calls(outer=("clerk", {"input": "x"})), tools=[tool]))

    state: dict[str, Any] = {}
    question = await say(new_boss(), turn(state, Part(text="hello")))
    assert question.parts[0].text == "Approve book(item='a bed')? (yes or no)"

    state = json.loads(json.dumps(state))
    assert await say(new_boss(), turn(state, new_data_part({"inner": True}))) == ["a bed is booked"]


class Place(BaseModel):
    """Pydantic model for the output of an agent."""

    name: str


class AnswerModel(StandIn):
    """Model that returns its text in one chunk."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def stream_response(
        self, system_instructions: str | None, input: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[TResponseStreamEvent]:
        yield with_openai_agents.text_delta(self._text)
        yield completed(assistant_message(self._text))


@pytest.mark.parametrize(
    ("output_type", "text", "chunk"),
    [
        (None, "a", "a"),
        (str, "a", "a"),
        (Place, '{"name": "a"}', {"name": "a"}),
        (list[int], '{"response": [1]}', [1]),
    ],
)
async def test_an_output_that_is_no_text_is_data(output_type: Any, text: str, chunk: Any) -> None:
    agent: Agent[None] = Agent(name="a", model=AnswerModel(text), output_type=output_type)

    assert await say(openai_agent(agent), turn({}, Part(text="x"))) == [chunk]


async def test_the_result_of_a_tool_that_ends_the_run_is_sent() -> None:
    @function_tool
    def find(place: str) -> str:
        return place

    class Model(StandIn):
        async def stream_response(
            self, system_instructions: str | None, input: Any, *args: Any, **kwargs: Any
        ) -> AsyncIterator[TResponseStreamEvent]:
            text = "I look in Oslo"
            yield with_openai_agents.text_delta(text)
            yield completed(assistant_message(text), function_call("find", {"place": "Oslo"}, call_id="c"))

    agent: Agent[None] = Agent(name="a", model=Model(), tools=[find], tool_use_behavior="stop_on_first_tool")

    assert await say(openai_agent(agent), turn({}, Part(text="x"))) == ["I look in Oslo", "Oslo"]


@pytest.mark.parametrize(
    ("first_type", "second_type", "chunk"),
    [(None, Place, {"name": "a"}), (Place, None, '{"name": "a"}')],
)
async def test_the_agent_that_took_over_decides_on_the_output(first_type: Any, second_type: Any, chunk: Any) -> None:
    clerk: Agent[None] = Agent(name="clerk", model=AnswerModel('{"name": "a"}'), output_type=second_type)
    door: Agent[None] = Agent(name="door", model=HandoffModel(), handoffs=[clerk], output_type=first_type)

    assert await say(openai_agent(door), turn({}, Part(text="x"))) == [chunk]


async def test_the_conversation_is_stored() -> None:
    state: dict[str, Any] = {}
    for number in range(3):
        state = json.loads(json.dumps(state))
        text = "".join(await say(with_openai_agents.clerk, turn(state, Part(text=str(number)))))

    assert text.strip() == "You said: 0; 1; 2."


async def test_a_turn_beyond_its_limit_fails_and_leaves_the_conversation() -> None:
    state: dict[str, Any] = {}
    agent: Agent[Turn] = Agent(name="a", model=Calls(c2=TWO["c2"]), tools=[pay])

    with pytest.raises(MaxTurnsExceeded):
        await say(openai_agent(agent, context=lambda turn: turn, max_turns=1), turn(state, Part(text="x")))
    assert state == {}


async def test_a_cancelled_turn_stops_its_tools() -> None:
    has_started, has_stopped = asyncio.Event(), asyncio.Event()

    @function_tool
    async def hang() -> str:
        has_started.set()
        try:
            await asyncio.Event().wait()
        finally:
            has_stopped.set()
        return ""

    state: dict[str, Any] = {}
    agent: Agent[None] = Agent(name="a", model=Calls(c=("hang", {})), tools=[hang])
    running = asyncio.create_task(say(openai_agent(agent), turn(state, Part(text="x"))))
    await has_started.wait()
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.wait_for(has_stopped.wait(), 30)
    assert state == {}


class HangingModel(StandIn):
    """Model whose response hangs until the model is stopped."""

    def __init__(self) -> None:
        self.is_stopped = False

    async def stream_response(
        self, system_instructions: str | None, input: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[TResponseStreamEvent]:
        yield with_openai_agents.text_delta("a")
        try:
            await asyncio.Event().wait()
        finally:
            self.is_stopped = True


async def test_a_turn_that_is_stopped_between_chunks_stops_the_model() -> None:
    model = HangingModel()
    chunks = openai_agent(Agent(name="a", model=model))(turn({}, Part(text="x")))
    assert await anext(chunks) == "a"

    await chunks.aclose()

    assert model.is_stopped


async def test_tools_see_the_current_span() -> None:
    spans: list[trace.Span] = []

    @function_tool
    def look() -> str:
        spans.append(trace.get_current_span())
        return ""

    agent: Agent[None] = Agent(name="a", model=Calls(c=("look", {})), tools=[look])
    with TracerProvider().get_tracer("test").start_as_current_span("run") as run:
        await say(openai_agent(agent), turn({}, Part(text="x")))

    assert spans == [run]


async def test_the_agents_of_the_app_are_unchanged() -> None:
    clerk: Agent[None] = Agent(name="clerk", model=StandIn(), tools=[book])
    door: Agent[None] = Agent(name="door", model=HandoffModel(), handoffs=[clerk])
    clerk.handoffs = [door]
    config_before = [(agent.model, list(agent.tools), list(agent.handoffs)) for agent in (door, clerk)]

    await say(openai_agent(door), turn({}, Part(text="hello")))

    assert [(agent.model, agent.tools, agent.handoffs) for agent in (door, clerk)] == config_before


@pytest.mark.parametrize(
    ("agent", "config", "reason"),
    [
        (StandIn(), RunConfig(), "pass an agents.Agent"),
        (Agent(name="a"), RunConfig(session_settings=SessionSettings(limit=1)), r"run_config\.session_settings: .*use"),
        (Agent(name="a"), RunConfig(session_input_callback=lambda old, new: old + new), "session_input_callback"),
    ],
)
def test_what_cannot_be_had_is_refused(agent: Any, config: RunConfig, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        openai_agent(agent, run_config=config)
