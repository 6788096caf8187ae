"""Questions of agents, which reach the client whatever exceptions the code around `Turn.ask` catches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from a2a.types import Part
from a2a.utils.errors import InvalidParamsError
from celery import Celery
from celery.app.trace import build_tracer

from a2a_celery import A2A, Failed, InputRequired, Question, Turn, current_step_key, current_turn
from a2a_celery.lifecycle.states import COMPLETED, FAILED, INPUT_REQUIRED
from tests.execution.scene import TurnByTurn
from tests.support.store.seeds import Seeds

app = Celery("test", broker="memory://", set_as_current=False)
a2a = A2A(app)


async def call_tool(turn: Turn, exceptions: type[BaseException], question: str = "Which city?") -> str:
    """Call a tool that asks the client, and return the tool's exceptions as text, as some frameworks do."""
    try:
        return f"in {await turn.ask(question)}"
    except exceptions as error:
        return f"The tool failed: {error!r}"


@a2a.agent("catches-exceptions", description="Asks.")
async def catches_exceptions(turn: Turn) -> str:
    return await call_tool(turn, Exception)


@a2a.agent("catches-everything", description="Asks.")
async def catches_everything(turn: Turn) -> str:
    return await call_tool(turn, BaseException)


@a2a.agent("asks-once-more", description="Asks, and asks something else when that failed.")
async def asks_once_more(turn: Turn) -> str:
    first = await call_tool(turn, BaseException)
    return first if first.startswith("in") else await call_tool(turn, Exception, "Which country?")


@a2a.agent("asks-all-afterwards", description="Asks, and asks a form when that failed.")
async def asks_all_afterwards(turn: Turn) -> str:
    first = await call_tool(turn, BaseException)
    return first if first.startswith("in") else str(await turn.ask_all({"country": Question("Which country?")}))


@a2a.agent("says-nothing", description="Asks.")
async def returns_none(turn: Turn) -> str | None:
    text = await call_tool(turn, BaseException)
    return text if text.startswith("in") else None


@a2a.agent("raises-another", description="Asks.")
async def raises_another(turn: Turn) -> str:
    try:
        return f"in {await turn.ask('Which city?')}"
    except InputRequired as error:
        raise RuntimeError("the tool failed") from error


@a2a.agent("task-group", description="Asks.")
async def task_group(turn: Turn) -> str:
    async with asyncio.TaskGroup() as tools:
        tool = tools.create_task(call_tool(turn, Exception))
        tools.create_task(asyncio.sleep(0))
    return tool.result()


@a2a.agent("raises-in-a-group", description="Raises InputRequired in a group.")
async def raises_in_a_group(turn: Turn) -> str:
    async def tool() -> None:
        raise InputRequired("Which city?")

    if turn.number == 1:
        async with asyncio.TaskGroup() as tools:
            tools.create_task(tool())
    return f"in {turn.text}"


@a2a.agent("two-at-once", description="Asks two questions at once.")
async def two_at_once(turn: Turn) -> str:
    cities = [call_tool(turn, Exception), call_tool(turn, Exception, "Which other city?")]
    if turn.number == 1:
        await asyncio.gather(*cities)
    cities[1].close()
    return await cities[0]


@a2a.agent("yields", description="Asks, and goes on.")
async def yields(turn: Turn) -> AsyncIterator[str]:
    yield await call_tool(turn, BaseException)
    yield ", nowhere else"


@a2a.agent("threaded", description="Asks.")
def ask_in_thread(turn: Turn) -> str:
    with suppress(BaseException):
        return f"in {turn.blocking.ask('Which city?')}"
    return "The tool failed."


@a2a.agent("threaded-yields", description="Asks, and goes on.")
def threaded_yields(turn: Turn) -> Iterator[str]:
    try:
        yield f"in {turn.blocking.ask('Which city?')}"
    except BaseException:
        yield "The tool failed."


@app.task(shared=False)
def plain(text: str) -> str:
    turn = current_turn()
    assert turn is not None
    return ask_in_thread(turn)


