"""Tasks that were delegated to a canvas. The watcher checks each task, whatever the results of the others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from a2a.types import TaskState
from celery import Celery
from google.protobuf.json_format import MessageToDict

from a2a_celery.dispatch import Canvas
from a2a_celery.lifecycle.states import COMPLETED, FAILED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.release import delegate_to_canvas
from a2a_celery.watcher.plain_tasks.canvas_finalizer import CanvasFinalizer
from a2a_celery.watcher.plain_tasks.results import Results
from tests.support.store.seeds import Seeds
from tests.support.waiting import eventually_async


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    return Seeds(store, keys)


@pytest.fixture
def celery() -> Celery:
    """App with a result backend."""
    return Celery(backend="cache+memory://", set_as_current=False)


async def delegate_to(seeds: Seeds, keys: Keys, canvas: str) -> str:
    """Create a task that waits for `canvas`, and return its id."""
    claim = await seeds.claim_run()
    await seeds.store.run(
        delegate_to_canvas(keys, claim.ref, token=claim.token, written_count=0, events=[], canvas=canvas)
    )
    return claim.ref.task_id


def canvas_of(celery: Celery, value: Any) -> str:
    """Return the JSON of a canvas that has finished with the result `value`."""
    name = str(uuid4())
    celery.backend.mark_as_done(name, value)
    return Canvas(((name, None), None), datetime.now(UTC) + timedelta(hours=1)).to_json()


async def end_of(seeds: Seeds, ender: CanvasFinalizer, task_id: str) -> TaskState:
    """Run the finalizer until the task is terminal, and return the final state."""

    async def is_ended() -> bool:
        await ender.tick()
        return (await seeds.task(task_id)).status.state in (COMPLETED, FAILED)

    await eventually_async(is_ended)
    return (await seeds.task(task_id)).status.state


def nested(levels: int) -> dict[str, Any]:
    return {"a": nested(levels - 1)} if levels > 1 else {}


@pytest.mark.parametrize("levels", [32, 40, 60])
async def test_a_result_that_no_part_can_hold_fails_its_task(
    store: AsyncStore, keys: Keys, seeds: Seeds, celery: Celery, levels: int
) -> None:
    task_id = await delegate_to(seeds, keys, canvas_of(celery, nested(levels)))

    assert await end_of(seeds, CanvasFinalizer(store, keys, Results(store, keys, celery)), task_id) == FAILED


@pytest.mark.parametrize(
    ("value", "expected"),
    [(10**400, "1" + "0" * 400), ({"deep": [2**60]}, {"deep": [str(2**60)]}), ("\ud800", None)],
    ids=["huge", "large inside", "half a letter"],
)
async def test_a_result_that_a_part_cannot_hold_unchanged_is_sent_as_text(
    store: AsyncStore, keys: Keys, seeds: Seeds, celery: Celery, value: Any, expected: Any
) -> None:
    task_id = await delegate_to(seeds, keys, canvas_of(celery, value))

    assert await end_of(seeds, CanvasFinalizer(store, keys, Results(store, keys, celery)), task_id) == COMPLETED
    [part] = (await seeds.task(task_id)).artifacts[0].parts
    assert (part.text if expected is None else MessageToDict(part)["data"]) == ("�" if expected is None else expected)


async def test_an_unreadable_canvas_delays_no_other(
    store: AsyncStore, keys: Keys, seeds: Seeds, celery: Celery
) -> None:
    broken = await delegate_to(seeds, keys, Canvas(((), None), datetime.now(UTC)).to_json())
    good = [await delegate_to(seeds, keys, canvas_of(celery, n)) for n in range(5)]
    ender = CanvasFinalizer(store, keys, Results(store, keys, celery))

    assert {await end_of(seeds, ender, task_id) for task_id in good} == {COMPLETED}
    assert (await seeds.task(broken)).status.state not in (COMPLETED, FAILED)
