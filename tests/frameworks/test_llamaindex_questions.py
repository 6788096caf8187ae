"""Questions of a LlamaIndex workflow to the client. The answers reach the workflow in a later run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from a2a.helpers import new_data_part
from a2a.types import Part
from celery import Celery
from google.protobuf.json_format import MessageToDict
from pydantic import field_validator
from workflows import Context, Workflow, step
from workflows.events import Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent

from a2a_celery import A2A, Turn
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.frameworks.llamaindex import llamaindex_agent
from a2a_celery.lifecycle.outcomes import NEEDS_INPUT
from a2a_celery.lifecycle.questions import schema_in
from a2a_celery.lifecycle.states import COMPLETED, FAILED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys
from tests.execution.scene import TurnByTurn
from tests.support.store.seeds import Seeds

calls: list[str] = []


class Day(HumanResponseEvent):
    """A day on which the shop is open."""

    day: str

    @field_validator("day")
    @classmethod
    def open_on(cls, day: str) -> str:
        if day == "Sunday":
            raise ValueError("closed on Sunday")
        return day


class Count(HumanResponseEvent):
    """A number of guests."""

    count: int


class Shown(InputRequiredEvent):
    """Question with data."""

    question: str
    amount: int


class ReturnedQuestion(Workflow):
    """Workflow in which one step returns the question and a second step receives the answer."""

    def __init__(self, question: InputRequiredEvent) -> None:
        super().__init__()
        self.question = question

    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> InputRequiredEvent:
        calls.append("ask")
        return self.question

    @step
    async def say(self, ctx: Context, ev: HumanResponseEvent) -> StopEvent:
        calls.append("say")
        return StopEvent(result=str(ev.response))


class ReturnsTyped(Workflow):
    """Workflow that accepts an answer of either of two types."""

    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> InputRequiredEvent:
        return InputRequiredEvent(prefix="When, or how many?")

    @step
    async def on_day(self, ctx: Context, ev: Day) -> StopEvent:
        return StopEvent(result=f"on {ev.day}")

    @step
    async def for_count(self, ctx: Context, ev: Count) -> StopEvent:
        return StopEvent(result=f"for {ev.count}")


class Waits(Workflow):
    """Workflow whose step waits for two answers, one after the other."""

    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
        calls.append("ask")
        name = await ctx.wait_for_event(HumanResponseEvent, InputRequiredEvent(prefix="Who?"), "who")
        day = await ctx.wait_for_event(Day, InputRequiredEvent(prefix="When?"), "when")
        return StopEvent(result=f"{name.response} on {day.day}")


class Written(Workflow):
    """Workflow whose step writes the question to the stream, and waits for an answer with a certain value."""

    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
        ctx.write_event_to_stream(InputRequiredEvent(prefix="Really?", user="ann"))
        answer = await ctx.wait_for_event(HumanResponseEvent, requirements={"user": "ann"})
        return StopEvent(result=f"{answer.user}: {answer.response}")


class Item(Event):
    """Item with a name."""

    name: str


class Found(Event):
    """Answer for one item."""

    text: str


class Parallel(Workflow):
    """Workflow with two steps that wait at the same time."""

    @step
    async def split(self, ctx: Context, ev: StartEvent) -> Item | None:
        for name in ("a", "b"):
            ctx.send_event(Item(name=name))
        return None

    @step
    async def ask(self, ctx: Context, ev: Item) -> Found:
        name = ev.name
        answer = await ctx.wait_for_event(
            HumanResponseEvent, InputRequiredEvent(prefix=f"{name.upper()}?"), name, {"item": name}
        )
        return Found(text=f"{name}: {answer.response}")

    @step
    async def join(self, ctx: Context, ev: Found) -> StopEvent | None:
        events = ctx.collect_events(ev, [Found, Found])
        return None if events is None else StopEvent(result=" and ".join(sorted(event.text for event in events)))


class InTurn(Workflow):
    """Workflow with a step that calls `Turn.ask`, and a step that asks by an event."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.turn = turn

    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> Item:
        calls.append("ask")
        return Item(name=str(await self.turn.ask("From the turn?")))

    @step
    async def ask_again(self, ctx: Context, ev: Item) -> StopEvent:
        answer = await ctx.wait_for_event(HumanResponseEvent, InputRequiredEvent(prefix="By an event?"))
        return StopEvent(result=f"{ev.name} and {answer.response}")


def in_turn(turn: Turn) -> InTurn:
    return InTurn(turn)