@app.task(shared=False, autoretry_for=(Exception,))
def plain_retried(text: str) -> str:
    turn = current_turn()
    assert turn is not None
    return f"in {turn.blocking.ask('Which city?')}"


@app.task(shared=False)
def raises(text: str) -> str:
    raise InputRequired("Which city?")


@a2a.agent("gives-up", description="Asks, and then ends in its own way.")
async def gives_up(turn: Turn) -> None:
    try:
        await turn.ask("Which city?")
    except InputRequired:
        raise Failed("No city, no weather.") from None


@a2a.agent("asks-in-other-words", description="Asks, and then in other words.")
async def asks_in_other_words(turn: Turn) -> str:
    try:
        return f"in {await turn.ask('City?')}"
    except InputRequired:
        raise InputRequired("Which city?") from None


@a2a.agent("never-returns", description="Asks, and then waits until its limit.", idle_limit=1)
async def never_returns(turn: Turn) -> str:
    text = await call_tool(turn, BaseException)
    if not text.startswith("in"):
        await asyncio.Event().wait()
    return text


fetched: list[tuple[str, str]] = []
"""Arguments and idempotency keys with which `fetch` was called."""


async def fetch(value: str) -> str:
    fetched.append((value, current_step_key()))
    return value


@a2a.agent("refuses-answers", description="Asks twice, and refuses cities without an upper-case letter.")
async def refuses_answers(turn: Turn) -> str:
    text = await turn.step("text", fetch, turn.text)
    city = await turn.ask("Which city?")
    checked = await turn.step("city", fetch, str(city))
    if checked.islower():
        raise InvalidParamsError(f"{checked} is not a city.")
    country = await turn.ask("Which country?")
    if country.islower():
        raise InvalidParamsError(f"{country} is not a country.")
    return f"{text}: {checked}, {country}"


@a2a.agent("refuses-answers-of-steps", description="Refuses answers to the question of a step.")
async def refuses_answers_of_steps(turn: Turn) -> str:
    text = await turn.step("text", fetch, turn.text)
    city = await turn.step("city", ask, turn, "Which city?")
    checked = await turn.step("checked", fetch, city)
    if checked.islower():
        raise InvalidParamsError(f"{checked} is not a city.")
    return f"{text}: {checked}, {await turn.ask('Which country?')}"


RETRIED: dict[str, Any] = {"description": "Refuses an answer after a retry.", "autoretry_for": (OSError,)}


@a2a.agent("refuses-answers-of-inner-steps", **RETRIED, default_retry_delay=0)
async def refuses_answers_of_inner_steps(turn: Turn) -> str:
    async def outer() -> str:
        city = await turn.step("inner", ask, turn, "Which city?")
        if turn.number == 2 and not turn.retries:
            raise OSError("a failure after the inner step")
        return str(city)

    return require_city(await turn.step("outer", outer))


@a2a.agent("refuses-answers-of-parallel-steps", **RETRIED, default_retry_delay=0)
async def refuses_answers_of_parallel_steps(turn: Turn) -> str:
    [city] = await asyncio.gather(turn.step("city", ask, turn, "Which city?"))
    checked = await turn.step("checked", fetch, city)
    if turn.number == 2 and not turn.retries:
        raise OSError("a failure after the steps")
    return require_city(checked)


def require_city(text: str) -> str:
    """Refuse a name without an upper-case letter."""
    if text.islower():
        raise InvalidParamsError(f"{text} is not a city.")
    return text


@a2a.agent("asks-after-a-refusal", description="Refuses an answer, and then asks in a step.")
async def asks_after_a_refusal(turn: Turn) -> str:
    async def country() -> str:
        await fetch(city)
        return str(await turn.ask("Which country?"))

    city = await turn.step("city", ask, turn, "Which city?")
    return f"{require_city(city)}, {await turn.step('country', country)}"


