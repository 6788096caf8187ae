"""LangGraph graphs over several runs of a turn. Each run continues at the last super-step."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import pytest
from a2a.types import TaskArtifactUpdateEvent
from google.protobuf.json_format import MessageToDict
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send

from a2a_celery import Turn, current_step_key
from a2a_celery.errors import SessionError, StepError
from a2a_celery.features.steps.journal import MAX_RESULT_BYTES
from a2a_celery.frameworks.langgraph import langgraph_agent
from a2a_celery.frameworks.langgraph_checkpoints import KIND
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from tests.execution.attempts import Task, WorkerDies
from tests.support.waiting import eventually_async

SETTINGS = Settings(store_url="redis://127.0.0.1/0")


@pytest.fixture
def task(task: Task) -> Task:
    task.settings = SETTINGS
    return task


class State(MessagesState):
    """State of the test graphs."""

    seen: Annotated[list[str], operator.add]


class Work:
    """Graph nodes that record their calls in all attempts. The worker dies in the node `dies_in`."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.dies_in = ""
        self.turn: Any = None

    def node(self, name: str) -> Callable[[State], Any]:
        async def work(state: State) -> dict[str, Any]:
            self.calls.append(name)
            if name == self.dies_in:
                raise WorkerDies
            return {"seen": [name]}

        return work

    def blocking_node(self, name: str) -> Callable[[State], Any]:
        def work(state: State) -> dict[str, Any]:
            self.calls.append(name)
            return {"seen": [name]}

        return work

    async def answer(self, state: State) -> dict[str, Any]:
        """Return a message with the names in `seen`."""
        self.calls.append("answer")
        if self.dies_in == "answer":
            raise WorkerDies
        return {"messages": [AIMessage(", ".join(state["seen"]))]}

    def runner(self, graph: Any) -> Callable[[Turn], Any]:
        agent = langgraph_agent(graph)

        async def run(turn: Turn) -> str:
            self.turn = turn
            events = [event async for event in agent(turn)]
            return "".join(part.text for event in events if hasattr(event, "artifact") for part in event.artifact.parts)

        return run

    def chain_of(self, *names: str, state: type = State) -> StateGraph[Any]:
        graph = StateGraph(state)
        for previous, name in zip((START, *names), names, strict=False):
            graph.add_node(name, self.node(name))
            graph.add_edge(previous, name)
        graph.add_node("answer", self.answer)
        graph.add_edge(names[-1], "answer")
        return graph


async def test_each_node_is_executed_once_wherever_the_worker_dies(task: Task) -> None:
    work = Work()
    run = work.runner(work.chain_of("a", "b", "c"))
    for work.dies_in in ("a", "b", "c", "answer"):
        assert await task.attempt(run) is None
    work.dies_in = ""

    assert await task.attempt(run) == "a, b, c"
    assert work.calls == ["a", "a", "b", "b", "c", "c", "answer", "answer"]
    assert await task.attempt(run) == "a, b, c", "an attempt after the last super-step"
    assert work.calls[-2:] == ["answer", "answer"]


async def test_a_finished_node_beside_one_that_died_is_not_executed_again(task: Task) -> None:
    work, has_finished = Work(), asyncio.Event()

    async def first(state: State) -> dict[str, Any]:
        work.calls.append("first")
        return {"seen": ["first"]}

    async def first_is_recorded() -> bool:
        return any("write" in key for key in work.turn.journal.entries(KIND))

    async def dies_later(state: State) -> dict[str, Any]:
        work.calls.append("dies")
        if not has_finished.is_set():
            await eventually_async(first_is_recorded)
            has_finished.set()
            raise WorkerDies
        return {"seen": ["second"]}

    graph = StateGraph(State)
    for name, node in {"first": first, "dies": dies_later}.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
        graph.add_edge(name, "answer")
    graph.add_node("answer", work.answer)
    run = work.runner(graph)

    assert await task.attempt(run) is None
    assert sorted((await task.attempt(run)).split(", ")) == ["first", "second"]
    assert sorted(work.calls) == ["answer", "dies", "dies", "first"]


async def test_the_journal_does_not_grow_with_the_super_steps(task: Task) -> None:
    work, sizes = Work(), list[int]()

    async def count(state: State) -> dict[str, Any]:
        entries = work.turn.journal.entries(KIND)
        sizes.append(len(entries))
        return {"seen": [str(len(sizes))]}

    inner = work.chain_of("x", "y").compile()
    graph = StateGraph(State)
    graph.add_node("count", count)
    graph.add_node("inner", inner)
    graph.add_edge(START, "count")
    graph.add_edge("count", "inner")
    graph.add_conditional_edges("inner", lambda state: END if len(sizes) >= 6 else "count")

    await task.attempt(work.runner(graph))

    assert len(sizes) == 6
    assert max(sizes[1:]) <= sizes[1] + 1


