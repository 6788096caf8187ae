"""Questions with a schema: the answer that an agent receives, and repeated questions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from a2a.helpers import get_message_text, new_data_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.types import Part, TaskStatus, TaskStatusUpdateEvent
from celery import Celery
from pydantic import BaseModel, field_validator

from a2a_celery import A2A, InputRequired, Question, Turn, current_turn
from a2a_celery.caller import Caller
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.lifecycle.answers import AnswerType
from a2a_celery.lifecycle.questions import checked_schema, schema_in, schema_part
from a2a_celery.lifecycle.states import COMPLETED, FAILED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys, SyncStore
from a2a_celery.store.tasks.commands import continue_task
from tests.execution.scene import TurnByTurn
from tests.support.agents.basic import card
from tests.support.store.seeds import ANN, CONTEXT, Seeds, request

app = Celery("test", broker="memory://", set_as_current=False)
a2a = A2A(app)


class Table(BaseModel):
    people: int
    smoking: bool = False

    @field_validator("people")
    @classmethod
    def even(cls, people: int) -> int:
        if people % 2:
            raise ValueError("our tables are for an even number of people")
        return people


async def book(turn: Turn) -> str:
    table = await turn.ask("Which table?", schema=Table, parts=[Part(text="Thank you.")])
    name = await turn.ask("Your name?")
    return f"{table!r} for {name}"


a2a.agent("books", description="Asks.")(book)


arrivals: list[Callable[[], object]] = []
"""Calls that send a message to the working agent."""


@a2a.agent("steered", description="Asks after messages have arrived that it does not read.", on_message="steer")
async def read_messages(turn: Turn) -> str:
    while arrivals:
        await asyncio.to_thread(arrivals.pop(0))
    return await book(turn)


@a2a.agent("catches", description="Asks.")
async def catches(turn: Turn) -> str:
    with suppress(BaseException):
        return f"{await turn.ask('Which table?', schema=Table)!r}"
    return "The tool failed."


@a2a.agent("threaded", description="Asks.")
def ask_in_thread(turn: Turn) -> str:
    table = turn.blocking.ask("Which table?", schema=Table, parts=[Part(text="Thank you.")])
    name = turn.blocking.ask("Your name?")
    return f"{table!r} for {name}"


@a2a.agent("all-at-once", description="Asks.")
async def all_at_once(turn: Turn) -> str:
    answers = await turn.ask_all({"table": Question("Which table?", Table), "name": Question("Your name?")}, "Please:")
    return f"{answers['table']!r} for {answers['name']}"


@a2a.agent("all-threaded", description="Asks.")
def all_threaded(turn: Turn) -> str:
    questions = {"table": Question("Which table?", Table), "name": Question("Your name?")}
    answers = turn.blocking.ask_all(questions, "Please:")
    return f"{answers['table']!r} for {answers['name']}"


@a2a.agent("broken", description="Asks.")
async def broken(turn: Turn) -> Any:
    return await turn.ask("Which?", schema={"$ref": "https://example.com/schema"})


@a2a.agent("in-other-words", description="Asks, and then in other words.")
async def in_other_words(turn: Turn) -> str:
    try:
        return f"{await turn.ask('Table?', schema=Table)!r}"
    except InputRequired:
        raise InputRequired("Which table?") from None


@app.task(shared=False)
def plain(text: str) -> str:
    turn = current_turn()
    assert turn is not None
    return ask_in_thread(turn)


a2a.expose(plain)


class EarlyAsker(AgentExecutor):
    """SDK executor that asks a question and returns long after the question was stored."""

    schema = checked_schema({"type": "integer"})

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        if context.get_user_input():
            status = TaskStatus(state=INPUT_REQUIRED)
            status.message.parts.extend([Part(text="How many?"), schema_part(self.schema)])
            await event_queue.enqueue_event(TaskStatusUpdateEvent(status=status))
            await asyncio.sleep(0.1)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


a2a.add_agent(card("early"), EarlyAsker)

TABLE = "Table(people=2, smoking=False)"


async def open_schema(store: AsyncStore, keys: Keys) -> bytes | None:
    """Return the schema against which the gateway validates an answer, or None if the question has no schema."""
    schema: bytes | None = await store.redis.hget(keys.task("t").record, "answer_schema")
    return schema


@pytest.mark.parametrize("agent", ["books", "threaded", "plain"])
async def test_the_agent_gets_an_instance_of_its_type(
    turns: TurnByTurn, seeds: Seeds, store: AsyncStore, keys: Keys, agent: str
) -> None:
    assert await turns.begin(agent) == (INPUT_REQUIRED, "Which table?Thank you.")
    question = (await seeds.task("t")).status.message
    assert schema_in(question.parts) == AnswerType(Table).schema
    assert await open_schema(store, keys)

    assert await turns.say(agent, 2, new_data_part({"people": 2})) == (INPUT_REQUIRED, "Your name?")
    assert await open_schema(store, keys) is None, "any message answers this question"
    assert (await turns.say(agent, 3, Part(text="Ada")))[0] == COMPLETED
    assert (await seeds.task("t")).artifacts[0].parts[0].text == f"{TABLE} for Ada"


async def test_an_answer_that_the_type_refuses_is_asked_for_again(
    turns: TurnByTurn, seeds: Seeds, store: AsyncStore, keys: Keys
) -> None:
    await turns.begin("books")

    question = await turns.say("books", 2, new_data_part({"people": 3}))

    reason = "The answer was not accepted. people: our tables are for an even number of people."
    assert question == (INPUT_REQUIRED, f"{reason}\nWhich table?Thank you.")
    assert await open_schema(store, keys)
    assert (await turns.say("books", 3, Part(text="many")))[0] == INPUT_REQUIRED, "the gateway did not see this one"
    assert await turns.say("books", 4, Part(text='{"people": 2}')) == (INPUT_REQUIRED, "Your name?")
    assert (await turns.say("books", 5, Part(text="Ada")))[0] == COMPLETED
    assert (await seeds.task("t")).artifacts[0].parts[0].text == f"{TABLE} for Ada"


async def test_unread_messages_answer_questions_or_are_refused_as_answers(
    turns: TurnByTurn, seeds: Seeds, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    """The gateway accepts the messages before the question and its schema are stored."""
    store = SyncStore(redis_server.store_url)
    for text in ("many", '{"people": 3}', '{"people": 2}', "Ada"):
        message, caller = request(text, "t", CONTEXT), Caller(user="ann").to_json()
        send = continue_task(keys, ANN, "t", message, CONTEXT, caller=caller, nonce=text, on_message="steer")
        arrivals.append(partial(store.run, send))

    assert (await turns.begin("steered"))[0] == WORKING
    for run in range(2, 5):
        assert (await turns.perform("steered", run))[0] == WORKING, "an unread message follows"
    assert (await turns.perform("steered", 5))[0] == COMPLETED
    store.close()

    task = await seeds.task("t")
    assert task.artifacts[0].parts[0].text == f"{TABLE} for Ada"
    refusals = [text for text in map(get_message_text, task.history) if text.startswith("The answer was not accepted.")]
    assert [text.partition("\n")[2] for text in refusals] == ["Which table?\nThank you."] * 2


@pytest.mark.parametrize("agent", ["all-at-once", "all-threaded"])
async def test_several_questions_have_one_answer(turns: TurnByTurn, seeds: Seeds, agent: str) -> None:
    assert await turns.begin(agent) == (INPUT_REQUIRED, "Please:\ntable: Which table?\nname: Your name?")

    question = await turns.say(agent, 2, new_data_part({"table": {"people": 1}, "name": "Ada"}))
    assert question[1].startswith("The answer was not accepted. table.people: our tables are for an even number")
    assert (await turns.say(agent, 3, new_data_part({"table": {"people": 2}, "name": "Ada"})))[0] == COMPLETED
    assert (await seeds.task("t")).artifacts[0].parts[0].text == f"{TABLE} for Ada"


async def test_a_caught_question_has_its_schema(turns: TurnByTurn, store: AsyncStore, keys: Keys) -> None:
    assert await turns.begin("catches") == (INPUT_REQUIRED, "Which table?")

    assert await open_schema(store, keys)
    assert (await turns.say("catches", 2, new_data_part({"people": 2})))[0] == COMPLETED


async def test_a_question_in_other_words_has_no_schema_for_the_gateway(
    turns: TurnByTurn, store: AsyncStore, keys: Keys
) -> None:
    assert await turns.begin("in-other-words") == (INPUT_REQUIRED, "Which table?")

    assert await open_schema(store, keys) is None
    assert await turns.say("in-other-words", 2, Part(text="big")) == (INPUT_REQUIRED, "Which table?")
    assert (await turns.say("in-other-words", 3, Part(text='{"people": 2}')))[0] == COMPLETED


async def test_an_executor_asks_with_a_schema(turns: TurnByTurn, store: AsyncStore, keys: Keys) -> None:
    assert await turns.begin("early") == (INPUT_REQUIRED, "How many?")

    assert json.loads(await open_schema(store, keys) or "") == EarlyAsker.schema
    EarlyAsker.schema = {"$ref": "https://example.com/schema"}
    assert (await turns.say("early", 2, Part(text="3")))[0] == INPUT_REQUIRED
    assert await open_schema(store, keys) is None, "clients could give no answer"


async def test_a_schema_that_a_question_cannot_have_fails_the_run(
    turns: TurnByTurn, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await turns.begin("broken"))[0] == FAILED
    assert "$ref 'https://example.com/schema' in the schema of a question must begin with #" in caplog.text
