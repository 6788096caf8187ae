"""LlamaIndex workflows over several runs of a turn. Each run continues after the last finished step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from a2a.types import TaskArtifactUpdateEvent
from google.protobuf.json_format import MessageToDict
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ChatResponseAsyncGen, ToolCallBlock
from llama_index.core.llms.callbacks import llm_chat_callback
from llama_index.core.llms.mock import MockFunctionCallingLLM
from workflows import Context, Workflow, step
from workflows.decorators import catch_error
from workflows.events import Event, StartEvent, StepFailedEvent, StopEvent
from workflows.retry_policy import retry_policy, stop_after_attempt, wait_fixed

from a2a_celery import Turn, current_step_key
from a2a_celery.errors import SessionError, StepsChanged
from a2a_celery.execution.events.activities import CURRENT_EXECUTION, Execution
from a2a_celery.frameworks.llamaindex import llamaindex_agent
from a2a_celery.lifecycle.own_metadata import USAGE, own_metadata
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from tests.execution.attempts import Task, WorkerDies

SETTINGS = Settings(store_url="redis://127.0.0.1/0")


@pytest.fixture
def task(task: Task) -> Task:
    task.settings = SETTINGS
    return task


class Work:
    """Record of the calls in all attempts. The worker dies in the call `dies_in`."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.dies_in = ""
        self.turn: Any = None
        self.keys: set[str] = set()

    def call(self, name: str) -> str:
        self.calls.append(name)
        if name == self.dies_in:
            raise WorkerDies
        return name

    def runner(self, make: Callable[[], Workflow]) -> Callable[[Turn], Any]:
        """Return a function that runs the workflow and returns the text of its last artifact."""

        async def run(turn: Turn) -> str:
            CURRENT_EXECUTION.set(Execution())
            self.turn = turn
            agent = llamaindex_agent(lambda _: make())
            texts: dict[str, str] = {}
            async for event in agent(turn):
                if isinstance(event, TaskArtifactUpdateEvent):
                    text = "".join(part.text for part in event.artifact.parts)
                    key = event.artifact.artifact_id
                    texts[key] = (texts.pop(key, "") if event.append else "") + text
                else:
                    self.end = event
            return ["", *texts.values()][-1]

        return run


class First(Event):
    """Event after the first step."""


class Second(Event):
    """Event after the second step."""


class Chain(Workflow):
    """Workflow of three sequential steps that write to the state."""

    def __init__(self, work: Work, **options: Any) -> None:
        super().__init__(**options)
        self.work = work

    async def note(self, ctx: Context, name: str) -> None:
        self.work.call(name)
        await ctx.store.set("seen", [*await ctx.store.get("seen", default=[]), name])

    @step
    async def a(self, ctx: Context, ev: StartEvent) -> First:
        await self.note(ctx, "a")
        return First()

    @step
    async def b(self, ctx: Context, ev: First) -> Second:
        await self.note(ctx, "b")
        return Second()

    @step
    async def c(self, ctx: Context, ev: Second) -> StopEvent:
        await self.note(ctx, "c")
        return StopEvent(result=", ".join(await ctx.store.get("seen")))


async def test_each_step_is_executed_once_wherever_the_worker_dies(task: Task) -> None:
    work = Work()
    run = work.runner(lambda: Chain(work))
    for work.dies_in in ("a", "b", "c"):
        assert await task.attempt(run) is None
    work.dies_in = ""

    assert await task.attempt(run) == "a, b, c"
    assert work.calls == ["a", "a", "b", "b", "c", "c"]


async def test_a_turn_whose_last_step_has_finished_is_not_begun_again(task: Task) -> None:
    work = Work()
    run = work.runner(lambda: Chain(work))

    async def dies_at_the_end(turn: Turn) -> None:
        await run(turn)
        raise WorkerDies

    assert await task.attempt(dies_at_the_end) is None
    assert await task.attempt(run) == "a, b, c"
    assert work.calls == ["a", "b", "c"]
    assert work.turn.session.state["memory"]["state_data"]["_data"]["seen"] == '["a", "b", "c"]'


class Part(Event):
    """Part of the work, with the name of its call."""

    name: str


class Done(Event):
    """Finished part."""

    name: str


