"""Conversations, events and final statuses of LangGraph graphs, and graphs that cannot be agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, cast

import pytest
from a2a.helpers import new_data_part
from a2a.types import Part, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from google.protobuf.json_format import MessageToDict
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, HumanMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore
from opentelemetry import trace
from typing_extensions import TypedDict

from a2a_celery import ConfigError
from a2a_celery.execution.events.activities import CURRENT_EXECUTION, Execution
from a2a_celery.frameworks.langgraph import MEMORY, langgraph_agent
from a2a_celery.lifecycle.execution import ExecutionState
from a2a_celery.lifecycle.own_metadata import own_metadata
from a2a_celery.lifecycle.states import COMPLETED, FAILED
from tests.support.agents.booking_agents import NewTurn


class Model(BaseChatModel):
    """Model that streams the texts of the user."""

    metadata_of_response: dict[str, Any]

    @property
    def _llm_type(self) -> str:
        return "test"

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(self, messages: list[AnyMessage], *args: Any, **kwargs: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        texts = [str(message.text) for message in messages if isinstance(message, HumanMessage)]
        for word in ("You", " said: ", "; ".join(texts)):
            yield ChatGenerationChunk(message=AIMessageChunk(word))
        usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
        metadata = {"model_name": "m-1", **self.metadata_of_response}
        yield ChatGenerationChunk(
            message=AIMessageChunk("", usage_metadata=cast(Any, usage), response_metadata=metadata)
        )


def one_node(node: Callable[..., Any], state: Any = MessagesState) -> StateGraph[Any]:
    graph = StateGraph(state)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph


def chat(**metadata: Any) -> StateGraph[Any]:
    """Return a graph that calls the model."""

    async def call(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await Model(metadata_of_response=metadata).ainvoke(state["messages"])]}

    return one_node(call)


async def events_of(graph: Any, state: dict[str, Any] | None = None, *parts: Part, **options: Any) -> list[Any]:
    """Run a turn of the graph's agent, and return its events."""
    new_turn = NewTurn({} if state is None else state, *(parts or [Part(text="hello")]))
    return [event async for event in langgraph_agent(graph, **options)(new_turn.turn)]


def artifacts(events: list[Any]) -> dict[str, str]:
    """Return the texts of the artifacts by their ids."""
    texts: dict[str, str] = {}
    for event in events:
        if isinstance(event, TaskArtifactUpdateEvent):
            text = "".join(part.text for part in event.artifact.parts)
            texts[event.artifact.artifact_id] = (texts[event.artifact.artifact_id] if event.append else "") + text
    return texts


async def test_tokens_are_chunks_of_one_artifact() -> None:
    events = await events_of(chat())
    chunks = [event for event in events if isinstance(event, TaskArtifactUpdateEvent)]

    assert ["".join(part.text for part in chunk.artifact.parts) for chunk in chunks] == ["You", " said: ", "hello", ""]
    assert [chunk.append for chunk in chunks] == [False, True, True, True]
    assert [chunk.last_chunk for chunk in chunks] == [False, False, False, True]
    assert chunks[0].artifact.name == "node"


async def test_a_conversation_goes_on_with_the_session() -> None:
    state: dict[str, Any] = {}
    sizes = set()
    for n in range(4):
        events = await events_of(chat(), state, Part(text=str(n)))
        sizes.add(len(state[MEMORY]))

    assert list(artifacts(events).values()) == ["You said: 0; 1; 2; 3"]
    assert len(sizes) == 1


async def test_a_message_without_tokens_is_an_artifact() -> None:
    events = await events_of(one_node(lambda state: {"messages": [AIMessage("one"), AIMessage("two")]}))

    assert list(artifacts(events).values()) == ["one", "two"]
    assert all(event.last_chunk for event in events[:-1])


async def test_values_of_a_stream_writer_are_status_messages() -> None:
    def write(state: MessagesState) -> dict[str, Any]:
        for value in ("half", {"done": 0.5}, {"id": 2**60 + 1}, new_data_part({"a": "b"})):
            get_stream_writer()(value)
        return {}

    new_turn = NewTurn({}, Part(text="hello"))
    _ = [event async for event in langgraph_agent(one_node(write))(new_turn.turn)]

    values = [{"done": 0.5}, {"id": str(2**60 + 1)}, {"a": "b"}]
    assert new_turn.said == ["half", *([{"data": value}] for value in values)]


