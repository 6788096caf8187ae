"""Conversations, events and final statuses of LlamaIndex workflows, and workflows that cannot be agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from a2a.helpers import new_data_part
from a2a.types import Part, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from google.protobuf.json_format import MessageToDict
from llama_index.core.agent.workflow import AgentStream, AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.agent.workflow.workflow_events import AgentWorkflowStartEvent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ChatResponseAsyncGen, ToolCallBlock
from llama_index.core.llms.callbacks import llm_chat_callback
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import Memory
from opentelemetry import trace
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import create_async_engine
from workflows import Context, Workflow, step
from workflows.events import Event, HumanResponseEvent, StartEvent, StopEvent
from workflows.plugins.basic import BasicRuntime
from workflows.runtime.runtime_decorators import BaseRuntimeDecorator

from a2a_celery import ConfigError, Rejected
from a2a_celery.errors import SessionError
from a2a_celery.execution.events.activities import CURRENT_EXECUTION, Execution
from a2a_celery.frameworks.llamaindex import MEMORY, llamaindex_agent
from a2a_celery.lifecycle.execution import ExecutionState
from a2a_celery.lifecycle.own_metadata import USAGE, own_metadata
from a2a_celery.lifecycle.states import COMPLETED, FAILED
from tests.support.agents.booking_agents import NewTurn


class Model(MockFunctionCallingLLM):
    """Model that streams the texts of the user, or calls the tool that the last text names after "call "."""

    raw: dict[str, Any] = Field(default_factory=dict)
    messages_seen: list[Any] = Field(default_factory=list)

    @llm_chat_callback()
    async def astream_chat(self, messages: Any, **kwargs: Any) -> ChatResponseAsyncGen:
        self.messages_seen[:] = messages
        texts = [message.content or "" for message in messages if message.role == "user"]
        tool = texts[-1].partition("call ")[2]
        if "fail" in texts[-1]:
            raise ConnectionError("no model")

        async def chunks() -> ChatResponseAsyncGen:
            if tool and messages[-1].role == "user":
                call = ToolCallBlock(tool_call_id="c", tool_name=tool, tool_kwargs={"to_agent": "other", "reason": ""})
                call.tool_kwargs = call.tool_kwargs if tool == "handoff" else {}
                yield ChatResponse(message=ChatMessage(role="assistant", blocks=[call]))
                return
            text = ""
            for word in ("You", " said: ", "; ".join(texts)):
                text += word
                message = ChatMessage(role="assistant", content=text)
                yield ChatResponse(message=message, delta=word, raw={"model": "m", **self.raw})

        return chunks()


def agent(raw: dict[str, Any] | None = None, **options: Any) -> FunctionAgent:
    return FunctionAgent(llm=Model(raw=raw or {}), **options)


async def events_of(workflow: Any, state: dict[str, Any] | None = None, *parts: Part, **options: Any) -> list[Any]:
    """Run a turn of the workflow's agent, and return its events."""
    new_turn = NewTurn({} if state is None else state, *(parts or [Part(text="hello")]))
    return [event async for event in llamaindex_agent(workflow, **options)(new_turn.turn)]


def artifacts(events: list[Any]) -> dict[str, Any]:
    """Return the contents of the artifacts by their names, in order."""
    contents: dict[str, list[Any]] = {}
    for event in events:
        if isinstance(event, TaskArtifactUpdateEvent):
            new = [part.text or MessageToDict(part).get("data", "") for part in event.artifact.parts]
            contents[event.artifact.artifact_id] = [*contents.get(event.artifact.artifact_id, []), *new]
    return {
        key: "".join(parts) if all(isinstance(part, str) for part in parts) else parts[0]
        for key, parts in contents.items()
    }


def texts(events: list[Any]) -> list[Any]:
    return list(artifacts(events).values())


async def test_tokens_are_chunks_of_one_artifact() -> None:
    events = await events_of(agent(name="clerk"))
    chunks = [event for event in events if isinstance(event, TaskArtifactUpdateEvent)]

    assert ["".join(part.text for part in chunk.artifact.parts) for chunk in chunks] == ["You", " said: ", "hello", ""]
    assert [chunk.append for chunk in chunks] == [False, True, True, True]
    assert [chunk.last_chunk for chunk in chunks] == [False, False, False, True]
    assert chunks[0].artifact.name == "clerk"