async def test_plain_nodes_may_call_subgraphs(task: Task) -> None:
    work = Work()
    inner = StateGraph(State)
    inner.add_node("inner", work.blocking_node("inner"))
    inner.add_edge(START, "inner")
    subgraph = inner.compile()

    def call(state: State) -> dict[str, Any]:
        return {"seen": subgraph.invoke({"messages": [], "seen": []})["seen"]}

    graph = StateGraph(State)
    graph.add_node("call", call)
    graph.add_node("answer", work.answer)
    graph.add_edge(START, "call")
    graph.add_edge("call", "answer")
    work.dies_in = "answer"
    run = work.runner(graph)

    assert await task.attempt(run) is None
    work.dies_in = ""
    assert await task.attempt(run) == "inner"
    assert work.calls == ["inner", "answer", "answer"]


async def test_durable_steps_of_nodes_are_not_mixed_up(task: Task) -> None:
    """A later run skips finished nodes and their durable steps."""
    work, keys = Work(), set[str]()

    def node(name: str) -> Callable[[State], Any]:
        async def act() -> str:
            work.calls.append(name)
            keys.add(current_step_key())
            return name

        async def call(state: State) -> dict[str, Any]:
            result = await work.turn.step("act", act)
            if name == work.dies_in:
                raise WorkerDies
            return {"seen": [result]}

        return call

    graph = StateGraph(State)
    for previous, name in ((START, "a"), ("a", "b"), ("b", "c")):
        graph.add_node(name, node(name))
        graph.add_edge(previous, name)
    graph.add_node("answer", work.answer)
    graph.add_edge("c", "answer")
    run = work.runner(graph)
    for work.dies_in in ("b", "c"):
        await task.attempt(run)
    work.dies_in = ""

    assert await task.attempt(run) == "a, b, c"
    assert work.calls == ["a", "b", "c", "answer"]
    assert len(keys) == 3


async def test_parallel_tasks_of_one_node_are_executed_once(task: Task) -> None:
    work = Work()

    async def fan(state: dict[str, str]) -> dict[str, Any]:
        work.calls.append(state["at"])
        return {"seen": [state["at"]]}

    graph = StateGraph(State)
    graph.add_node("fan", fan)
    graph.add_node("answer", work.answer)
    graph.add_conditional_edges(START, lambda state: [Send("fan", {"at": at}) for at in "abc"])
    graph.add_edge("fan", "answer")
    work.dies_in = "answer"
    run = work.runner(graph)
    await task.attempt(run)
    work.dies_in = ""

    assert await task.attempt(run) == "a, b, c"
    assert sorted(work.calls) == ["a", "answer", "answer", "b", "c"]


async def test_a_message_that_an_earlier_run_sent_is_not_sent_again(task: Task) -> None:
    work = Work()
    agent = langgraph_agent(work.chain_of("a"))
    texts: list[str] = []

    async def run(turn: Turn) -> None:
        async for event in agent(turn):
            if isinstance(event, TaskArtifactUpdateEvent):
                texts.extend(part.text for part in event.artifact.parts)
                await turn.artifact(texts[-1])
        await turn.step("flush", str)  # recorded after the events

    await task.attempt(run)
    await task.attempt(run)

    assert texts == ["a"]


async def test_the_tokens_of_a_turn_are_those_of_all_its_runs(task: Task) -> None:
    work, ends = Work(), list[Any]()
    response = AIMessage("x", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3})
    response.response_metadata["model_name"] = "m"

    async def ask_model(state: State) -> dict[str, Any]:
        await FakeMessagesListChatModel(responses=[response]).ainvoke("")
        return {}

    graph = work.chain_of("a")
    graph.add_node("before", ask_model)
    graph.add_edge("before", END)
    graph.add_edge(START, "before")
    agent = langgraph_agent(graph)

    async def run(turn: Turn) -> None:
        ends.extend([event async for event in agent(turn)][-1:])

    work.dies_in = "answer"
    await task.attempt(run)
    work.dies_in = ""
    await task.attempt(run)

    [end] = ends
    assert sum(MessageToDict(end.metadata)["a2a_celery/usage"]["m"].values()) == 3


async def test_checkpoints_are_encrypted_and_need_their_secret(task: Task, store: AsyncStore, keys: Keys) -> None:
    work = Work()
    run = work.runner(work.chain_of("a", "b"))
    task.settings = replace(SETTINGS, secret_key="s" * 32)
    work.dies_in = "answer"
    await task.attempt(run)
    journal = b"".join((await store.redis.hgetall(keys.task(task.task_id).journal)).values())
    assert len(journal) > 500
    assert b"channel_versions" not in journal
    assert b"hello" not in journal

    task.settings = SETTINGS
    with pytest.raises(SessionError, match="a2a_secret_key is not set"):
        await task.attempt(run)
    task.settings = replace(SETTINGS, secret_key="t" * 32)
    with pytest.raises(SessionError, match="secret that is not in a2a_secret_key"):
        await task.attempt(run)
    task.settings = replace(SETTINGS, secret_key="s" * 32)
    work.dies_in = ""
    assert await task.attempt(run) == "a, b"


async def test_a_state_beyond_the_limits_is_refused(task: Task) -> None:
    work = Work()

    async def grow(state: State) -> dict[str, Any]:
        return {"seen": ["x" * MAX_RESULT_BYTES]}

    graph = work.chain_of("a")
    graph.add_node("grow", grow)
    graph.add_edge("a", "grow")

    with pytest.raises(StepError, match=f"may have {MAX_RESULT_BYTES}: set a2a_blob_url"):
        await task.attempt(work.runner(graph))
