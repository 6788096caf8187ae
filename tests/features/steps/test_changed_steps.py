"""Changed code of an agent. A run fails if its steps differ from the recorded steps, but not if it calls further
steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
from celery import Celery

from a2a_celery import A2A, StepsChanged, Turn
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.features.dead_letters.dead_letter import DeadLetter, read_dead_letter
from a2a_celery.lifecycle.states import FAILED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys
from tests.execution.attempts import Task
from tests.execution.scene import TurnByTurn
from tests.support.store.seeds import Seeds


def agent_with_steps(*names: str) -> Callable[[Turn], Any]:
    """Return an agent that executes steps with the given names, one after the other."""

    async def run(turn: Turn) -> None:
        for name in names:
            await turn.step(name, asyncio.sleep, 0)

    return run


@pytest.mark.parametrize(
    ("old_steps", "new_steps", "text"),
    [
        (["a", "b"], ["b", "a"], "b#1 was call 2 of the agent, and is call 1 now"),
        (["a", "b"], ["new", "a", "b"], "new#1 is called where an earlier run recorded a#1"),
        (["a", "b"], ["a"], "returned without the recorded b#1"),
        (["a", "b"], [], "returned without the recorded a#1, b#1"),
        (["a", "b"], ["a", "c"], "c#1 is called where an earlier run recorded b#1"),
        (["a", "b"], ["b"], "b#1 was call 2 of the agent, and is call 1 now"),
    ],
)
async def test_changed_code_ends_the_run(task: Task, old_steps: list[str], new_steps: list[str], text: str) -> None:
    await task.attempt(agent_with_steps(*old_steps))

    with pytest.raises(StepsChanged) as exc_info:
        await task.attempt(agent_with_steps(*new_steps))

    assert text in str(exc_info.value)
    assert "a2a requeue TASK --from-start" in str(exc_info.value)


@pytest.mark.parametrize("new_steps", [["a", "b"], ["a", "b", "c"]])
async def test_code_that_only_continues_is_not_changed(task: Task, new_steps: list[str]) -> None:
    await task.attempt(agent_with_steps("a", "b"))

    await task.attempt(agent_with_steps(*new_steps))


async def test_changed_code_that_catches_everything_ends_the_run(task: Task) -> None:
    async def catches(turn: Turn) -> str:
        with suppress(BaseException):
            await turn.step("b", asyncio.sleep, 0)
        return "well"

    await task.attempt(agent_with_steps("a"))

    with pytest.raises(StepsChanged):
        await task.attempt(catches)


app = Celery("test", broker="memory://", set_as_current=False)
a2a = A2A(app)
bookings: list[str] = []


async def book(what: str) -> str:
    """Record a booking, which must happen only once."""
    bookings.append(what)
    return f"{what} booked"


@a2a.agent("books", description="Books and asks.")
async def books(turn: Turn) -> str:
    flight = await turn.step("book", book, "flight")
    city = await turn.ask("Which city?")
    hotel = await turn.step("book", book, f"hotel in {city}")
    return f"{flight}, {hotel}"


@a2a.agent("changes", description="Calls other steps after its question.")
async def changes(turn: Turn) -> str:
    if turn.number == 1:
        await turn.step("book", book, "flight")
        await turn.ask("Which city?")
    await turn.step("other", book, "train")
    return "done"


@a2a.agent("again", description="Has a step that fails once.", autoretry_for=(OSError,), default_retry_delay=0)
async def book_again(turn: Turn) -> str:
    async def book_hotel() -> str:
        booking = await book("hotel")
        if turn.retries == 0:
            raise OSError("away")
        return booking

    flight = await turn.step("flight", book, "flight")
    hotel = await turn.step("hotel", book_hotel)
    return f"{flight}, {hotel}, {await turn.ask('Which city?')}"


@app.task(shared=False)
def plain(text: str) -> str:
    from a2a_celery import current_turn  # noqa: PLC0415

    turn = current_turn()
    assert turn is not None
    flight = turn.blocking.step("book", lambda: bookings.append("flight") or "flight booked")
    return f"{flight} to {turn.blocking.ask('Which city?')}"


a2a.expose(plain)


@pytest.fixture
async def turns(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[TurnByTurn]:
    """Task of one of the agents of this module."""
    bookings.clear()
    async with TurnByTurn(a2a, store, keys, redis_server.store_url) as turns:
        yield turns


async def test_the_call_after_a_question_repeats_no_step(turns: TurnByTurn) -> None:
    assert await turns.begin("books") == (INPUT_REQUIRED, "Which city?")

    assert await turns.answer("books", "Oslo") == ["flight booked, hotel in Oslo booked"]
    assert bookings == ["flight", "hotel in Oslo"]


async def test_the_retry_of_a_run_repeats_only_the_step_that_failed(turns: TurnByTurn) -> None:
    assert (await turns.begin("again"))[0] == WORKING
    assert await turns.perform("again", 1, retries=1) == (INPUT_REQUIRED, "Which city?")

    assert await turns.answer("again", "Oslo") == ["flight booked, hotel booked, Oslo"]
    assert bookings == ["flight", "hotel", "hotel"]


async def test_a_plain_task_has_steps(turns: TurnByTurn) -> None:
    assert await turns.begin("plain") == (INPUT_REQUIRED, "Which city?")

    assert await turns.answer("plain", "Oslo") == ["flight booked to Oslo"]
    assert bookings == ["flight"]


async def test_changed_code_fails_the_task_with_a_dead_letter(
    turns: TurnByTurn, store: AsyncStore, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    await turns.begin("changes")
    seeds = Seeds(store, keys)

    with pytest.raises(AssertionError):
        await turns.answer("changes", "Oslo")

    status = (await seeds.task("t")).status
    assert status.state == FAILED
    assert [part.text for part in status.message.parts] == ["The agent failed."]
    assert "other#1 is called where an earlier run recorded book#1" in caplog.text
    assert isinstance(await store.run(read_dead_letter(keys, "t")), DeadLetter)
    assert bookings == ["flight"]
