"""Artifacts of LangGraph graphs: at the end of a turn, they hold the messages and the response in the state."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Callable
from typing import Any

import pytest
from a2a.types import Part, TaskArtifactUpdateEvent
from google.protobuf.json_format import MessageToDict
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, PIIMiddleware, after_model, wrap_model_call
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolCall
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import RetryPolicy, interrupt
from pydantic import BaseModel

from a2a_celery import Turn
from a2a_celery.errors import Rejected
from a2a_celery.frameworks.langgraph import langgraph_agent
from a2a_celery.settings import Settings
from a2a_celery.testing import AgentTester
from tests.execution.attempts import Task, WorkerDies
from tests.support.agents.booking_agents import NewTurn
from tests.support.agents.script_model import Script, script

SECRET = "secret 4711"
REDACTED = "[redacted]"

Node = Callable[..., Any]


def model_node(model: Script) -> Node:
    async def call(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return call


def chain_of(state: Any = MessagesState, **nodes: Node) -> StateGraph[Any]:
    graph, previous = StateGraph(state), START
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(previous, name)
        previous = name
    return graph


def replace(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(REDACTED, id=state["messages"][-1].id)]}


def remove(state: MessagesState) -> dict[str, Any]:
    return {"messages": [RemoveMessage(id=str(state["messages"][-1].id))]}


def remove_and_add(state: MessagesState) -> dict[str, Any]:
    return {"messages": [RemoveMessage(id=str(state["messages"][-1].id)), AIMessage(REDACTED)]}


def replace_all(state: MessagesState) -> dict[str, Any]:
    return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), HumanMessage("hello"), AIMessage(REDACTED)]}


class Redaction(AgentMiddleware):
    """Middleware that replaces the last message."""

    def after_model(self, state: Any, runtime: Any) -> dict[str, Any]:
        return replace(state)


async def run(graph: Any, state: dict[str, Any] | None = None, **options: Any) -> tuple[list[Any], Exception | None]:
    """Run a turn. Return its events and its failure."""
    events: list[Any] = []
    new_turn = NewTurn({} if state is None else state, Part(text="hello"))
    try:
        async for event in langgraph_agent(graph, **options)(new_turn.turn):
            events.append(event)
    except Exception as failure:
        return events, failure
    return events, None


def contents(events: list[Any]) -> list[list[Any]]:
    """Return the content of each artifact that is not empty: texts, and other parts as JSON."""
    artifacts: dict[str, list[Any]] = {}
    for event in events:
        if isinstance(event, TaskArtifactUpdateEvent):
            parts = artifacts.setdefault(event.artifact.artifact_id, [])
            if not event.append:
                parts.clear()
            for part in event.artifact.parts:
                if parts and part.HasField("text") and isinstance(parts[-1], str):
                    parts[-1] += part.text
                elif part.HasField("text"):
                    parts.append(part.text)
                else:
                    parts.append(MessageToDict(part))
    return [parts for parts in artifacts.values() if parts != [""]]


def contents_of_task(task: Any) -> list[list[Any]]:
    """Return the content of each artifact of a task."""
    return contents([TaskArtifactUpdateEvent(artifact=artifact) for artifact in task.artifacts])


async def contents_of(graph: Any, **options: Any) -> list[list[Any]]:
    events, failure = await run(graph, **options)
    assert failure is None
    return contents(events)


async def passes(state: MessagesState) -> dict[str, Any]:
    return {}


async def refuses(state: MessagesState) -> dict[str, Any]:
    raise Rejected("Not allowed.")


GUARDS = {"replaces": replace, "removes and adds": remove_and_add, "replaces all": replace_all}


@pytest.mark.parametrize("name", GUARDS)
async def test_a_later_node_changes_the_artifact(name: str) -> None:
    assert await contents_of(chain_of(model=model_node(script(SECRET)), guard=GUARDS[name])) == [[REDACTED]]


async def test_a_removed_message_leaves_no_text() -> None:
    assert await contents_of(chain_of(model=model_node(script(SECRET)), guard=remove)) == []


async def test_a_node_of_a_subgraph_changes_the_artifact() -> None:
    inner = chain_of(model=model_node(script(SECRET)), guard=replace).compile()

    assert await contents_of(chain_of(inner=inner)) == [[REDACTED]]
    assert await contents_of(create_agent(script(SECRET), middleware=[Redaction()])) == [[REDACTED]]
    middleware = create_agent(script(SECRET), middleware=[Redaction()], name="agent")
    assert await contents_of(chain_of(agent=middleware, again=passes)) == [[REDACTED]]


@pytest.mark.parametrize("guard", [replace, remove, refuses])
async def test_the_ended_task_does_not_hold_the_withdrawn_text(guard: Node) -> None:
    agent = langgraph_agent(chain_of(model=model_node(script(SECRET)), guard=guard))
    async with AgentTester(agent, "guarded", description="Answers.", session=True) as tester:
        result = await tester.send("hello")
        task = await tester.client.get(result.task_id)
        events = await tester.events(result)

    assert SECRET in "".join(part.text for event in events for part in event.artifact_update.artifact.parts)
    assert SECRET not in result.text + task.text
    assert "4711" not in str(task.raw)


@pytest.mark.parametrize("guard", [*GUARDS, "passes"])
async def test_a_node_changes_the_artifact_after_a_question(guard: str) -> None:
    async def ask(state: MessagesState) -> dict[str, Any]:
        interrupt("Go on?")
        return {}

    hidden = model_node(script("the end", tags=["nostream"]))
    model = model_node(script(SECRET))
    graph = chain_of(hidden=hidden, model=model, ask=ask, guard=GUARDS.get(guard, passes))
    async with AgentTester(langgraph_agent(graph), "guarded", description="Answers.", session=True) as tester:
        question = await tester.send("hello")
        assert contents_of_task(question.raw) == [[SECRET]]
        result = await tester.answer(question, "yes")

    texts = [REDACTED] if guard == "replaces all" else [SECRET if guard == "passes" else REDACTED, "the end"]
    assert sorted(contents_of_task(result.raw)) == sorted([text] for text in texts)


async def test_a_hidden_message_is_sent_at_the_end() -> None:
    hidden = script(SECRET, tags=["nostream"])
    events, _ = await run(chain_of(model=model_node(hidden), guard=replace))

    assert contents(events) == [[REDACTED]]
    assert SECRET not in str(events)

    hidden = script("first answer", "second answer", tags=["nostream"])
    assert await contents_of(chain_of(a=model_node(hidden), b=model_node(hidden))) == [
        ["first answer"],
        ["second answer"],
    ]


async def test_a_message_that_its_node_drops_leaves_no_text() -> None:
    async def try_again(request: Any, handler: Any) -> Any:
        await handler(request)
        return await handler(request)

    async def rewrites(state: MessagesState) -> dict[str, Any]:
        await script(SECRET).ainvoke("")
        return {"messages": [AIMessage(REDACTED)]}

    agent = create_agent(script(SECRET, "good answer"), middleware=[wrap_model_call(try_again)])
    assert await contents_of(agent) == [["good answer"]]
    assert await contents_of(chain_of(model=rewrites)) == [[REDACTED]]


async def test_text_that_no_message_holds_stays() -> None:
    async def joke(state: MessagesState) -> dict[str, Any]:
        await script("a joke").ainvoke("")
        return {}

    assert await contents_of(chain_of(joke=joke, answer=model_node(script("the end")))) == [["a joke"], ["the end"]]


async def test_a_retry_of_a_node_replaces_the_text_of_the_failed_attempt() -> None:
    model = script("lost", AIMessage("half", response_metadata={"error": True}), "good answer")

    async def call(state: MessagesState) -> dict[str, Any]:
        if len(model.messages) == 3:
            await model.ainvoke("")
        return {"messages": [await model.ainvoke("")]}

    graph = StateGraph(MessagesState)
    graph.add_node("node", call, retry_policy=RetryPolicy(initial_interval=0, retry_on=ConnectionError))
    graph.add_edge(START, "node")
    events, failure = await run(graph)

    assert failure is None
    assert contents(events) == [["good answer"]]
    artifact_ids = [event.artifact.artifact_id for event in events if isinstance(event, TaskArtifactUpdateEvent)]
    assert len(set(artifact_ids)) == 2


async def test_a_failed_guard_withdraws_the_message() -> None:
    @after_model
    async def guard(state: Any, runtime: Any) -> None:
        raise Rejected("Not allowed.")

    async def checks(state: MessagesState) -> dict[str, Any]:
        await script(SECRET).ainvoke("")
        raise Rejected("Not allowed.")

    block = PIIMiddleware("email", strategy="block", apply_to_output=True)
    for graph in (
        chain_of(model=model_node(script(SECRET)), guard=refuses),
        create_agent(script(SECRET), middleware=[guard]),
        create_agent(script("write to a@example.com"), middleware=[block]),
        chain_of(agent=create_agent(script(SECRET), middleware=[guard])),
        chain_of(model=checks),
    ):
        events, failure = await run(graph)
        assert contents(events) == []
        assert failure is not None


async def test_a_failure_leaves_accepted_and_unfinished_messages() -> None:
    model = script("accepted", "the last", AIMessage("half a", response_metadata={"error": True}))
    node = model_node(model)
    events, failure = await run(chain_of(first=node, second=node, third=node))

    assert isinstance(failure, ConnectionError)
    assert contents(events) == [["accepted"], ["half a"]]


async def test_a_failure_leaves_the_messages_of_graphs_without_a_failure() -> None:
    inner = chain_of(model=model_node(script("inner"))).compile()

    async def calls(state: MessagesState) -> dict[str, Any]:
        await inner.ainvoke({"messages": []})
        return {}

    events, failure = await run(chain_of(calls=calls, model=model_node(script(SECRET)), guard=refuses))

    assert failure is not None
    assert contents(events) == [["inner"]]


async def test_pii_is_redacted() -> None:
    agent = create_agent(script("write to a@example.com"), middleware=[PIIMiddleware("email", apply_to_output=True)])

    assert await contents_of(agent) == [["write to [REDACTED_EMAIL]"]]


async def test_messages_of_earlier_turns_are_not_withdrawn() -> None:
    """A node that trims the conversation removes messages that no artifact of the turn holds."""

    def trim(state: MessagesState) -> dict[str, Any]:
        return {"messages": [RemoveMessage(id=str(message.id)) for message in state["messages"][:-1]]}

    state: dict[str, Any] = {}
    model = script("one", "two")
    graph = chain_of(trim=trim, model=model_node(model)).compile()
    first, _ = await run(graph, state)
    second, _ = await run(graph, state)

    assert (contents(first), contents(second)) == ([["one"]], [["two"]])


class Answer(BaseModel):
    """Answer of a test."""

    count: int
    name: str = "x"


@dataclasses.dataclass
class Record:
    """Answer of a test."""

    count: int
    name: str = "x"


class Responding(MessagesState):
    """State with a structured response."""

    structured_response: Any


DATA = {"data": {"count": 3.0, "name": "x"}, "mediaType": "application/json"}


@pytest.mark.parametrize("response", [{"count": 3, "name": "x"}, Answer(count=3), Record(3)], ids=type)
async def test_a_structured_response_is_a_data_part(response: Any) -> None:
    graph = chain_of(Responding, node=lambda state: {"structured_response": response})
    events, _ = await run(graph)

    assert contents(events) == [[DATA]]
    assert [event.artifact.name for event in events[:-1]] == ["structured_response"]


async def test_a_structured_response_of_an_agent_is_sent_once() -> None:
    calls = [ToolCall(name="Answer", args={"count": 3}, id="1")]
    by_tool = create_agent(script(AIMessage("", tool_calls=calls)), response_format=ToolStrategy(Answer))
    by_provider = create_agent(script('{"count": 3}'), response_format=ProviderStrategy(Answer))

    assert await contents_of(by_tool) == [[DATA]]
    assert await contents_of(by_provider) == [[DATA]]
    text_too = chain_of(
        Responding, node=lambda state: {"structured_response": Answer(count=3), "messages": [AIMessage("Three.")]}
    )
    assert await contents_of(text_too) == [["Three."], [DATA]]


async def test_a_structured_response_belongs_to_its_turn() -> None:
    values = [{"structured_response": {"n": 1}}, {}, {"structured_response": {"n": 1}}]
    graph = chain_of(Responding, node=lambda state: {**values.pop(0), "messages": [AIMessage("x")]}).compile()
    state: dict[str, Any] = {}
    turns = [contents((await run(graph, state))[0]) for _ in range(3)]

    assert [len(turn) for turn in turns] == [2, 1, 2]
    assert turns[0] == turns[2]


async def test_a_structured_response_without_json_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert await contents_of(chain_of(Responding, node=lambda state: {"structured_response": b"\xff"})) == []
    assert "a structured response of the type bytes is not sent" in caplog.text


NO_MESSAGE = "task t: the graph ended without a message for the client"
IMAGE = {"type": "image", "base64": "AAE=", "mime_type": "image/png"}
IMAGE_PART = {"raw": "AAE=", "mediaType": "image/png"}
CONTENTS: dict[str, tuple[Any, list[Any]]] = {
    "image": ([IMAGE], [IMAGE_PART]),
    "image and texts": (["see ", IMAGE, " there"], ["see ", IMAGE_PART, " there"]),
    "image_url": ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAE="}}], [IMAGE_PART]),
    "data URI": ([{"type": "image", "url": "data:image/png;base64,AAE="}], [IMAGE_PART]),
    "url": (
        [{"type": "image", "url": "https://e.com/x.png"}],
        [{"url": "https://e.com/x.png", "mediaType": "image/png"}],
    ),
    "file": (
        [{"type": "file", "base64": "AAE=", "filename": "a.pdf"}],
        [{"raw": "AAE=", "mediaType": "application/pdf", "filename": "a.pdf"}],
    ),
    "reasoning": ([{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "so"}], ["so"]),
}


@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "returned"])
@pytest.mark.parametrize("name", CONTENTS)
async def test_all_content_of_a_message_is_sent(name: str, streams: bool) -> None:
    content, parts = CONTENTS[name]
    message = AIMessage(content)
    returns: Node = model_node(script(message)) if streams else lambda state: {"messages": [message]}

    assert await contents_of(chain_of(node=returns)) == [parts]


async def test_files_outside_the_state_are_sent() -> None:
    async def draw(state: MessagesState) -> dict[str, Any]:
        await script(AIMessage(["see ", IMAGE])).ainvoke("")
        return {}

    assert await contents_of(chain_of(node=draw)) == [["see ", IMAGE_PART]]


async def test_files_of_a_message_without_a_last_chunk_are_sent() -> None:
    async def draw(state: MessagesState) -> dict[str, Any]:
        async for _ in script(AIMessage([IMAGE])).astream(""):
            break
        return {}

    assert await contents_of(chain_of(node=draw)) == [[IMAGE_PART]]


async def test_files_of_a_message_that_its_node_drops_are_not_sent() -> None:
    async def draw(state: MessagesState) -> dict[str, Any]:
        async for _ in script(AIMessage([IMAGE])).astream(""):
            break
        return {"messages": [AIMessage(REDACTED)]}

    assert await contents_of(chain_of(node=draw)) == [[REDACTED]]


async def test_the_result_of_a_tool_that_returns_directly_is_sent() -> None:
    @tool(return_direct=True)
    def look() -> str:
        """Look."""
        return "42"

    calls = [ToolCall(name="look", args={}, id=name) for name in ("1", "2")]
    agent = create_agent(script(AIMessage("I look.", tool_calls=calls)), [look])

    assert await contents_of(agent) == [["I look."], ["42"], ["42"]]


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (AIMessage([{"type": "image", "file_id": "f"}], id="m"), "message m is not sent: image"),
        (
            AIMessage([{"type": "odd", "x": 1}, {"type": "text", "text": "so"}], id="m"),
            "message m is not sent: odd",
        ),
        (AIMessage([{"type": "image", "base64": "?", "mime_type": "image/png"}], id="m"), "m is not sent: image"),
        (AIMessage("", additional_kwargs={"refusal": "no"}), NO_MESSAGE),
        (HumanMessage("note"), NO_MESSAGE),
    ],
    ids=["file id", "wrong base64", "unknown block", "empty", "no model message"],
)
async def test_content_that_cannot_be_sent_is_logged(message: Any, line: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await contents_of(chain_of(node=lambda state: {"messages": [message]}))

    assert line in caplog.text


class Attempts:
    """Attempts of a turn. The worker dies, or the graph fails, once at each name in `failures`."""

    def __init__(self, task: Task, failures: dict[str, BaseException]) -> None:
        task.settings = Settings(store_url="redis://127.0.0.1/0")
        self._task = task
        self._failures = failures

    def node(self, name: str, node: Node) -> Node:
        """Return a node that fails instead of calling `node`."""

        async def call(state: MessagesState) -> Any:
            if (failure := self._failures.pop(name, None)) is not None:
                raise failure
            result = node(state)
            return await result if inspect.isawaitable(result) else result

        return call

    async def contents(self, graph: Any) -> list[list[Any]]:
        """Run the turn until it completes. Return the content of the task's artifacts."""
        agent = langgraph_agent(graph)

        async def run(turn: Turn) -> bool:
            completes = True
            try:
                async for event in agent(turn):
                    if isinstance(event, TaskArtifactUpdateEvent):
                        artifact, options = event.artifact, {"append": event.append, "last": event.last_chunk}
                        await turn.artifact(
                            list(artifact.parts), artifact_id=artifact.artifact_id, name=artifact.name, **options
                        )
            except ConnectionError:
                completes = False
            for attempt in range(turn.attempt):
                await turn.step(f"end of attempt {attempt}", str)  # recorded after the events
            return completes

        while not await self._task.attempt(run):
            pass
        task = await self._task.scene.seeds.task(self._task.task_id)
        return contents_of_task(task)