async def test_the_end_has_the_tokens_by_model() -> None:
    *_, end = await events_of(chat())

    assert isinstance(end, TaskStatusUpdateEvent)
    assert MessageToDict(end.metadata)["a2a_celery/usage"] == {"m-1": {"inputTokens": 3, "outputTokens": 2}}


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"finish_reason": "stop"}, None),
        ({"stop_reason": "end_turn"}, None),
        ({"finish_reason": "STOP"}, None),
        ({"finish_reason": "length"}, "length"),
        ({"stop_reason": "max_tokens"}, "max_tokens"),
    ],
)
async def test_a_model_that_stops_early_has_the_reason(metadata: dict[str, str], reason: str | None) -> None:
    *_, end = await events_of(chat(**metadata))
    *_, failure = await events_of(chat(**metadata), fail_on=["length", "max_tokens"])

    expected = {} if reason is None else own_metadata({"stopReason": reason})
    assert MessageToDict(end.metadata) | expected == MessageToDict(end.metadata)
    assert ("stopReason" in str(end.metadata)) == (reason is not None)
    assert end.status.state == COMPLETED
    assert failure.status.state == (COMPLETED if reason is None else FAILED)


async def test_a_graph_without_an_end_fails_and_leaves_the_conversation() -> None:
    graph = one_node(lambda state: {})
    graph.add_edge("node", "node")
    state: dict[str, Any] = {}

    [end] = await events_of(graph.compile().with_config(recursion_limit=3), state)

    assert (end.status.state, state) == (FAILED, {})
    assert MessageToDict(end.metadata) == own_metadata({"stopReason": "recursion_limit"})


async def test_a_cancel_stops_the_graph() -> None:
    began, has_stopped = asyncio.Event(), asyncio.Event()

    async def wait(state: MessagesState) -> dict[str, Any]:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            has_stopped.set()
        return {}

    running = asyncio.create_task(events_of(one_node(wait)))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert has_stopped.is_set()


async def test_calls_of_models_and_tools_are_steps_and_end_with_their_errors() -> None:
    @tool
    async def look(at: str) -> str:
        """Look at something."""
        return at

    @tool
    def fail() -> str:
        """Fail."""
        raise KeyError

    async def node(state: MessagesState) -> dict[str, Any]:
        await Model(metadata_of_response={}).ainvoke(state["messages"])
        await look.ainvoke({"at": "x"})
        with pytest.raises(KeyError):
            await asyncio.to_thread(fail.invoke, {})
        return {}

    execution = Execution()
    execution.transition(ExecutionState.INITIALIZING)
    CURRENT_EXECUTION.set(execution)
    await events_of(one_node(node))

    steps = [f"{transition.after} {transition.detail.get('tool', '')}".strip() for transition in execution.history[1:]]
    assert steps == ["MODEL_CALL", "TOOL_EXECUTION look", "TOOL_EXECUTION fail"]
    assert not execution.has_open_activities


async def test_a_span_of_a_node_is_below_the_span_of_the_run() -> None:
    spans = []

    async def node(state: MessagesState) -> dict[str, Any]:
        spans.append(trace.get_current_span())
        return {}

    def plain(state: MessagesState) -> dict[str, Any]:
        spans.append(trace.get_current_span())
        return {}

    run = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False))
    with trace.use_span(run):
        await events_of(one_node(node))
        await events_of(one_node(plain))

    assert spans == [run, run]


async def test_all_parts_of_a_message_reach_the_graph() -> None:
    messages: list[Any] = []

    def node(state: MessagesState) -> dict[str, Any]:
        messages.extend(state["messages"])
        return {}

    image = Part(raw=b"\x00", media_type="image/png")
    await events_of(
        one_node(node), None, Part(text="look"), new_data_part({"n": 1}), image, Part(url="https://e.com/x")
    )

    [message] = messages
    assert message.content == [
        {"type": "text", "text": "look"},
        {"type": "text", "text": '{"n": 1}'},
        {"type": "image", "mime_type": "image/png", "filename": "file.png", "base64": "AA=="},
        {"type": "file", "url": "https://e.com/x"},
    ]


class PlainState(TypedDict):
    """State without messages."""

    text: str


class ReplacedState(TypedDict):
    """State whose messages are replaced by each turn."""

    messages: list[AnyMessage]


