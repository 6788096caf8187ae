"""Return values, yielded values and exceptions of function agents in the log of their tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from a2a.types import TaskArtifactUpdateEvent

from a2a_celery import InputRequired, Turn
from a2a_celery.caller import Caller
from a2a_celery.execution.agents.adapters import FunctionAdapter
from a2a_celery.execution.agents.journal import open_journal
from a2a_celery.execution.process.thread_cleanup import ThreadCleanup
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.settings import Settings
from tests.support.seeds import status

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


async def yields_and_fails(turn: Turn) -> AsyncIterator[Any]:
    yield "one"
    yield {"two": 2}
    raise ValueError("broken")


async def yields_nothing(turn: Turn) -> AsyncIterator[Any]:
    for item in ():
        yield item


async def chunks_of(scene: Scene, function: Callable[[Turn], Any]) -> list[TaskArtifactUpdateEvent]:
    """Run `function` as an agent and return the artifact events of its task."""
    claim, events = await scene.begin()
    claim = replace(claim, caller=Caller().to_json())
    open_journal(claim, events, Settings(store_url="redis://127.0.0.1/0"))
    try:
        await FunctionAdapter(function, ThreadCleanup()).run(claim, events)
    except (InputRequired, ValueError):
        pass
    await scene.settle(claim, events)
    log_events = [entry.event for entry in await scene.seeds.log(claim.ref.task_id)]
    return [event for event in log_events if isinstance(event, TaskArtifactUpdateEvent)]


@pytest.mark.parametrize("function", [yields, yields_in_a_thread, yields_and_asks, yields_and_sends_its_end])
async def test_the_artifact_of_a_generator_ends_with_its_last_chunk(
    scene: Scene, function: Callable[[Turn], Any]
) -> None:
    chunks = await chunks_of(scene, function)

    assert [(chunk.append, chunk.last_chunk) for chunk in chunks] == [(False, False), (True, False), (True, True)]
    assert len({chunk.artifact.artifact_id for chunk in chunks}) == 1
    assert [part.text for part in chunks[-1].artifact.parts] == [""]


async def test_the_artifact_of_a_generator_that_fails_stays_open(scene: Scene) -> None:
    chunks = await chunks_of(scene, yields_and_fails)

    assert [(chunk.append, chunk.last_chunk) for chunk in chunks] == [(False, False), (True, False)]


async def test_a_generator_that_yields_nothing_has_no_artifact(scene: Scene) -> None:
    assert await chunks_of(scene, yields_nothing) == []