async def test_a_conversation_goes_on_with_the_session() -> None:
    state: dict[str, Any] = {}
    for n in range(3):
        events = await events_of(agent(), state, Part(text=str(n)))

    assert texts(events) == ["You said: 0; 1; 2"]


async def test_an_agent_after_a_handoff_answers_the_next_turn() -> None:
    def agents() -> AgentWorkflow:
        names = [("door", "Opens."), ("other", "Knows.")]
        members = [agent(name=name, description=text) for name, text in names]
        return AgentWorkflow(agents=members, root_agent="door")

    state: dict[str, Any] = {}
    events = await events_of(agents(), state, Part(text="call handoff"))
    second_events = await events_of(agents(), state)

    names = [event.artifact.name for event in (*events, *second_events) if isinstance(event, TaskArtifactUpdateEvent)]
    assert {name for name in names if name} == {"other"}
    assert texts(second_events) == ["You said: call handoff; hello"]


class Progress(Event):
    """Event with one text."""

    msg: str


class Done(Event):
    """Event with a number."""

    done: float


class Calls(Workflow):
    """Workflow with a step that returns the result of `function`."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        super().__init__(**options)
        self.function = function

    @step
    async def say(self, ctx: Context, ev: StartEvent) -> StopEvent:
        result = self.function(ctx, ev)
        return StopEvent(result=await result if asyncio.iscoroutine(result) else result)


class BlockingCalls(Calls):
    """Workflow whose step is a plain function."""

    @step
    def say(self, ctx: Context, ev: StartEvent) -> StopEvent:
        return StopEvent(result=self.function(ctx, ev))


class Place(BaseModel):
    """Pydantic model that a workflow returns."""

    name: str


@pytest.mark.parametrize(
    ("result", "contents"),
    [("a", ["a"]), ({"a": 1}, [{"a": 1.0}]), (Place(name="x"), [{"name": "x"}]), ([1], [[1.0]]), (None, [])],
)
async def test_the_output_is_an_artifact(result: Any, contents: list[Any]) -> None:
    assert texts(await events_of(Calls(lambda ctx, ev: result))) == contents


async def test_a_structured_output_is_data() -> None:
    structured_agent = agent(structured_output_fn=lambda messages: {"count": len(messages)})

    assert texts(await events_of(structured_agent)) == ["You said: hello", {"count": 2.0}]


async def test_events_of_the_stream_are_status_messages() -> None:
    def write(ctx: Context, ev: StartEvent) -> None:
        for event in (Progress(msg="half"), Done(done=0.5), Event(free="text")):
            ctx.write_event_to_stream(event)

    new_turn = NewTurn({}, Part(text="hello"))
    _ = [event async for event in llamaindex_agent(Calls(write))(new_turn.turn)]

    assert new_turn.said == ["half", [{"data": {"event": "Done", "done": 0.5}}], "text"]


async def test_steps_may_stream_text() -> None:
    def write(ctx: Context, ev: StartEvent) -> str:
        for delta in ("a", "b"):
            ctx.write_event_to_stream(AgentStream(delta=delta, response="", current_agent_name="writer"))
        return "ab"

    assert texts(await events_of(Calls(write))) == ["ab"]


@pytest.mark.filterwarnings("ignore:is_running called")  # by LlamaIndex
async def test_thoughts_of_a_react_agent_are_left_out() -> None:
    class Thinks(Model):
        @llm_chat_callback()
        async def astream_chat(self, messages: Any, **kwargs: Any) -> ChatResponseAsyncGen:
            async def chunks() -> ChatResponseAsyncGen:
                text = ""
                for word in ("Thou", "ght: I can answer without using any more tools.\n", "Answer: for", "ty-two"):
                    text += word
                    yield ChatResponse(message=ChatMessage(role="assistant", content=text), delta=word)

            return chunks()

    assert texts(await events_of(ReActAgent(llm=Thinks()))) == ["forty-two"]


async def test_the_end_has_the_tokens_and_the_steps_of_the_run() -> None:
    async def look() -> str:
        """Look."""
        return "seen"

    execution = Execution()
    execution.transition(ExecutionState.INITIALIZING)
    CURRENT_EXECUTION.set(execution)
    raw = {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    *_, end = await events_of(agent(raw, tools=[look]), None, Part(text="call look"))

    assert MessageToDict(end.metadata) == own_metadata({USAGE: {"m": {"inputTokens": 3, "outputTokens": 2}}})
    steps = [f"{transition.after} {transition.detail.get('tool', '')}".strip() for transition in execution.history[1:]]
    assert steps == ["MODEL_CALL", "TOOL_EXECUTION look", "MODEL_CALL"]
    assert not execution.has_open_activities


async def test_a_call_that_fails_ends_its_step() -> None:
    execution = Execution()
    execution.transition(ExecutionState.INITIALIZING)
    CURRENT_EXECUTION.set(execution)
    state: dict[str, Any] = {}

    with pytest.raises(ConnectionError):
        await events_of(agent(), state, Part(text="fail"))

    assert (execution.has_open_activities, state) == (False, {})


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({"finish_reason": "stop"}, None),
        ({"stop_reason": "end_turn"}, None),
        ({"choices": [{"finish_reason": "STOP"}]}, None),
        ({"choices": [{"finish_reason": "length"}]}, "length"),
        ({"delta": {"stop_reason": "max_tokens"}}, "max_tokens"),
    ],
)
async def test_a_model_that_stops_early_has_the_reason(raw: dict[str, Any], reason: str | None) -> None:
    CURRENT_EXECUTION.set(Execution())
    *_, end = await events_of(agent(raw))
    *_, failure = await events_of(agent(raw), fail_on=["length", "max_tokens"])

    assert MessageToDict(end.metadata) == ({} if reason is None else own_metadata({"stopReason": reason}))
    assert end.status.state == COMPLETED
    assert failure.status.state == (COMPLETED if reason is None else FAILED)


async def test_a_cancel_stops_the_workflow() -> None:
    began, has_stopped = asyncio.Event(), asyncio.Event()

    async def wait(ctx: Context, ev: StartEvent) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            has_stopped.set()

    state: dict[str, Any] = {}
    running = asyncio.create_task(events_of(Calls(wait), state))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert has_stopped.is_set()
    assert state == {}


async def test_a_turn_that_is_stopped_between_chunks_stops_the_workflow() -> None:
    has_stopped = asyncio.Event()

    async def write(ctx: Context, ev: StartEvent) -> None:
        ctx.write_event_to_stream(AgentStream(delta="a", response="a", current_agent_name="writer"))
        try:
            await asyncio.Event().wait()
        finally:
            has_stopped.set()

    events = llamaindex_agent(Calls(write))(NewTurn({}, Part(text="x")).turn)
    await anext(events)
    await events.aclose()

    assert has_stopped.is_set()


@pytest.mark.parametrize("workflow", [Calls, BlockingCalls])
async def test_a_span_of_a_step_is_below_the_span_of_the_run(workflow: Any) -> None:
    spans = []
    run = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False))
    with trace.use_span(run):
        await events_of(workflow(lambda ctx, ev: spans.append(trace.get_current_span())))

    assert spans == [run]


async def test_all_parts_of_a_message_reach_an_agent() -> None:
    workflow_agent = agent()
    image = Part(raw=b"\x00", media_type="image/png")
    url_parts = [Part(url="https://e.com/x", media_type=f"{kind}/x") for kind in ("audio", "video", "text")]
    await events_of(workflow_agent, None, Part(text="look"), new_data_part({"n": 1}), image, *url_parts)

    [message] = workflow_agent.llm.messages_seen
    blocks = [block.model_dump(exclude_none=True, mode="json") for block in message.blocks]
    assert blocks[:3] == [
        {"block_type": "text", "text": "look"},
        {"block_type": "text", "text": '{"n": 1}'},
        {"block_type": "image", "image": "AA==", "image_mimetype": "image/png"},
    ]
    assert [(block["block_type"], block["url"]) for block in blocks[3:]] == [
        (kind, "https://e.com/x") for kind in ("audio", "video", "document")
    ]


class Trip(StartEvent):
    """Start event with the fields of a trip."""

    city: str
    days: int = 1


class TravelWorkflow(Workflow):
    """Workflow whose start event has fields."""

    @step
    async def go(self, ctx: Context, ev: Trip) -> StopEvent:
        return StopEvent(result=f"{ev.city} {ev.days}")


async def test_the_message_is_the_start_event_of_a_workflow() -> None:
    workflow = Calls(lambda ctx, ev: dict(ev.items()))

    assert texts(await events_of(workflow, None, Part(text="hi"), new_data_part({"n": 2}))) == [
        {"user_msg": "hi", "n": 2.0}
    ]
    assert texts(await events_of(TravelWorkflow(), None, Part(text="Rome"), new_data_part({"days": 2}))) == ["Rome 2"]
    assert texts(await events_of(TravelWorkflow(), start_event=lambda turn: Trip(city=turn.text))) == ["hello 1"]
    with pytest.raises(Rejected, match="reads text and data parts"):
        await events_of(workflow, None, Part(raw=b"\x00"))


@pytest.mark.filterwarnings("ignore:Skipping serialization")
async def test_a_memory_that_cannot_be_stored_fails_the_turn() -> None:
    engine = create_async_engine("sqlite+aiosqlite:///:memory:")

    def start(turn: Any) -> StartEvent:
        return AgentWorkflowStartEvent(user_msg=turn.text, memory=Memory.from_defaults(async_engine=engine))

    try:
        with pytest.raises(SessionError, match="memory of the agent cannot be stored"):
            await events_of(agent(), start_event=start)
    finally:
        await engine.dispose()


async def test_a_state_that_cannot_be_stored_fails_the_turn() -> None:
    async def remember(ctx: Context, ev: StartEvent) -> None:
        await ctx.store.set("value", object())

    with pytest.raises(SessionError, match="state of the workflow cannot be stored"):
        await events_of(Calls(remember))


class Fare(BaseModel):
    """Typed state of a workflow."""

    paid: int = 0


class PaymentWorkflow(Workflow):
    """Workflow with a typed state."""

    @step
    async def pay(self, ctx: Context[Fare], ev: StartEvent) -> StopEvent:
        async with ctx.store.edit_state() as state:
            state.paid += 1
        return StopEvent(result=str((await ctx.store.get_state()).paid))


async def test_a_typed_state_is_stored() -> None:
    state: dict[str, Any] = {}
    results = [texts(await events_of(PaymentWorkflow(), state)) for _ in range(3)]

    assert results == [["1"], ["2"], ["3"]]
    assert MEMORY in state


async def test_runs_without_the_adapter_are_unchanged() -> None:
    workflow = Calls(lambda ctx, ev: "free")
    await events_of(workflow)

    handler = workflow.run()
    events = [type(event) async for event in handler.stream_events()]
    assert (await handler, events) == ("free", [StopEvent])


class UnfinishedWorkflow(Workflow):
    """Workflow with a step for an event that no step returns."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> StopEvent:
        return StopEvent()

    @step
    async def never(self, ctx: Context, ev: Done) -> StopEvent:
        return StopEvent()