class DeltaState(MessagesState):
    """State with a channel that needs all checkpoints."""

    log: Annotated[list[str], DeltaChannel(lambda log, writes: [*log, *chain(*writes)])]


def subgraph(**options: Any) -> StateGraph[Any]:
    return one_node(chat().compile(**options))


@dataclass
class Context:
    """Context of a run."""

    text: str
    number: int = 0


class TypedContext(TypedDict):
    """Context of a run."""

    text: str


def with_context(schema: Any = Context) -> StateGraph[Any]:
    """Return a graph that says its context."""

    def node(state: MessagesState, runtime: Runtime[Any]) -> dict[str, Any]:
        return {"messages": [AIMessage(str(runtime.context))]}

    graph = StateGraph(MessagesState, context_schema=schema)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph


@pytest.mark.parametrize(
    ("schema", "context", "text"),
    [
        (Context, lambda turn: Context(turn.text, 1), "Context(text='hello', number=1)"),
        (Context, lambda turn: {"text": turn.text}, "Context(text='hello', number=0)"),
        (TypedContext, lambda turn: {"text": turn.text}, "{'text': 'hello'}"),
        (Context, lambda turn: None, "None"),
        (None, lambda turn: turn.text, "hello"),
    ],
)
async def test_nodes_have_the_context_of_the_turn(schema: Any, context: Callable[..., Any], text: str) -> None:
    assert list(artifacts(await events_of(with_context(schema), context=context)).values()) == [text]


async def test_a_subgraph_has_the_context_of_the_turn() -> None:
    graph = one_node(with_context().compile())
    events = await events_of(graph, context=lambda turn: Context(turn.text))

    assert list(artifacts(events).values()) == ["Context(text='hello', number=0)"]


async def test_nodes_have_the_store_and_the_configurable_values_of_the_graph() -> None:
    store = InMemoryStore()
    store.put(("names",), "name", {"name": "Ann"})

    def node(state: MessagesState, runtime: Runtime[Any], config: RunnableConfig) -> dict[str, Any]:
        assert runtime.store is not None
        item = runtime.store.get(("names",), "name")
        assert item is not None
        return {"messages": [AIMessage(f"{item.value['name']} {config['configurable']['city']}")]}

    graph = one_node(node).compile(store=store).with_config(configurable={"city": "Paris"})

    assert list(artifacts(await events_of(graph)).values()) == ["Ann Paris"]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no graph": (lambda: "graph", r"a StateGraph, or the result of its compile\(\)"),
    "checkpointer": (lambda: chat().compile(checkpointer=InMemorySaver()), "the graph has a checkpointer: compile it"),
    "of a subgraph": (lambda: subgraph(checkpointer=InMemorySaver()), "the subgraph 'node' has a checkpointer"),
    "breakpoint": (lambda: chat().compile(interrupt_before=["node"]), r"call interrupt\(value\) in the node"),
    "no messages": (
        lambda: one_node(lambda state: {}, PlainState),
        "derive the state from langgraph.graph.MessagesState",
    ),
    "no reducer": (lambda: one_node(lambda state: {}, ReplacedState), "annotate messages"),
    "context": (with_context, "the graph has context_schema = Context: pass context, a function"),
    "context of a subgraph": (
        lambda: one_node(with_context(TypedContext).compile()),
        "the subgraph 'node' has context_schema = TypedContext: pass context",
    ),
    "delta": (lambda: one_node(lambda state: {}, DeltaState), "'log' is a DeltaChannel"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_graph_that_cannot_be_an_agent_is_refused(name: str) -> None:
    make, sentence = REFUSED[name]
    with pytest.raises(ConfigError, match=sentence):
        langgraph_agent(make())


async def async_context(turn: Any) -> Context:
    return Context("x")


@pytest.mark.parametrize("context", [Context("x"), async_context])
def test_a_context_that_is_no_plain_function_is_refused(context: Any) -> None:
    with pytest.raises(ConfigError, match=r"context = .*: a plain function that returns the context of a turn"):
        langgraph_agent(with_context(), context=context)


def test_reducers_and_persistent_subgraphs_are_accepted() -> None:
    class Own(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]

    langgraph_agent(one_node(lambda state: {}, Own))
    langgraph_agent(subgraph(checkpointer=True))