class LooksUp:
    """Callable object that refuses an answer on which the result of a step without arguments depends."""

    async def __call__(self, turn: Turn) -> str:
        async def look_up() -> str:
            return await fetch(str(city))

        city = await turn.ask("Which city?")
        return require_city(await turn.step("look up", look_up))


a2a.agent("looks-up", description="Refuses an answer after a step.")(LooksUp())


async def ask(turn: Turn, question: str) -> str:
    """Ask in the function of a durable step, whose result is text."""
    return str(await turn.ask(question))


@a2a.agent("asks-in-a-step", description="Asks in a step, and then outside.")
async def asks_in_a_step(turn: Turn) -> str:
    city = await turn.step("city", ask, turn, "Which city?")
    return f"{city}, {await turn.ask('Which country?')}"


@a2a.agent("has-no-parts", description="Passes None as parts.")
async def has_no_parts(turn: Turn) -> str:
    await turn.say("asking", parts=None)
    if turn.text == "raise":
        raise InputRequired("Which city?", parts=None)
    schema = {"type": "string"} if turn.text == "schema" else None
    return str(await turn.ask("Which city?", parts=None, schema=schema))


@a2a.agent("asks-before-a-step", description="Asks while a step waits that asks afterwards.")
async def asks_before_a_step(turn: Turn) -> str:
    has_city = asyncio.Event()

    async def country() -> str:
        await has_city.wait()
        return await ask(turn, "Which country?")

    second = asyncio.create_task(turn.step("country", country))
    await asyncio.sleep(0)
    city = str(await turn.ask("Which city?"))
    has_city.set()
    return f"{city}, {await second}, {await turn.ask('Which continent?')}"


@a2a.agent("asks-in-nested-steps", description="Asks in a step within a step, and then in the outer step.")
async def asks_in_nested_steps(turn: Turn) -> str:
    async def outer() -> str:
        return f"{await turn.step('city', ask, turn, 'Which city?')}, {await ask(turn, 'Which country?')}"

    both = await turn.step("both", outer)
    return f"{both}{await turn.step('end', str, '')}"


@a2a.agent("asks-in-parallel-steps", description="Asks in two steps at once.")
async def asks_in_parallel_steps(turn: Turn) -> str:
    return ", ".join(
        await asyncio.gather(*(turn.step("place", ask, turn, f"Which {name}?") for name in ("city", "country")))
    )


@a2a.agent("asks-in-a-thread", description="Asks in a plain step.")
async def asks_in_a_thread(turn: Turn) -> str:
    city = await turn.step("city", lambda: str(turn.blocking.ask("Which city?")))
    return f"{city}, {await turn.ask('Which country?')}"


@a2a.agent("threaded-asks-in-a-step", description="Asks in a plain step, and then outside.")
def threaded_asks_in_a_step(turn: Turn) -> str:
    city = turn.blocking.step("city", lambda: str(turn.blocking.ask("Which city?")))
    return f"{city}, {turn.blocking.ask('Which country?')}"


@a2a.agent("asks-in-a-failed-step", description="Asks in a step that fails.")
async def asks_in_a_failed_step(turn: Turn) -> str:
    async def city() -> None:
        raise ValueError(await ask(turn, "Which city?"))

    try:
        await turn.step("city", city)
    except ValueError as error:
        return f"{error}, {await turn.ask('Which country?')}"
    return "no error"


a2a.expose(plain)
a2a.expose(plain_retried, name="plain-retried")
a2a.expose(raises)

ASKING = [
    "catches-exceptions",
    "catches-everything",
    "asks-once-more",
    "asks-all-afterwards",
    "says-nothing",
    "raises-another",
    "task-group",
    "raises-in-a-group",
    "two-at-once",
    "yields",
    "threaded",
    "threaded-yields",
    "plain",
    "plain-retried",
    "asks-in-other-words",
    "never-returns",
]


@a2a.agent("yields-and-asks", description="Yields chunks, and asks twice.")
async def yields_and_asks(turn: Turn) -> AsyncIterator[str]:
    yield "one "
    yield "two "
    city = await turn.ask("Which city?")
    yield f"{city} "
    yield str(await turn.ask("Which hotel?"))