hidden = type("Hidden", (HumanResponseEvent,), {})
"""Event that another worker cannot find by its name."""


class Hides(Workflow):
    """Workflow with an event class that is not at the top level of a module."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> StopEvent:
        return StopEvent()

    @step
    async def answer(self, ctx: Context, ev: hidden) -> StopEvent:  # type: ignore[valid-type]
        return StopEvent()


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no workflow": (lambda: "workflow", "pass a Workflow, or a function"),
    "a class": (lambda: TravelWorkflow, "pass a Workflow, or a function"),
    "invalid": (UnfinishedWorkflow, "the workflow is invalid: .*Done"),
    "local event": (Hides, "the event Hidden is not at the top level of a module"),
    "runtime": (lambda: PaymentWorkflow(runtime=BaseRuntimeDecorator(BasicRuntime())), "create it without a runtime"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_workflow_that_cannot_be_an_agent_is_refused(name: str) -> None:
    make, sentence = REFUSED[name]
    with pytest.raises(ConfigError, match=sentence):
        llamaindex_agent(make())


async def test_a_workflow_that_has_run_is_refused() -> None:
    workflow = PaymentWorkflow()
    await workflow.run()

    with pytest.raises(ConfigError, match="has already run in this process"):
        llamaindex_agent(workflow)


def test_reasons_that_are_no_list_are_refused() -> None:
    with pytest.raises(ConfigError, match="fail_on"):
        llamaindex_agent(PaymentWorkflow(), fail_on="length")


async def test_a_workflow_of_a_function_is_checked_in_its_run() -> None:
    with pytest.raises(ConfigError, match="is not a Workflow"):
        await events_of(lambda turn: "workflow")
    assert isinstance((await events_of(lambda turn: TravelWorkflow()))[-1], TaskStatusUpdateEvent)
