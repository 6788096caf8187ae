"""Approvals of LangChain's `HumanInTheLoopMiddleware` in a LangGraph agent, answered at the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from a2a.utils.errors import InvalidParamsError
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, ToolCall
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from a2a_celery.client import InputRequest, Result
from a2a_celery.frameworks.langgraph import langgraph_agent
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED
from a2a_celery.testing import AgentTester
from tests.support.agents.script_model import script

DONE: list[str] = []
"""Calls of the tools."""


@tool
def pay(amount: int) -> str:
    """Pay."""
    DONE.append(f"pay {amount!r}")
    return "paid"


@tool
def mail(to: str) -> str:
    """Send a mail."""
    DONE.append(f"mail {to}")
    return "sent"


PAY = ToolCall(name="pay", args={"amount": 7}, id="1")
MAIL = ToolCall(name="mail", args={"to": "ann"}, id="2")


def assistant(*calls: ToolCall, decisions: list[str] | None = None, **options: Any) -> Callable[..., Any]:
    """Return an agent that makes the calls after an approval."""
    allowed: Any = True if decisions is None else {"allowed_decisions": decisions}
    middleware = HumanInTheLoopMiddleware(interrupt_on={"pay": allowed, "mail": True}, **options)
    model = script(AIMessage("", tool_calls=list(calls)), "The end.")
    return langgraph_agent(create_agent(model, [pay, mail], middleware=[middleware]))


@asynccontextmanager
async def asking(agent: Callable[..., Any]) -> AsyncIterator[tuple[AgentTester, Result]]:
    """Yield a tester and the task that waits for an approval."""
    DONE.clear()
    async with AgentTester(agent, "assistant", description="Pays.", session=True) as tester:
        question = await tester.send("hello")
        assert question.state == INPUT_REQUIRED
        yield tester, question


async def calls_after(agent: Callable[..., Any], answer: Any) -> list[str]:
    """Answer the agent's question, and return the calls of the tools."""
    async with asking(agent) as (tester, question):
        result = await tester.answer(question, answer)
        assert (result.state, result.text) == (COMPLETED, "The end.")
    return sorted(DONE)


EDIT = {"type": "edit", "edited_action": {"name": "pay", "args": {"amount": 8}}}


@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        ({"decisions": [{"type": "approve"}]}, ["pay 7"]),
        ('{"decisions": [{"type": "approve"}]}', ["pay 7"]),
        ("approve", ["pay 7"]),
        (" Yes ", ["pay 7"]),
        ({"decisions": [EDIT]}, ["pay 8"]),
        ({"decisions": [{"type": "reject", "message": "Too much."}]}, []),
        ("reject", []),
        ("NO", []),
        ({"decisions": [{"type": "respond", "message": "Paid by hand."}]}, []),
    ],
)
async def test_an_answer_decides_on_the_call(answer: Any, calls: list[str]) -> None:
    assert await calls_after(assistant(PAY), answer) == calls


@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        ({"decisions": [{"type": "approve"}, {"type": "reject"}]}, ["pay 7"]),
        ("yes", ["mail ann", "pay 7"]),
        ("no", []),
    ],
)
async def test_an_answer_decides_on_all_calls(answer: Any, calls: list[str]) -> None:
    assert await calls_after(assistant(PAY, MAIL), answer) == calls


WRONG: list[Any] = [
    "perhaps",
    "approve it",
    "[]",
    {},
    {"decisions": []},
    {"decisions": [{"type": "approve"}, {"type": "approve"}]},
    {"decisions": ["approve"]},
    {"decisions": [{"type": "accept"}]},
    {"decisions": [{"type": "edit"}]},
    {"decisions": [{"type": "edit", "edited_action": {"name": "rob", "args": {}}}]},
    {"decisions": [{"type": "respond"}]},
    {"decisions": [{"type": "reject", "reason": "Too much."}]},
    '{"decisions": []}',
]


async def test_a_wrong_answer_is_refused_and_the_task_waits() -> None:
    async with asking(assistant(PAY)) as (tester, question):
        events = await tester.events(question)
        for answer in WRONG:
            with pytest.raises(InvalidParamsError):
                await tester.answer(question, answer)
        assert await tester.events(question) == events

        result = await tester.answer(question, "yes")
        assert (result.state, DONE) == (COMPLETED, ["pay 7"])


