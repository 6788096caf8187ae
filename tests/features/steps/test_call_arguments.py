"""Beginnings of the arguments of recorded calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from a2a_celery import Turn
from a2a_celery.features.steps.call_arguments import MAX_ARGUMENTS
from a2a_celery.store.runs.journal import read_recorded
from tests.execution.attempts import Task
from tests.execution.scene import Scene


@dataclass
class Trip:
    """Argument of a step."""

    city: str
    client: object


class Options(BaseModel):
    """Argument of a step."""

    days: int


class Broken:
    """Argument of a step whose attributes cannot be read."""

    __class__ = property(lambda self: 1 / 0)  # type: ignore[assignment]


CIRCULAR: list[Any] = []
CIRCULAR.append(CIRCULAR)


@pytest.mark.parametrize(
    ("args", "kwargs", "beginning"),
    [
        ((), {}, ""),
        (("Rome", 3), {}, '["Rome",3]'),
        ((), {"days": 3}, '{"days":3}'),
        (("Rome",), {"days": None}, '["Rome",{"days":null}]'),
        ((Trip("Rome", object()), Options(days=3)), {}, '[{"city":"Rome","client":"<object>"},{"days":3}]'),
        ((b"x", {1: 2, (1, 2): 3}), {}, '["<bytes>",{"1":2}]'),
        (("Zürich \ud800",), {}, '["Zürich \ufffd"]'),
        (("x" * 10**6,), {}, '["' + "x" * 195 + "…"),
        (([1] * 10**6,), {}, "[[" + "1," * 97 + "1…"),
        ((CIRCULAR,), {}, "[" * 101 + "]" * 96 + "…"),
        ((10**5000,), {}, ""),
        ((Broken(),), {}, ""),
    ],
)
async def test_the_beginning_of_the_arguments_is_recorded(
    task: Task, scene: Scene, args: tuple[Any, ...], kwargs: dict[str, Any], beginning: str
) -> None:
    async def work(*args: Any, **kwargs: Any) -> None: ...

    async def agent(turn: Turn) -> None:
        await turn.step("work", work, *args, **kwargs)

    await task.attempt(agent)

    recorded = await scene.gate.store.run(read_recorded(scene.keys, task.task_id, max_content=4))
    [entry] = [item.entry for item in recorded.entries]
    assert entry.arguments == beginning
    assert len(beginning.encode()) <= MAX_ARGUMENTS