class WaitsForAnotherSystem(Workflow):
    """Workflow whose step waits for an event that no client sends."""

    @step
    async def wait(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await ctx.wait_for_event(Item)
        return StopEvent(result="")


class Flaky(Workflow):
    """Workflow whose step fails once after the answer."""

    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
        answer = await ctx.wait_for_event(HumanResponseEvent, InputRequiredEvent(prefix="Really?"))
        calls.append("asked")
        if calls.count("asked") == 1:
            raise ConnectionError
        return StopEvent(result=str(answer.response))


class Trip(StartEvent):
    """Start event with the values that the client has to send."""

    city: str
    days: int


class TravelWorkflow(Workflow):
    """Workflow whose start event has required fields."""

    @step
    async def go(self, ctx: Context, ev: Trip) -> StopEvent:
        return StopEvent(result=f"{ev.days + 1} days in {ev.city}")


a2a = A2A(Celery("test", broker="memory://", set_as_current=False))
AGENTS: dict[str, Any] = {
    "returns": lambda _: ReturnedQuestion(InputRequiredEvent(prefix="On which day?")),
    "empty": lambda _: ReturnedQuestion(InputRequiredEvent()),
    "shown": lambda _: ReturnedQuestion(Shown(question="Pay?", amount=3)),
    "typed": ReturnsTyped(),
    "waits": Waits(),
    "written": Written(),
    "parallel": Parallel(),
    "turn": in_turn,
    "nobody": WaitsForAnotherSystem(),
    "travels": TravelWorkflow(),
}
for agent_name, workflow in AGENTS.items():
    a2a.agent(agent_name, description="Asks.", session=True)(llamaindex_agent(workflow))
a2a.agent("flaky", description="Asks.", session=True, autoretry_for=(ConnectionError,), default_retry_delay=0)(
    llamaindex_agent(Flaky())
)


@pytest.fixture
async def turns(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[TurnByTurn]:
    calls.clear()
    async with TurnByTurn(a2a, store, keys, redis_server.store_url) as turns:
        yield turns


async def test_a_returned_question_is_answered_in_another_run(turns: TurnByTurn) -> None:
    assert await turns.begin("returns") == (INPUT_REQUIRED, "On which day?")
    assert await turns.answer("returns", "Monday") == ["Monday"]
    assert calls == ["ask", "say"]


async def test_an_empty_question_has_a_text(turns: TurnByTurn) -> None:
    assert await turns.begin("empty") == (INPUT_REQUIRED, NEEDS_INPUT)


async def test_the_fields_of_a_question_are_data_and_an_answer_may_be_data(turns: TurnByTurn, seeds: Seeds) -> None:
    assert await turns.begin("shown") == (INPUT_REQUIRED, "Pay?")
    [_, part] = (await seeds.task("t")).status.message.parts
    assert MessageToDict(part.data) == {"inputRequired": {"amount": 3.0}}

    await turns.say("shown", 2, new_data_part({"paid": 3}))
    assert await seeds.last_text("t") == "{'paid': 3}"


@pytest.mark.parametrize(("answer", "result"), [({"day": "Monday"}, "on Monday"), ({"count": 3}, "for 3")])
async def test_the_type_of_an_answer_selects_the_step(
    turns: TurnByTurn, seeds: Seeds, answer: Any, result: str
) -> None:
    await turns.begin("typed")
    schema = schema_in((await seeds.task("t")).status.message.parts)
    assert schema is not None
    assert len(schema["anyOf"]) == 2

    await turns.say("typed", 2, new_data_part(answer))
    assert await seeds.last_text("t") == result


async def test_one_step_asks_one_question_after_the_other(turns: TurnByTurn, seeds: Seeds) -> None:
    assert await turns.begin("waits") == (INPUT_REQUIRED, "Who?")
    assert await turns.say("waits", 2, Part(text="Ada")) == (INPUT_REQUIRED, "When?")
    schema = schema_in((await seeds.task("t")).status.message.parts)
    assert schema is not None
    assert schema["required"] == ["day"]

    state, question = await turns.say("waits", 3, new_data_part({"day": "Sunday"}))
    assert state == INPUT_REQUIRED
    assert "closed on Sunday" in question
    await turns.say("waits", 4, new_data_part({"day": "Monday"}))
    assert await seeds.last_text("t") == "Ada on Monday"


async def test_a_written_question_is_answered_with_its_requirements(turns: TurnByTurn) -> None:
    assert await turns.begin("written") == (INPUT_REQUIRED, "Really?")
    assert await turns.answer("written", "yes") == ["ann: yes"]


async def test_several_questions_are_asked_at_once(turns: TurnByTurn, seeds: Seeds) -> None:
    state, question = await turns.begin("parallel")
    assert (state, sorted(question.splitlines())) == (INPUT_REQUIRED, ["a: A?", "b: B?"])

    await turns.say("parallel", 2, new_data_part({"a": "one", "b": "two"}))
    assert await seeds.last_text("t") == "a: one and b: two"


async def test_steps_may_ask_with_the_turn(turns: TurnByTurn, seeds: Seeds) -> None:
    assert await turns.begin("turn") == (INPUT_REQUIRED, "From the turn?")
    assert await turns.say("turn", 2, Part(text="1")) == (INPUT_REQUIRED, "By an event?")
    await turns.say("turn", 3, Part(text="2"))
    assert await seeds.last_text("t") == "1 and 2"
    assert calls == ["ask", "ask"]


async def test_a_retry_after_an_answer_receives_the_answer(turns: TurnByTurn, seeds: Seeds) -> None:
    assert await turns.begin("flaky") == (INPUT_REQUIRED, "Really?")
    state, _ = await turns.say("flaky", 2, Part(text="yes"))
    assert state == WORKING

    assert (await turns.perform("flaky", 2, retries=1))[0] == COMPLETED
    assert await seeds.last_text("t") == "yes"


async def test_a_workflow_that_waits_for_no_client_fails(turns: TurnByTurn, caplog: pytest.LogCaptureFixture) -> None:
    state, _ = await turns.begin("nobody")

    assert state == FAILED
    assert "the workflow waits, and has asked the client nothing" in caplog.text


async def test_missing_values_of_the_start_are_asked_for(turns: TurnByTurn, seeds: Seeds) -> None:
    assert await turns.begin("travels") == (INPUT_REQUIRED, "Please send: city, days.")
    schema = schema_in((await seeds.task("t")).status.message.parts)
    assert schema is not None
    assert sorted(schema["required"]) == ["city", "days"]

    await turns.say("travels", 2, new_data_part({"city": "Paris", "days": 2}))
    assert await seeds.last_text("t") == "3 days in Paris"