class Parallel(Workflow):
    """Workflow whose steps are executed at the same time."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    @step
    async def split(self, ctx: Context, ev: StartEvent) -> Part | None:
        for name in ("x", "y", "z"):
            ctx.send_event(Part(name=name))
        return None

    @step
    async def part(self, ctx: Context, ev: Part) -> Done:
        async def act() -> str:
            self.work.keys.add(current_step_key())
            self.work.calls.append(f"act {ev.name}")
            return ev.name

        name = await self.work.turn.step("act", act)
        return Done(name=self.work.call(name))

    @step
    async def join(self, ctx: Context, ev: Done) -> StopEvent | None:
        events = ctx.collect_events(ev, [Done] * 3)
        return None if events is None else StopEvent(result=", ".join(sorted(event.name for event in events)))


async def test_a_step_whose_neighbour_died_is_not_executed_again(task: Task) -> None:
    work = Work()
    run = work.runner(lambda: Parallel(work))
    work.dies_in = "z"

    assert await task.attempt(run) is None
    work.dies_in = ""
    assert await task.attempt(run) == "x, y, z"

    assert work.calls.count("z") == 2
    assert sorted(call for call in work.calls if call.startswith("act")) == ["act x", "act y", "act z"]
    assert len(work.keys) == 3


class Flaky(Workflow):
    """Workflow with a step that fails at first and is retried."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    @step(retry_policy=retry_policy(wait=wait_fixed(0), stop=stop_after_attempt(3)))
    async def flaky(self, ctx: Context, ev: StartEvent) -> StopEvent:
        async def act() -> str:
            self.work.calls.append("act")
            return "acted"

        text = await self.work.turn.step("act", act)
        if len(self.work.calls) < 2:
            raise ConnectionError
        return StopEvent(result=self.work.call(text))


async def test_a_retry_of_a_step_executes_its_durable_steps_again(task: Task) -> None:
    work = Work()
    run = work.runner(lambda: Flaky(work))
    work.dies_in = "acted"

    assert await task.attempt(run) is None
    work.dies_in = ""
    assert await task.attempt(run) == "acted"
    assert work.calls == ["act", "act", "acted", "acted"]


class Fails(Chain):
    """`Chain` whose second step fails in the first attempt."""

    @step
    async def b(self, ctx: Context, ev: First) -> Second:
        self.work.calls.append("b")
        if self.work.calls.count("b") == 1:
            raise ConnectionError("lost")
        return Second()


async def test_a_retry_of_the_turn_continues_before_the_step_that_failed(task: Task) -> None:
    work = Work()
    run = work.runner(lambda: Fails(work))

    with pytest.raises(ConnectionError):
        await task.attempt(run)

    assert await task.attempt(run) == "a, c"
    assert work.calls == ["a", "b", "b", "c"]


class Handled(Fails):
    """`Chain` that handles the failure of its second step."""

    @catch_error
    async def handle(self, ctx: Context, ev: StepFailedEvent) -> StopEvent:
        return StopEvent(result=self.work.call("handled"))


async def test_a_failure_that_the_workflow_handles_is_recorded(task: Task) -> None:
    work = Work()
    run = work.runner(lambda: Handled(work))
    work.dies_in = "handled"

    assert await task.attempt(run) is None
    work.dies_in = ""
    assert await task.attempt(run) == "handled"
    assert work.calls == ["a", "b", "handled", "handled"]


class Unrecordable(Chain):
    """`Chain` with an event that cannot be encoded as JSON."""

    @step
    async def b(self, ctx: Context, ev: First) -> Second:
        self.work.call("b")
        return Second(value=object())