@pytest.mark.parametrize("failure", [WorkerDies(), ConnectionError()], ids=["the worker dies", "a node fails"])
@pytest.mark.parametrize("place", ["guard", "after"])
@pytest.mark.parametrize("name", [*GUARDS, "passes"])
async def test_a_later_run_changes_the_artifact(name: str, place: str, failure: BaseException, task: Task) -> None:
    guard = GUARDS.get(name, passes)
    attempts = Attempts(task, {place: failure})
    graph = chain_of(
        model=model_node(script(SECRET)),
        guard=attempts.node("guard", guard),
        after=attempts.node("after", passes),
    )

    assert await attempts.contents(graph) == [[SECRET if name == "passes" else REDACTED]]


async def test_a_later_run_sends_a_hidden_message(task: Task) -> None:
    attempts = Attempts(task, {"guard": WorkerDies()})
    hidden = script(SECRET, "the end", tags=["nostream"])
    graph = chain_of(model=model_node(hidden), guard=attempts.node("guard", replace), answer=model_node(hidden))

    assert await attempts.contents(graph) == [[REDACTED], ["the end"]]


async def test_a_later_run_empties_what_a_node_does_not_send_again(task: Task) -> None:
    attempts = Attempts(task, {"dies": WorkerDies()})
    model = script("one", "two", "good answer")

    async def call(state: MessagesState) -> dict[str, Any]:
        if len(model.messages) == 3:
            await model.ainvoke("")
            await model.ainvoke("")
            await attempts.node("dies", passes)(state)
        return {"messages": [await model.ainvoke("")]}

    assert await attempts.contents(chain_of(node=call)) == [["good answer"]]


async def test_a_later_run_sends_a_structured_response_once(task: Task) -> None:
    attempts = Attempts(task, {"after": WorkerDies()})
    graph = chain_of(
        Responding,
        node=lambda state: {"structured_response": Answer(count=3)},
        after=attempts.node("after", passes),
    )

    assert await attempts.contents(graph) == [[DATA]]
    assert await attempts.contents(graph) == [[DATA]]