async def test_only_allowed_decisions_are_accepted() -> None:
    async with asking(assistant(PAY, MAIL, decisions=["approve"])) as (tester, question):
        for answer in ("no", {"decisions": [{"type": "reject"}, {"type": "reject"}]}):
            with pytest.raises(InvalidParamsError):
                await tester.answer(question, answer)
        await tester.answer(question, {"decisions": [{"type": "approve"}, {"type": "reject"}]})

    assert DONE == ["pay 7"]


async def test_a_text_is_the_response_if_no_other_decision_is_allowed() -> None:
    for answer in ("Paid by hand.", "42", {"decisions": [{"type": "respond", "message": "Paid."}]}):
        assert await calls_after(assistant(PAY, decisions=["respond"]), answer) == []
    async with asking(assistant(PAY, decisions=["edit"])) as (tester, question):
        with pytest.raises(InvalidParamsError):
            await tester.answer(question, "yes")
        await tester.answer(question, {"decisions": [EDIT]})
    assert DONE == ["pay 8"]


async def test_the_question_is_readable_and_has_a_form() -> None:
    async with asking(assistant(PAY, description_prefix="Please decide")) as (_, question):
        assert question.text == (
            "Please decide\n\nTool: pay\nArgs: {'amount': 7}\n\nAnswer approve or reject, or send the decisions."
        )
        request = InputRequest.of(question)
        assert request is not None
        [field] = request.fields
        assert (field.name, field.kind, field.required) == ("decisions", "json", True)
        assert field.description == "One decision for each call, in order: pay."
    async with asking(assistant(PAY, MAIL, decisions=["edit"])) as (_, question):
        assert question.text.startswith("1. Tool execution requires approval\n\nTool: pay")
        assert "\n\n2. Tool execution requires approval\n\nTool: mail" in question.text
        assert "Answer" not in question.text


async def test_a_middleware_that_asks_about_each_call() -> None:
    per_call = assistant(PAY, interrupt_mode="per_call")
    async with asking(per_call) as (tester, question):
        for answer in ("yes", {"type": "accept"}, {**EDIT, "edited_action": {"name": "pay", "args": {"amount": "x"}}}):
            with pytest.raises(InvalidParamsError):
                await tester.answer(question, answer)
        await tester.answer(question, '{"type": "approve"}')
    assert DONE == ["pay 7"]

    async with asking(assistant(PAY, MAIL, interrupt_mode="per_call")) as (tester, question):
        request = InputRequest.of(question)
        assert request is not None
        await tester.answer(question, {field.name: {"type": "approve"} for field in request.fields})
    assert sorted(DONE) == ["mail ann", "pay 7"]


async def test_agents_that_ask_at_the_same_time() -> None:
    results: list[str] = []
    graph = StateGraph(MessagesState)
    for name, call in {"a": PAY, "b": MAIL}.items():
        middleware = HumanInTheLoopMiddleware(interrupt_on={"pay": True, "mail": True})
        model = script(AIMessage("", tool_calls=[call]), "done")
        graph.add_node(name, create_agent(model, [pay, mail], middleware=[middleware], name=name))
        graph.add_edge(START, name)
    graph.add_node("data", lambda state: results.append(interrupt({"kind": "data"})))
    graph.add_edge(START, "data")
    async with asking(langgraph_agent(graph)) as (tester, question):
        request = InputRequest.of(question)
        assert request is not None
        answers = {
            field.name: "yes" if field.description.startswith("Tool") else {"n": [1]} for field in request.fields
        }
        result = await tester.answer(question, answers)

    assert result.state == COMPLETED
    assert sorted(DONE) == ["mail ann", "pay 7"]
    assert results == [{"n": [1]}]


@pytest.mark.parametrize(
    ("value", "answer", "expected"),
    [
        ({"question": "Pay?"}, '{"paid": 3}', {"paid": 3}),
        ([1], "[1, 2]", [1, 2]),
        ({"question": "Pay?"}, "yes", "yes"),
        ({"question": "Pay?"}, "3", "3"),
        ("Pay?", '{"paid": 3}', '{"paid": 3}'),
        ({"action_requests": [{"name": "x"}], "review_configs": []}, "yes", "yes"),
    ],
)
async def test_json_text_answers_an_interrupt_whose_value_is_data(value: Any, answer: str, expected: Any) -> None:
    results: list[Any] = []
    graph = StateGraph(MessagesState)
    graph.add_node("ask", lambda state: results.append(interrupt(value)))
    graph.add_edge(START, "ask")
    async with asking(langgraph_agent(graph)) as (tester, question):
        await tester.answer(question, answer)

    assert results == [expected]