async def test_data_that_is_not_json_is_not_recorded(task: Task, caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    run = work.runner(lambda: Unrecordable(work))
    work.dies_in = "c"

    assert await task.attempt(run) is None
    assert "is not recorded, and may be repeated" in caplog.text
    work.dies_in = ""
    assert await task.attempt(run) == "a, c"
    assert work.calls == ["a", "b", "c", "b", "c"]


class Shorter(Workflow):
    """Workflow that does not match the recorded steps of `Chain`."""

    def __init__(self, work: Work) -> None:
        super().__init__()

    @step
    async def other(self, ctx: Context, ev: StartEvent) -> StopEvent:
        return StopEvent(result="other")


async def test_records_that_do_not_fit_the_workflow_fail_the_turn(task: Task) -> None:
    work = Work()
    work.dies_in = "c"
    await task.attempt(work.runner(lambda: Chain(work)))

    with pytest.raises(StepsChanged, match=r"the recorded steps do not fit the workflow .* Restore the code"):
        await task.attempt(work.runner(lambda: Shorter(work)))


async def test_records_are_encrypted_and_need_their_secret(task: Task, store: AsyncStore, keys: Keys) -> None:
    work = Work()
    run = work.runner(lambda: Chain(work))
    task.settings = replace(SETTINGS, secret_key="s" * 32)
    work.dies_in = "c"
    await task.attempt(run)
    journal = b"".join((await store.redis.hgetall(keys.task(task.task_id).journal)).values())
    assert len(journal) > 500
    assert b"state_data" not in journal

    task.settings = SETTINGS
    with pytest.raises(SessionError, match="a2a_secret_key is not set"):
        await task.attempt(run)
    task.settings = replace(SETTINGS, secret_key="s" * 32)
    work.dies_in = ""
    assert await task.attempt(run) == "a, b, c"


class Model(MockFunctionCallingLLM):
    """Model that requests one round of tool calls in each response, and then returns the results."""

    rounds: list[list[str]]
    work: Any

    @llm_chat_callback()
    async def astream_chat(self, messages: Any, **kwargs: Any) -> ChatResponseAsyncGen:
        number = sum(message.role == "assistant" for message in messages)
        self.work.call(f"model {number}")

        async def chunks() -> ChatResponseAsyncGen:
            raw = {"model": "m", "usage": {"prompt_tokens": 3, "completion_tokens": 2}, "finish_reason": "stop"}
            if number < len(self.rounds):
                names = self.rounds[number]
                blocks = [
                    ToolCallBlock(tool_call_id=f"call-{at}", tool_name="look", tool_kwargs={"at": at}) for at in names
                ]
                yield ChatResponse(message=ChatMessage(role="assistant", blocks=blocks), raw=raw)
                return
            text = " ".join(str(message.content) for message in messages if message.role == "tool")
            yield ChatResponse(message=ChatMessage(role="assistant", content=text), delta=text, raw=raw)

        return chunks()


def agent_of(work: Work, *rounds: list[str], result: Callable[[str], Any] = str) -> Callable[[Turn], Any]:
    async def look(at: str) -> Any:
        """Look at something."""
        return result(work.call(at))

    return work.runner(lambda: FunctionAgent(llm=Model(rounds=list(rounds), work=work), tools=[look]))


async def test_each_call_of_an_agent_is_made_once_wherever_the_worker_dies(task: Task) -> None:
    work = Work()
    run = agent_of(work, ["p"], ["q", "r"])
    for work.dies_in in ("model 0", "p", "model 1", "r", "model 2"):
        assert await task.attempt(run) is None
    work.dies_in = ""

    assert await task.attempt(run) == "p q r"
    counts = {name: work.calls.count(name) for name in work.calls}
    assert counts == {"model 0": 2, "p": 2, "model 1": 2, "q": 1, "r": 2, "model 2": 2}


async def test_the_tokens_of_a_turn_are_those_of_all_its_runs(task: Task) -> None:
    work = Work()
    run = agent_of(work, ["p"])
    work.dies_in = "p"
    await task.attempt(run)
    work.dies_in = ""
    await task.attempt(run)

    assert MessageToDict(work.end.metadata) == own_metadata({USAGE: {"m": {"inputTokens": 6, "outputTokens": 4}}})


async def test_a_result_that_is_no_json_data_is_recorded_as_text(task: Task) -> None:
    work = Work()
    run = agent_of(work, ["p"], result=lambda at: SimpleNamespace(at=at))
    work.dies_in = "model 1"
    await task.attempt(run)
    work.dies_in = ""

    assert await task.attempt(run) == "namespace(at='p')"
    assert work.calls.count("p") == 1


async def test_text_that_an_earlier_run_sent_is_not_sent_again(task: Task) -> None:
    work = Work()
    agent = llamaindex_agent(lambda _: FunctionAgent(llm=Model(rounds=[], work=work)))
    texts: list[str] = []

    async def run(turn: Turn) -> None:
        async for event in agent(turn):
            if isinstance(event, TaskArtifactUpdateEvent):
                texts.extend(part.text for part in event.artifact.parts if part.text)
                await turn.artifact(texts[-1])
        await turn.step("flush", str)  # recorded after the events

    await task.attempt(run)
    await task.attempt(run)

    assert len(texts) <= 1
