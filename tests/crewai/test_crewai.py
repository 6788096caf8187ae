"""CrewAI crews: their conversations, artifacts, questions, usage and limits, and crews that are refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from a2a.helpers import new_data_part
from a2a.types import Part, TaskState
from crewai import Agent, Crew, Task
from crewai.flow.flow import Flow
from crewai.memory.unified_memory import Memory
from crewai.state.checkpoint_config import CheckpointConfig
from crewai.tools import tool
from google.protobuf.json_format import MessageToDict
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from pydantic import BaseModel

from a2a_celery import ConfigError, Turn
from a2a_celery.client import Result
from a2a_celery.frameworks.crewai import crewai_agent
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, REJECTED
from a2a_celery.testing import AgentTester
from tests.support.agents.booking_agents import turn
from workers import with_crewai

from .script import Script, crew_of, script, user_texts


def agent_tester(agent: Any, **options: Any) -> AgentTester:
    return AgentTester(agent, session=True, **options)


def texts(result: Result) -> dict[str, str]:
    """Return the texts of the artifacts by their names."""
    return {artifact.name: "".join(part.text for part in artifact.parts) for artifact in result.raw.artifacts}


def state(result: Result) -> TaskState:
    return result.raw.status.state


async def test_the_crew_receives_the_conversation_of_the_context() -> None:
    async with agent_tester(with_crewai.clerk) as agent:
        first = await agent.send("one")
        second = await agent.send("two", context_id=first.context_id)
        other = await agent.send("three")

    assert [result.text for result in (first, second, other)] == [
        "You said: one.",
        "You said: one; two.",
        "You said: three.",
    ]


@pytest.mark.parametrize(("history", "expected"), [(2, "two; three"), (0, "three")])
async def test_a_crew_receives_so_many_earlier_messages(history: int, expected: str) -> None:
    model = Script(model="script", answers=lambda messages: "; ".join(user_texts(messages)))
    async with agent_tester(crewai_agent(crew_of(model), history=history)) as agent:
        result = await agent.send("one")
        for text in ("two", "three"):
            result = await agent.send(text, context_id=result.context_id)

    assert result.text == expected


async def test_the_text_of_a_task_is_streamed() -> None:
    async with agent_tester(crewai_agent(crew_of(script("one two three")))) as agent:
        result = await agent.send("x")
        updates = [event.artifact_update for event in await agent.events(result) if event.HasField("artifact_update")]

    chunks = ["".join(part.text for part in update.artifact.parts) for update in updates]
    assert chunks == ["one ", "two ", "three", ""]
    assert [update.append for update in updates] == [False, True, True, True]
    assert [update.last_chunk for update in updates] == [False, False, False, True]


async def test_each_task_has_an_artifact_with_its_output() -> None:
    @tool("look")
    def look(at: str) -> str:
        """Look at something."""
        return f"seen {at}"

    writer = Agent(role="writer", goal="Write.", backstory="-", tools=[look], llm=script("Let me look.", "unused"))
    calls = Script(model="script", answers=[[("look", {"at": "a"})], "found"])
    finder = Agent(role="finder", goal="Find.", backstory="-", tools=[look], llm=calls)
    tasks = [
        Task(description="Find {what}.", expected_output="It.", agent=finder, name="find"),
        Task(description="Write.", expected_output="It.", agent=writer, name="write"),
    ]
    crew = Crew(agents=[finder, writer], tasks=tasks, tracing=False)
    async with agent_tester(crewai_agent(crew)) as agent:
        result = await agent.send(new_data_part({"what": "it"}))

    assert {name: text.strip() for name, text in texts(result).items()} == {"find": "found", "write": "Let me look."}


async def test_thoughts_are_not_sent() -> None:
    @tool("look")
    def look(at: str) -> str:
        """Look at something."""
        return f"seen {at}"

    model = script(
        'Thought: I look.\nAction: look\nAction Input: {"at": "a"}',
        "Thought: done\nFinal Answer: It is a",
        is_native=False,
    )
    async with agent_tester(crewai_agent(crew_of(model, look))) as agent:
        result = await agent.send("x")
        events = str(await agent.events(result))

    assert texts(result) == {"response": "It is a"}
    assert "Thought" not in events
    assert model.calls == [0, 1]


class Place(BaseModel):
    """Pydantic model for the output of a task."""

    name: str


async def test_an_output_that_is_no_text_is_data() -> None:
    crew = crew_of(script('{"name": "a"}'), task={"output_pydantic": Place})
    async with agent_tester(crewai_agent(crew)) as agent:
        result = await agent.send("x")

    [artifact] = result.raw.artifacts
    assert [MessageToDict(part.data) for part in artifact.parts] == [{"name": "a"}]


async def test_feedback_is_a_question_until_the_client_accepts_the_result() -> None:
    model = Script(model="script", answers=lambda messages: "better" if "shorter" in str(messages) else "good")
    crew = crew_of(model, task={"human_input": True, "name": "essay"})
    async with agent_tester(crewai_agent(crew)) as agent:
        question = await agent.send("write")
        assert (state(question), question.text.partition("\n")[0]) == (INPUT_REQUIRED, "good")
        assert MessageToDict(question.raw.status.message.parts[-1].data) == {
            "taskOutput": {"task": "essay", "agent": "worker", "output": "good"}
        }
        question = await agent.answer(question, "shorter")
        assert (state(question), question.text.partition("\n")[0]) == (INPUT_REQUIRED, "better")
        result = await agent.answer(question, "Yes")

    assert (state(result), texts(result)) == (COMPLETED, {"essay": "better"})
    assert len(model.calls) == 2, "each run but the first receives the recorded answers"


async def test_inputs_that_are_missing_are_asked_for() -> None:
    model = Script(model="script", answers=lambda messages: str(messages[-1]["content"]).strip().partition("\n")[0])
    crew = crew_of(model, task={"description": "{message}: {city} on {day}, {count}"})
    async with agent_tester(crewai_agent(crew)) as agent:
        question = await agent.send([Part(text="weather"), new_data_part({"count": 2})])
        assert (state(question), "What is the city?" in question.text) == (INPUT_REQUIRED, True)
        result = await agent.answer(question, {"city": "Paris", "day": "Monday"})

    assert "Paris on Monday, 2" in result.text


async def test_braces_that_are_not_placeholders_are_no_inputs() -> None:
    task = {"description": '{"topic": "{topic}"}', "expected_output": 'JSON such as {"title": "…", "score": 1}.'}
    async with agent_tester(crewai_agent(crew_of(script("done"), task=task))) as agent:
        question = await agent.send("hi")
        assert (state(question), question.text.count("What is the")) == (INPUT_REQUIRED, 1)
        result = await agent.answer(question, {"topic": "tea"})

    assert (state(result), result.text) == (COMPLETED, "done")


def add_today(inputs: dict[str, Any]) -> dict[str, Any]:
    return {**inputs, "today": "1 May"}


async def test_the_inputs_of_a_callback_are_not_asked_for() -> None:
    crew = crew_of(script("done"), task={"description": "Answer {message} on {today}."})
    crew.before_kickoff_callbacks = [add_today]
    async with agent_tester(crewai_agent(crew)) as agent:
        results = [await agent.send("hi") for _ in range(2)]

    assert [(state(result), result.text) for result in results] == [(COMPLETED, "done")] * 2


async def test_a_message_with_a_file_is_rejected() -> None:
    async with agent_tester(crewai_agent(crew_of(script("x")))) as agent:
        result = await agent.send(Part(raw=b"x", media_type="text/plain"))

    assert state(result) == REJECTED


class HangingModel(Script):
    """Model that streams until it is stopped."""

    has_started: Any = None
    has_stopped: Any = None

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        """Stream empty chunks."""
        self.has_started.set()
        try:
            while not threading.Event().wait(0.01):
                with_crewai.StandIn(model="stand-in")._send("", kwargs)
        finally:
            self.has_stopped.set()


async def test_a_cancel_stops_a_model_between_two_chunks() -> None:
    model = HangingModel(model="hanging", has_started=threading.Event(), has_stopped=threading.Event())
    async with agent_tester(crewai_agent(crew_of(model))) as agent:
        submission = await agent.submit("x")
        await asyncio.to_thread(model.has_started.wait, 60)
        result = await agent.cancel(submission)
        assert state(result) == CANCELED
        await asyncio.to_thread(model.has_stopped.wait, 60)


async def test_a_cancel_stops_a_crew_after_a_call_that_cannot_be_stopped() -> None:
    is_called, may_return, has_ended = threading.Event(), threading.Event(), asyncio.Event()

    @tool("look")
    def look(at: str) -> str:
        """Look at something, which cannot be stopped."""
        is_called.set()
        may_return.wait(60)
        return at

    model = script([("look", {"at": "a"})], "never")
    chunks = crewai_agent(crew_of(model, look))(turn({}, Part(text="x")))

    async def run() -> None:
        try:
            async for _ in chunks:
                pass
        finally:
            has_ended.set()

    running = asyncio.create_task(run())
    await asyncio.to_thread(is_called.wait, 60)
    running.cancel()
    await asyncio.wait({running}, timeout=0.1)
    assert not has_ended.is_set(), "the tool is still being executed"
    may_return.set()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert model.calls == [0]


async def test_the_tokens_of_a_turn_are_in_its_metadata() -> None:
    @tool("look")
    def look(at: str) -> str:
        """Look at something."""
        return at

    crew = crew_of(script([("look", {"at": "a"})], "done"), look)
    async with agent_tester(crewai_agent(crew)) as agent:
        results = [await agent.send("x"), await agent.send("y")]

    for result in results:
        usage = MessageToDict(result.raw.metadata)["a2a_celery/usage"]
        assert usage == {"script": {"inputTokens": 20, "outputTokens": 4}}


@pytest.mark.parametrize(("fail_on", "expected"), [((), COMPLETED), (["length"], FAILED)])
async def test_a_model_that_stopped_early_is_reported(fail_on: list[str], expected: TaskState) -> None:
    async with agent_tester(crewai_agent(crew_of(script("x", finish_reason="length")), fail_on=fail_on)) as agent:
        result = await agent.send("x")

    assert state(result) == expected
    assert MessageToDict(result.raw.metadata)["a2a_celery/stopReason"] == "length"


GUARDRAIL = {"guardrail": lambda output: ("secret" not in output.raw, output.raw), "guardrail_max_retries": 1}
"""Options of a task whose guardrail refuses secrets."""


@pytest.mark.parametrize(
    ("answers", "expected"),
    [(["secret one", "secret two"], (FAILED, "")), (["secret one", "good"], (COMPLETED, "good"))],
    ids=["each output", "the first output"],
)
async def test_text_that_a_guardrail_refuses_is_withdrawn(answers: list[str], expected: tuple[TaskState, str]) -> None:
    texts_of_model = iter(answers)
    model = Script(model="script", answers=lambda messages: next(texts_of_model))
    crew = crew_of(model, task=GUARDRAIL)
    async with agent_tester(crewai_agent(crew)) as agent:
        result = await agent.send("x")

    assert (state(result), texts(result)["response"]) == expected
    assert "secret" not in str(result.raw)


async def test_text_that_a_guardrail_refuses_is_withdrawn_before_a_question() -> None:
    answers = iter(["secret", [("ask", {"what": "sure?"})]])
    model = Script(model="script", answers=lambda messages: next(answers))

    def crew(turn: Turn) -> Crew:
        @tool("ask")
        def ask(what: str) -> str:
            """Ask the client."""
            return str(turn.blocking.ask(what))

        return crew_of(model, ask, task=GUARDRAIL)

    async with agent_tester(crewai_agent(crew)) as agent:
        result = await agent.send("x")

    assert (state(result), texts(result)) == (INPUT_REQUIRED, {"response": ""})


async def test_a_turn_that_fails_leaves_the_conversation() -> None:
    async with agent_tester(with_crewai.clerk) as agent:
        first = await agent.send("one")
        failure = await agent.send("fail", context_id=first.context_id)
        last = await agent.send("two", context_id=first.context_id)

    assert (state(failure), last.text) == (FAILED, "You said: one; two.")


async def test_calls_are_steps_of_the_execution() -> None:
    steps: list[str] = []
    clerk = with_crewai.clerk

    async def run(turn: Turn) -> Any:
        try:
            async for event in clerk(turn):
                yield event
        finally:
            steps[:] = [
                f"{transition.after} {transition.detail.get('tool', '')}".strip()
                for transition in turn.execution.history
            ]

    async with agent_tester(run) as agent:
        question = await agent.send("book a table")
        assert steps == ["INITIALIZING", "MODEL_CALL", "TOOL_EXECUTION book"]
        await agent.answer(question, True)

    assert steps.count("MODEL_CALL") == 2, "the first call is recorded"
    assert steps.count("TOOL_EXECUTION book") == 2, "the tool that asked is called again"


async def test_tools_see_the_current_span() -> None:
    tool_spans: list[trace.Span] = []

    @tool("look")
    def look(at: str) -> str:
        """Look at something."""
        tool_spans.append(trace.get_current_span())
        return at

    crew = crewai_agent(crew_of(script([("look", {"at": "a"})], "done"), look))
    spans: list[trace.Span] = []

    async def run(turn: Turn) -> Any:
        with TracerProvider().get_tracer("test").start_as_current_span("run") as span:
            spans.append(span)
            async for event in crew(turn):
                yield event

    async with agent_tester(run) as agent:
        await agent.send("x")

    assert [span.get_span_context().trace_id for span in tool_spans] == [
        span.get_span_context().trace_id for span in spans
    ]


async def test_a_crew_is_shared_by_runs_and_stays_unchanged() -> None:
    barrier = threading.Barrier(2, timeout=60)
    model = Script(
        model="script",
        answers=lambda messages: user_texts(messages)[-1],
        on_call=lambda number: barrier.wait() and None,
    )
    crew = crew_of(model, task={"description": "Say {message}."})
    config_before = crew.model_dump(exclude={"agents"}), crew.agents[0].llm, crew.tasks[0].description
    async with agent_tester(crewai_agent(crew)) as agent:
        results = await asyncio.gather(agent.send("one"), agent.send("two"))

    assert sorted(result.text for result in results) == ["one", "two"]
    assert (crew.model_dump(exclude={"agents"}), crew.agents[0].llm, crew.tasks[0].description) == config_before


def with_option(**options: Any) -> Callable[[], Any]:
    return lambda: crew_of(script("x"), **options)


def with_memory() -> Crew:
    crew = crew_of(script("x"))
    crew.memory = True  # Crew(memory=True) opens the files
    return crew


def with_memory_of_an_agent() -> Crew:
    crew = crew_of(script("x"))
    crew.agents[0].memory = Memory.model_construct(storage="lancedb")  # as Agent(memory=True), without the files
    return crew


@pytest.mark.parametrize(
    ("crew", "reason"),
    [
        (lambda: "crew", r"pass a crewai\.Crew"),
        (lambda: Flow, r"pass a crewai\.Crew"),
        (with_memory, "memory=True: .* all callers"),
        (with_memory_of_an_agent, "memory=True"),
        (with_option(checkpoint=CheckpointConfig()), "checkpoint: remove it"),
        (with_option(task={"async_execution": True}), "async_execution"),
    ],
)
def test_what_cannot_be_had_is_refused(crew: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        crewai_agent(crew())


async def test_a_crew_of_a_function_is_checked_in_its_run() -> None:
    async with agent_tester(crewai_agent(lambda turn: with_memory())) as agent:
        assert state(await agent.send("x")) == FAILED
