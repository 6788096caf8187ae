"""Return values, yielded values and exceptions of function agents in the log of their tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from a2a.types import Message, Part, Role, Task, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent

from a2a_celery import InputRequired, Turn
from a2a_celery.caller import Caller
from a2a_celery.execution.agents.adapters import FunctionAdapter
from a2a_celery.execution.agents.running_agent import RunningAgent
from a2a_celery.execution.run import begin_agent
from a2a_celery.lifecycle import Event
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED
from tests.support.store.seeds import status

from .scene import Scene


async def yields(turn: Turn) -> AsyncIterator[Any]:
    yield "one"
    yield {"two": 2}


def yields_in_a_thread(turn: Turn) -> Iterator[Any]:
    yield "one"
    yield {"two": 2}


async def yields_and_asks(turn: Turn) -> AsyncIterator[Any]:
    yield "one"
    yield {"two": 2}
    raise InputRequired("which?")


async def yields_and_sends_its_end(turn: Turn) -> AsyncIterator[Any]:
    yield "one"
    yield {"two": 2}
    yield status(COMPLETED)


async def yields_and_sends_a_message(turn: Turn) -> AsyncIterator[Any]:
    yield "one"
    yield {"two": 2}
    yield Message(message_id="m", role=Role.ROLE_AGENT, parts=[Part(text="the end")])


async def yields_and_sends_its_task(turn: Turn) -> AsyncIterator[Any]:
    yield "one"
    yield {"two": 2}
    yield Task(status=TaskStatus(state=COMPLETED))


async def yields_and_sends_its_question(turn: Turn) -> AsyncIterator[Any]:
    yield "one"
    yield {"two": 2}
    yield status(INPUT_REQUIRED)


async def yields_and_fails(turn: Turn) -> AsyncIterator[Any]:
    yield "one"
    yield {"two": 2}
    raise ValueError("broken")


async def yields_nothing(turn: Turn) -> AsyncIterator[Any]:
    for item in ():
        yield item


async def log_of(scene: Scene, function: Callable[[Turn], Any]) -> list[Event]:
    """Run `function` as an agent and return the events of its task."""
    claim = await scene.seeds.claim_run()
    claim = replace(claim, turn=replace(claim.turn, caller=Caller().to_json()))
    events = scene.open(claim)
    run = scene.run_of(events)
    begin_agent(RunningAgent(run, events))
    try:
        await FunctionAdapter(function).run(run, events)
    except (InputRequired, ValueError):
        pass
    await scene.settle(claim, events)
    return [entry.event for entry in await scene.seeds.log(claim.ref.task_id)]


async def chunks_of(scene: Scene, function: Callable[[Turn], Any]) -> list[TaskArtifactUpdateEvent]:
    """Run `function` as an agent and return the artifact events of its task."""
    return [event for event in await log_of(scene, function) if isinstance(event, TaskArtifactUpdateEvent)]


@pytest.mark.parametrize(
    "function",
    [
        yields,
        yields_in_a_thread,
        yields_and_asks,
        yields_and_sends_its_end,
        yields_and_sends_a_message,
        yields_and_sends_its_task,
        yields_and_sends_its_question,
    ],
)
async def test_the_artifact_of_a_generator_ends_with_its_last_chunk(
    scene: Scene, function: Callable[[Turn], Any]
) -> None:
    chunks = await chunks_of(scene, function)

    assert [(chunk.append, chunk.last_chunk) for chunk in chunks] == [(False, False), (True, False), (True, True)]
    assert len({chunk.artifact.artifact_id for chunk in chunks}) == 1
    assert [part.text for part in chunks[-1].artifact.parts] == [""]


async def test_the_last_chunk_precedes_a_question(scene: Scene) -> None:
    """A stream ends with the question."""
    [*_, last_chunk, question] = await log_of(scene, yields_and_sends_its_question)

    assert isinstance(last_chunk, TaskArtifactUpdateEvent)
    assert last_chunk.last_chunk
    assert isinstance(question, TaskStatusUpdateEvent)


async def test_the_artifact_of_a_generator_that_fails_stays_open(scene: Scene) -> None:
    chunks = await chunks_of(scene, yields_and_fails)

    assert [(chunk.append, chunk.last_chunk) for chunk in chunks] == [(False, False), (True, False)]


async def test_a_generator_that_yields_nothing_has_no_artifact(scene: Scene) -> None:
    assert await chunks_of(scene, yields_nothing) == []


async def test_the_chunks_of_a_text_become_one_part_of_the_task(scene: Scene) -> None:
    async def streams(turn: Turn) -> AsyncIterator[str]:
        for number in range(400):
            yield f"{number} "

    chunks = await chunks_of(scene, streams)

    task = await scene.seeds.task(chunks[0].task_id)
    assert [part.text for part in task.artifacts[0].parts] == ["".join(f"{number} " for number in range(400))]
    assert [part.text for chunk in chunks for part in chunk.artifact.parts] == [*(f"{n} " for n in range(400)), ""]
