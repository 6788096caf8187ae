"""Large whole numbers and halves of characters that agents send, in all their texts and values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from a2a.types import Message, Part, Role, Task
from celery import Celery
from celery import Task as CeleryTask
from google.protobuf.json_format import MessageToDict
from pydantic import BaseModel

from a2a_celery import A2A, Failed, Turn
from a2a_celery.caller import Caller
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.lifecycle.states import COMPLETED, FAILED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.tasks.commands import create_task
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, request

from .local_agents import LocalAgents, local_agents
from .scene import perform_run

HIGH, LOW = "\ud83d", "\ude00"
LARGE = 2**60 + 1


@dataclass
class Page:
    text: str


class Model(BaseModel):
    text: str


@pytest.fixture
async def agents(store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis) -> AsyncIterator[LocalAgents]:
    async with local_agents(store, keys, redis_server.store_url) as agents:
        yield agents


def text_of(task: Task) -> str:
    return "".join(part.text for artifact in task.artifacts for part in artifact.parts)


async def yields_halves(turn: Turn) -> AsyncIterator[str]:
    yield f"ok {HIGH}"
    yield f"{LOW}{HIGH}"
    yield LOW


def yields_halves_in_a_thread(turn: Turn) -> Iterator[str]:
    yield f"ok {HIGH}"
    yield f"{LOW}{HIGH}"
    yield LOW


async def yields_single_characters(turn: Turn) -> AsyncIterator[Any]:
    for half in "ok ":
        yield half
    yield HIGH
    yield None
    yield LOW
    yield HIGH
    yield LOW


async def yields_a_half_before_data(turn: Turn) -> AsyncIterator[Any]:
    yield f"ok {HIGH}"
    yield Part(text=" and ")
    yield LOW


async def ends_with_a_half(turn: Turn) -> AsyncIterator[Any]:
    yield f"ok {HIGH}"


async def yields_a_half_before_a_message(turn: Turn) -> AsyncIterator[Any]:
    yield f"ok {HIGH}"
    yield Message(message_id="m", role=Role.ROLE_AGENT, parts=[Part(text="the end")])


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (yields_halves, "ok 😀😀"),
        (yields_halves_in_a_thread, "ok 😀😀"),
        (yields_single_characters, "ok 😀😀"),
        (yields_a_half_before_data, "ok � and �"),
        (ends_with_a_half, "ok �"),
        (yields_a_half_before_a_message, "ok �"),
    ],
)
async def test_halves_of_a_character_in_consecutive_pieces_are_joined(
    agents: LocalAgents, function: Callable[[Turn], Any], text: str
) -> None:
    agents.a2a.agent("plan")(function)

    task = await agents.play("plan")

    assert (task.status.state, text_of(task)) == (COMPLETED, text)


async def says(turn: Turn) -> str:
    await turn.say(f"name {HIGH}", note=f"note {LOW}", at=LARGE)
    async with turn.model_call(f"model {HIGH}"):
        pass
    await turn.artifact({"file": "a\udcff"}, name=f"name {HIGH}", artifact_id="file")
    return "done"


async def test_progress_names_and_metadata_do_not_fail(agents: LocalAgents) -> None:
    agents.a2a.agent("plan", show_execution=True)(says)

    task = await agents.play("plan")

    assert task.status.state == COMPLETED
    file = next(artifact for artifact in task.artifacts if artifact.artifact_id == "file")
    assert (file.name, MessageToDict(file.parts[0])["data"]) == ("name �", {"file": "a�"})
    assert [part.text for message in task.history for part in message.parts][1:] == ["name �"]
    assert (task.metadata["note"], task.metadata["at"]) == ("note �", str(LARGE))


async def test_a_result_with_a_half_and_a_large_number_does_not_fail(agents: LocalAgents) -> None:
    @agents.a2a.agent("plan")
    async def plan(turn: Turn) -> Any:
        return {"file": "a\udcff", "id": LARGE}

    task = await agents.play("plan")

    assert task.status.state == COMPLETED
    assert MessageToDict(task.artifacts[0].parts[0])["data"] == {"file": "a�", "id": str(LARGE)}


async def test_a_question_and_a_failure_may_contain_halves(agents: LocalAgents) -> None:
    @agents.a2a.agent("asks")
    async def asks(turn: Turn) -> Any:
        return await turn.ask(f"which {HIGH}?", schema={"type": "string", "title": f"a {LOW}"})

    task = await agents.play("asks")

    assert task.status.state == INPUT_REQUIRED
    assert task.status.message.parts[0].text == "which �?"


async def test_the_text_of_a_failure_may_contain_halves(agents: LocalAgents) -> None:
    @agents.a2a.agent("fails")
    async def fails(turn: Turn) -> Any:
        raise Failed(f"no {HIGH}")

    task = await agents.play("fails")

    assert (task.status.state, task.status.message.parts[0].text) == (FAILED, "no �")


@pytest.mark.parametrize(
    "value", ["a\udcff", {"a\udcff": ["\ud83d"]}, Page("a\udcff"), Model(text="a\udcff")], ids=ascii
)
async def test_the_result_of_a_step_may_contain_halves(agents: LocalAgents, value: Any) -> None:
    results = []

    @agents.a2a.agent("steps")
    async def steps(turn: Turn) -> str:
        results.append(await turn.step("read", lambda: value))
        return "done"

    task = await agents.play("steps")

    assert task.status.state == COMPLETED
    if isinstance(value, str | dict):
        assert results == [value]
    else:
        assert results[0].text == "a�"


async def test_hooks_may_add_halves_and_large_numbers(agents: LocalAgents) -> None:
    agents.a2a.before_run(lambda run: run.metadata.update(note=f"a {HIGH}", at=LARGE))

    @agents.a2a.agent("plan")
    async def plan(turn: Turn) -> str:
        return "done"

    task = await agents.play("plan")

    assert (task.metadata["note"], task.metadata["at"]) == ("a �", str(LARGE))


async def test_an_exposed_task_may_report_and_return_halves_and_large_numbers(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis
) -> None:
    app = Celery("test", broker="memory://", set_as_current=False)
    app.conf.update(a2a_store_url=redis_server.store_url, a2a_key_prefix=keys.prefix)

    @app.task(bind=True, shared=False)
    def reports(self: CeleryTask, text: str) -> Any:
        self.update_state(state="PROGRESS", meta={"file": "a\udcff", "at": LARGE})
        return {"file": "a\udcff", "id": LARGE}

    a2a = A2A(app)
    a2a.expose(reports)
    worker = a2a.worker()
    caller = Caller(user="ann").to_json()
    await store.run(create_task(keys, ANN, "t", CONTEXT, request(), caller=caller, retention=RETENTION))
    await asyncio.to_thread(perform_run, a2a.agents["reports"].code, "t.1", text="x")
    await asyncio.to_thread(worker.close)

    task = await Seeds(store, keys).task("t")
    assert task.status.state == COMPLETED
    assert (task.metadata["file"], task.metadata["at"]) == ("a�", str(LARGE))
    assert MessageToDict(task.artifacts[0].parts[0])["data"] == {"file": "a�", "id": str(LARGE)}