@a2a.agent("yields-in-each-turn", description="Yields a chunk, and ends the first turn without `ask`.")
async def yields_in_each_turn(turn: Turn) -> AsyncIterator[str]:
    yield turn.text
    if turn.text == "hello":
        raise InputRequired("And now?")


async def test_the_chunks_of_a_call_replace_those_of_the_calls_before_the_answers(
    turns: TurnByTurn, seeds: Seeds
) -> None:
    assert await turns.begin("yields-and-asks") == (INPUT_REQUIRED, "Which city?")
    [before] = (await seeds.task("t")).artifacts
    assert await turns.say("yields-and-asks", 2, Part(text="Rome")) == (INPUT_REQUIRED, "Which hotel?")

    texts = await turns.answer("yields-and-asks", "Inn", 3)

    assert texts == ["one two Rome Inn"]
    assert (await seeds.task("t")).artifacts[0].artifact_id == before.artifact_id
    await seeds.require_consistent("t")


async def test_a_turn_that_answers_no_question_of_ask_has_another_artifact(turns: TurnByTurn) -> None:
    await turns.begin("yields-in-each-turn")

    assert await turns.answer("yields-in-each-turn", "more") == ["hello", "more"]


@pytest.mark.parametrize("agent", ASKING)
async def test_a_question_reaches_the_client_although_it_is_caught(turns: TurnByTurn, agent: str) -> None:
    assert await turns.begin(agent) == (INPUT_REQUIRED, "Which city?")

    answer = ["in Oslo, nowhere else"] if agent == "yields" else ["in Oslo"]
    assert await turns.answer(agent, "Oslo") == answer


@pytest.mark.parametrize(
    "agent",
    [
        "asks-in-a-step",
        "asks-in-nested-steps",
        "asks-in-parallel-steps",
        "asks-in-a-thread",
        "threaded-asks-in-a-step",
        "asks-in-a-failed-step",
    ],
)
async def test_an_answer_belongs_to_the_step_that_asked(turns: TurnByTurn, agent: str) -> None:
    assert await turns.begin(agent) == (INPUT_REQUIRED, "Which city?")
    assert await turns.say(agent, 2, Part(text="Oslo")) == (INPUT_REQUIRED, "Which country?")

    assert await turns.answer(agent, "Norway", run=3) == ["Oslo, Norway"]


@pytest.mark.parametrize("text", ["raise", "ask", "schema"])
async def test_none_means_no_parts(turns: TurnByTurn, text: str) -> None:
    assert await turns.begin("has-no-parts", text) == (INPUT_REQUIRED, "Which city?")


async def test_a_recorded_step_keeps_its_answer_whatever_the_agent_asks_first(turns: TurnByTurn) -> None:
    agent = "asks-before-a-step"
    await turns.begin(agent)
    assert await turns.say(agent, 2, Part(text="Oslo")) == (INPUT_REQUIRED, "Which country?")
    assert await turns.say(agent, 3, Part(text="Norway")) == (INPUT_REQUIRED, "Which continent?")

    assert await turns.answer(agent, "Europe", run=4) == ["Oslo, Norway, Europe"]


async def test_an_agent_that_asks_and_then_raises_failed_has_failed(turns: TurnByTurn) -> None:
    assert await turns.begin("gives-up") == (FAILED, "No city, no weather.")


