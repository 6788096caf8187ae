"""LangGraph graphs that ask questions, or that hang so that a test can kill the worker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from celery import Celery
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from a2a_celery import A2A
from a2a_celery.frameworks.langgraph import langgraph_agent
from tests.support.agents.basic import card
from tests.support.agents.durable_agents import is_passed, write_line

NODES = ("a", "b", "c")

app = Celery("tests", broker=os.environ.get("CELERY_BROKER_URL", "memory://"), set_as_current=False)
app.conf.update(task_default_queue=os.environ.get("TEST_QUEUE", "celery"))
a2a = A2A(app)


def node(name: str) -> Callable[[MessagesState], Any]:
    """Return a node whose first execution hangs if the message is "stop"."""

    async def work(state: MessagesState) -> dict[str, Any]:
        text = str(state["messages"][-1].text)
        write_line(text, "nodes", name)
        if text == "stop" and not is_passed(f"in-{name}"):
            await asyncio.Event().wait()
        return {}

    return work


def answer(state: MessagesState) -> dict[str, Any]:
    """Return a message with all texts of the client."""
    texts = [str(message.text) for message in state["messages"] if isinstance(message, HumanMessage)]
    return {"messages": [AIMessage("; ".join(texts))]}


def ask(state: MessagesState) -> dict[str, Any]:
    """Ask two questions, the second with a schema."""
    city = interrupt("Which city?")
    day = interrupt("Which day?", response_schema={"type": "object", "properties": {"day": {"type": "string"}}})
    return {"messages": [AIMessage(f"{city} on {day['day']}")]}


works = StateGraph(MessagesState)
for previous, name in zip((START, *NODES), NODES, strict=False):
    works.add_node(name, node(name))
    works.add_edge(previous, name)
works.add_node("answer", answer)
works.add_edge(NODES[-1], "answer")
a2a.add_agent(card("works"), langgraph_agent(works), max_attempts=5)

asks = StateGraph(MessagesState)
asks.add_node("ask", ask)
asks.add_edge(START, "ask")
a2a.add_agent(card("asks"), langgraph_agent(asks.compile()))
