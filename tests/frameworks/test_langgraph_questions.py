"""Interrupts of a LangGraph graph, which are questions to the client. The answers reach the node in a later run."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import pytest
from a2a.helpers import new_data_part
from a2a.types import Part
from a2a.utils.errors import InvalidParamsError
from celery import Celery
from google.protobuf.json_format import MessageToDict
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from pydantic import BaseModel, field_validator

from a2a_celery import A2A, Turn
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.frameworks.langgraph import langgraph_agent
from a2a_celery.lifecycle.outcomes import NEEDS_INPUT
from a2a_celery.lifecycle.questions import schema_in
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys
from tests.execution.scene import TurnByTurn
from tests.support.store.seeds import Seeds


class State(MessagesState):
    """State of the test graphs."""

    answers: Annotated[list[Any], operator.add]


class Day(BaseModel):
    """A day on which the shop is open."""

    day: str

    @field_validator("day")
    @classmethod
    def open_on(cls, day: str) -> str:
        if day == "Sunday":
            raise ValueError("closed on Sunday")
        return day


calls: list[str] = []
losses: list[str] = []


def asks(*values: Any, name: str = "ask", schema: Any = None) -> StateGraph[Any]:
    """Return a graph with a node that asks the questions `values` one after the other."""

    def ask(state: State) -> dict[str, Any]:
        calls.append(name)
        return {"answers": [interrupt(value, response_schema=schema) for value in values]}

    return answering(**{name: ask})


def answering(**nodes: Callable[..., Any]) -> StateGraph[Any]:
    """Return a graph that executes `nodes` in parallel, and then says the answers."""
    graph = StateGraph(State)
    graph.add_node("say", say)
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
        graph.add_edge(name, "say")
    return graph


def say(state: State) -> dict[str, Any]:
    return {"messages": [AIMessage(" and ".join(map(str, state["answers"])))]}


def loses_its_connection(state: State) -> dict[str, Any]:
    calls.append("flaky")
    answer = interrupt("Really?")
    if not losses:
        losses.append("connection")
        raise ConnectionError
    return {"answers": [answer]}


def refuses_lower_case(state: State) -> dict[str, Any]:
    calls.append("ask")
    answers = [interrupt("Who?"), interrupt("Where?")]
    if answers[1].islower():
        raise InvalidParamsError(f"{answers[1]} is not a city.")
    return {"answers": answers}


def first(state: State) -> dict[str, Any]:
    calls.append("before")
    return {}


def in_turn(turn: Turn) -> StateGraph[Any]:
    async def ask(state: State) -> dict[str, Any]:
        return {"answers": [await turn.ask("From the turn?")]}

    async def ask_again(state: State) -> dict[str, Any]:
        return {"answers": [await turn.ask("Again?")]}

    graph = StateGraph(State)
    graph.add_node("ask", ask)
    graph.add_node("again", ask_again)
    graph.add_node("wait", lambda state: {"answers": [interrupt("By interrupt?")]})
    graph.add_node("say", say)
    for source, target in ((START, "ask"), ("ask", "again"), ("again", "wait"), ("wait", "say")):
        graph.add_edge(source, target)
    return graph


async def asks_in_turn(turn: Turn) -> Any:
    async for event in langgraph_agent(in_turn(turn))(turn):
        yield event


def inner() -> Any:
    graph = StateGraph(State)
    graph.add_node("inside", lambda state: {"answers": [interrupt("Inside?")]})
    graph.add_node("before", first)
    graph.add_edge(START, "before")
    graph.add_edge("before", "inside")
    return graph.compile()


a2a = A2A(Celery("test", broker="memory://", set_as_current=False))
AGENTS: dict[str, Any] = {
    "one": asks("On which day?"),
    "two": asks("Who?", "Where?"),
    "empty": asks(None),
    "empty-text": asks(""),
    "data": asks({"question": "Pay?", "amount": 3, "to": ["a"], "order": 2**60 + 1}),
    "schema": asks("When?", schema={"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}),
    "type": asks("When?", schema=Day),
    "parallel": answering(
        a=lambda state: {"answers": [f"a: {interrupt('A?')}"]},
        b=lambda state: {"answers": [f"b: {interrupt(None, response_schema={'type': 'integer'})}"]},
    ),
    "subgraph": answering(inner=inner()),
    "refuses": answering(ask=refuses_lower_case),
}
for agent_name, agent_graph in AGENTS.items():
    a2a.agent(agent_name, description="Asks.", session=True)(langgraph_agent(agent_graph))
a2a.agent("flaky", description="Asks.", session=True, autoretry_for=(ConnectionError,), default_retry_delay=0)(
    langgraph_agent(answering(flaky=loses_its_connection))
)
a2a.agent("turn", description="Asks.", session=True)(asks_in_turn)


@pytest.fixture
async def turns(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[TurnByTurn]:
    calls.clear()
    losses.clear()
    async with TurnByTurn(a2a, store, keys, redis_server.store_url) as turns:
        yield turns


async def test_an_answer_is_the_result_of_the_interrupt(turns: TurnByTurn) -> None:
    assert await turns.begin("one") == (INPUT_REQUIRED, "On which day?")
    assert await turns.answer("one", "Monday") == ["Monday"]
    assert calls == ["ask", "ask"]


async def test_one_node_asks_one_question_after_the_other(turns: TurnByTurn, seeds: Seeds) -> None:
    assert await turns.begin("two") == (INPUT_REQUIRED, "Who?")
    assert await turns.say("two", 2, Part(text="Ada")) == (INPUT_REQUIRED, "Where?")
    state, _ = await turns.say("two", 3, Part(text="Paris"))

    assert (state, await seeds.last_text("t")) == (COMPLETED, "Ada and Paris")
    assert calls == ["ask"] * 3


async def test_the_next_message_begins_a_turn_if_a_node_refused_the_answer(turns: TurnByTurn) -> None:
    """LangGraph has recorded the answer in its checkpoint."""
    assert await turns.begin("refuses") == (INPUT_REQUIRED, "Who?")
    assert await turns.say("refuses", 2, Part(text="Ada")) == (INPUT_REQUIRED, "Where?")
    assert await turns.say("refuses", 3, Part(text="paris")) == (INPUT_REQUIRED, "paris is not a city.")
    assert await turns.say("refuses", 4, Part(text="Ada")) == (INPUT_REQUIRED, "Who?")


@pytest.mark.parametrize("agent", ["empty", "empty-text"])
async def test_an_empty_question_has_a_text(turns: TurnByTurn, agent: str) -> None:
    assert await turns.begin(agent) == (INPUT_REQUIRED, NEEDS_INPUT)


async def test_a_value_is_a_data_part_and_an_answer_may_be_data(turns: TurnByTurn, seeds: Seeds) -> None:
    assert await turns.begin("data") == (INPUT_REQUIRED, "Pay?")
    [_, part] = (await seeds.task("t")).status.message.parts
    [interrupt] = MessageToDict(part.data)["interrupts"]
    assert interrupt["value"] == {"question": "Pay?", "amount": 3.0, "to": ["a"], "order": str(2**60 + 1)}

    await turns.say("data", 2, new_data_part({"paid": 3}))
    assert await seeds.last_text("t") == "{'paid': 3}"


async def test_a_schema_reaches_the_client(turns: TurnByTurn, seeds: Seeds) -> None:
    await turns.begin("schema")
    schema = schema_in((await seeds.task("t")).status.message.parts)
    assert schema is not None
    assert schema["required"] == ["day"]

    state, question = await turns.say("schema", 2, new_data_part({"no": 1}))
    assert state == INPUT_REQUIRED
    assert "not accepted" in question
    await turns.say("schema", 3, new_data_part({"day": "Monday"}))
    assert await seeds.last_text("t") == "{'day': 'Monday'}"


async def test_an_answer_that_the_type_refuses_is_asked_for_again(turns: TurnByTurn, seeds: Seeds) -> None:
    await turns.begin("type")
    state, question = await turns.say("type", 2, new_data_part({"day": "Sunday"}))
    assert state == INPUT_REQUIRED
    assert "closed on Sunday" in question

    await turns.say("type", 3, new_data_part({"day": "Monday"}))
    assert await seeds.last_text("t") == "day='Monday'"


async def test_several_interrupts_are_asked_at_once(turns: TurnByTurn, seeds: Seeds) -> None:
    state, question = await turns.begin("parallel")
    schema = schema_in((await seeds.task("t")).status.message.parts)
    assert schema is not None
    types = {name: field_schema["type"] for name, field_schema in schema["properties"].items()}
    assert state == INPUT_REQUIRED
    assert sorted(types.values()) == ["integer", "string"]
    assert {line.partition(": ")[2] for line in question.splitlines()} == {"A?", NEEDS_INPUT}

    await turns.say(
        "parallel", 2, new_data_part({name: 7 if kind == "integer" else "x" for name, kind in types.items()})
    )
    assert await seeds.last_text("t") == "a: x and b: 7"


async def test_a_subgraph_asks(turns: TurnByTurn) -> None:
    assert await turns.begin("subgraph") == (INPUT_REQUIRED, "Inside?")
    assert await turns.answer("subgraph", "yes") == ["yes"]
    assert calls == ["before"]


async def test_a_retry_after_an_answer_receives_the_answer(turns: TurnByTurn, seeds: Seeds) -> None:
    assert await turns.begin("flaky") == (INPUT_REQUIRED, "Really?")
    state, _ = await turns.say("flaky", 2, Part(text="yes"))
    assert state == WORKING

    assert (await turns.perform("flaky", 2, retries=1))[0] == COMPLETED
    assert await seeds.last_text("t") == "yes"
    assert calls == ["flaky"] * 3


async def test_nodes_may_ask_with_the_turn(turns: TurnByTurn, seeds: Seeds) -> None:
    assert await turns.begin("turn") == (INPUT_REQUIRED, "From the turn?")
    assert await turns.say("turn", 2, Part(text="1")) == (INPUT_REQUIRED, "Again?")
    assert await turns.say("turn", 3, Part(text="2")) == (INPUT_REQUIRED, "By interrupt?")
    await turns.say("turn", 4, Part(text="3"))
    assert await seeds.last_text("t") == "1 and 2 and 3"