async def test_the_next_message_answers_the_question_whose_answer_the_agent_refused(
    turns: TurnByTurn, seeds: Seeds
) -> None:
    """Steps before the refused answer are not repeated. Steps after the refused answer belong to it."""
    fetched.clear()
    agent = "refuses-answers"
    assert await turns.begin(agent) == (INPUT_REQUIRED, "Which city?")
    assert await turns.say(agent, 2, Part(text="oslo")) == (INPUT_REQUIRED, "oslo is not a city.")
    assert await turns.say(agent, 3, Part(text="bergen")) == (INPUT_REQUIRED, "bergen is not a city.")
    assert await turns.say(agent, 4, Part(text="Bergen")) == (INPUT_REQUIRED, "Which country?")
    assert await turns.say(agent, 5, Part(text="norway")) == (INPUT_REQUIRED, "norway is not a country.")
    assert (await turns.say(agent, 6, Part(text="Norway")))[0] == COMPLETED

    assert (await seeds.task("t")).artifacts[0].parts[0].text == "hello: Bergen, Norway"
    assert [value for value, _ in fetched] == ["hello", "oslo", "bergen", "Bergen"]
    assert len({key for _, key in fetched}) == 4, "a key belongs to one answer"


async def test_a_refused_answer_to_the_question_of_a_step_is_asked_for_again(turns: TurnByTurn, seeds: Seeds) -> None:
    fetched.clear()
    agent = "refuses-answers-of-steps"
    assert await turns.begin(agent) == (INPUT_REQUIRED, "Which city?")
    assert await turns.say(agent, 2, Part(text="oslo")) == (INPUT_REQUIRED, "oslo is not a city.")
    assert await turns.say(agent, 3, Part(text="Oslo")) == (INPUT_REQUIRED, "Which country?")
    assert (await turns.say(agent, 4, Part(text="Norway")))[0] == COMPLETED

    assert (await seeds.task("t")).artifacts[0].parts[0].text == "hello: Oslo, Norway"
    assert [value for value, _ in fetched] == ["hello", "oslo", "Oslo"]


@pytest.mark.parametrize("agent", ["refuses-answers-of-inner-steps", "refuses-answers-of-parallel-steps"])
async def test_an_answer_that_is_refused_in_a_later_attempt_is_asked_for_again(turns: TurnByTurn, agent: str) -> None:
    """The step that received the answer is replayed in the attempt that refuses the answer."""
    assert await turns.begin(agent) == (INPUT_REQUIRED, "Which city?")
    await turns.say(agent, 2, Part(text="oslo"))
    assert await turns.perform(agent, 2, retries=1) == (INPUT_REQUIRED, "oslo is not a city.")

    assert await turns.answer(agent, "Oslo", run=3) == ["Oslo"]


async def test_the_steps_of_a_callable_object_belong_to_its_answers(turns: TurnByTurn) -> None:
    assert await turns.begin("looks-up") == (INPUT_REQUIRED, "Which city?")
    assert await turns.say("looks-up", 2, Part(text="oslo")) == (INPUT_REQUIRED, "oslo is not a city.")

    assert await turns.answer("looks-up", "Oslo", run=3) == ["Oslo"]


async def test_a_step_after_a_refused_answer_has_the_same_key_in_each_execution(turns: TurnByTurn) -> None:
    fetched.clear()
    agent = "asks-after-a-refusal"
    assert await turns.begin(agent) == (INPUT_REQUIRED, "Which city?")
    assert await turns.say(agent, 2, Part(text="oslo")) == (INPUT_REQUIRED, "oslo is not a city.")
    assert await turns.say(agent, 3, Part(text="Oslo")) == (INPUT_REQUIRED, "Which country?")

    assert await turns.answer(agent, "Norway", run=4) == ["Oslo, Norway"]
    assert len(fetched) == 2
    assert len(set(fetched)) == 1


def test_a_question_of_a_task_that_celery_called_is_an_ordinary_failure() -> None:
    """If Celery received the InputRequired, the exception would end a prefork child, or block the calling thread
    forever."""
    result = perform_celery_task(raises)

    assert result.info.state == "FAILURE"
    assert str(result.info.retval) == "InputRequired: Which city?"


def test_a_task_that_is_called_as_a_function_raises_its_question() -> None:
    with pytest.raises(InputRequired):
        raises("x")


def perform_celery_task(task: Any) -> Any:
    """Call `task` as a pool does for a message that belongs to no A2A task."""
    return build_tracer(task.name, task, app=task.app)("a-task", ("x",), {}, {"id": "a-task", "delivery_info": {}})
