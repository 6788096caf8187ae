"""Runs with large parts while the object store is unavailable. They wait for a limited time and then fail."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from a2a.types import Part

from a2a_celery.errors import BlobsUnavailable
from a2a_celery.execution.open_run import OpenRun
from a2a_celery.lifecycle import Failure
from a2a_celery.lifecycle.outcomes import OUT_OF_REACH
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import COMPLETED, FAILED, WORKING
from a2a_celery.store import Keys, Operation
from a2a_celery.store.runs.commands import Claim, Dropped, RetryUnrecorded, claim_run
from tests.support.clocks import SkippingClock
from tests.support.store.blob_setup import BlobSetup, create_task_with_parts
from tests.support.store.seeds import LEASE_US, Seeds, chunk, status

from .scene import AGENT, SETTINGS, Gate, Scene, until

LARGE = "x" * 3000


@pytest.fixture
async def blob_scene(blob_setup: BlobSetup, keys: Keys) -> AsyncIterator[Scene]:
    """Scene whose large parts are in a folder."""
    scene = Scene(Gate(blob_setup.store), keys, Seeds(blob_setup.store, keys))
    yield scene
    for events in scene.opened:
        await events.abandon()


async def test_events_during_an_outage_are_written_in_order(blob_scene: Scene, blob_setup: BlobSetup) -> None:
    claim, events = await blob_scene.begin()
    blob_setup.object_store.is_down = True
    for number in range(5):
        await events.enqueue_event(chunk(f"{number}{LARGE}"))

    async def has_tried() -> bool:
        return blob_scene.gate.calls.count("append") > 3

    await until(has_tried)
    blob_setup.object_store.is_down = False
    await blob_scene.settle(claim, events)

    assert [text[0] for text in await blob_scene.texts(claim.task.id)] == list("01234")
    assert (await blob_scene.seeds.task(claim.task.id)).status.state == COMPLETED
    await blob_scene.seeds.require_consistent(claim.task.id)


@pytest.mark.parametrize("sends_the_end", [False, True])
async def test_a_permanent_outage_fails_the_run(blob_scene: Scene, blob_setup: BlobSetup, sends_the_end: bool) -> None:
    claim, events = await blob_scene.begin(clock=SkippingClock())
    await events.enqueue_event(chunk("small"))

    async def is_written() -> bool:
        return len(await blob_scene.seeds.log(claim.task.id)) == 3

    await until(is_written)
    blob_setup.object_store.is_down = True
    await events.enqueue_event(chunk(LARGE))
    if sends_the_end:
        await events.enqueue_event(status(COMPLETED))

    async def is_stuck() -> bool:
        return events.aborted.is_set()

    await until(is_stuck)
    await events.enqueue_event(chunk("too late"))
    await blob_scene.settle(claim, events, Failure(OUT_OF_REACH, reference="r"))

    task = await blob_scene.seeds.task(claim.task.id)
    assert not blob_scene.run_of(events).is_lost
    assert (task.status.state, task.status.message.parts[0].text) == (FAILED, OUT_OF_REACH)
    assert [part.text for part in task.artifacts[0].parts] == ["small"]
    assert await blob_scene.seeds.states(claim.task.id) == [1, WORKING, FAILED]
    await blob_scene.seeds.require_consistent(claim.task.id)


async def test_a_run_with_an_unwritable_end_fails(blob_scene: Scene, blob_setup: BlobSetup) -> None:
    claim, events = await blob_scene.begin(clock=SkippingClock())
    blob_setup.object_store.is_down = True
    await events.enqueue_event(status(COMPLETED, LARGE))
    with pytest.raises(BlobsUnavailable) as exc_info:
        await blob_scene.settle(claim, events)

    events.fail_unwritable(exc_info.value)
    await blob_scene.settle(claim, events, Failure(OUT_OF_REACH))

    assert (await blob_scene.seeds.task(claim.task.id)).status.state == FAILED


async def test_a_related_task_is_never_read_in_part(blob_scene: Scene, blob_setup: BlobSetup) -> None:
    other, claim = await blob_scene.seeds.claim_run(), await blob_scene.seeds.claim_run()
    await blob_scene.seeds.append_events(other, chunk(LARGE))
    run = OpenRun(blob_setup.store, blob_scene.keys, claim, SETTINGS, AGENT, clock=SkippingClock())

    [task] = await run.own_tasks([other.ref.task_id])
    blob_setup.object_store.is_down = True
    with pytest.raises(BlobsUnavailable):
        await run.own_tasks([other.ref.task_id])

    assert task.artifacts[0].parts[0].text == LARGE


async def test_an_agent_gets_its_complete_task_or_does_not_run(blob_scene: Scene, blob_setup: BlobSetup) -> None:
    task_id = await create_task_with_parts(blob_scene.seeds, [Part(text=LARGE)])

    def claiming(resolve_blobs: bool = True) -> Operation[Claim | Dropped | RetryUnrecorded]:
        return claim_run(
            blob_scene.keys,
            RunRef(task_id, 1),
            token="t",
            runner="r",
            lease_us=LEASE_US,
            working=True,
            resolve_blobs=resolve_blobs,
        )

    claim = await blob_setup.store.run(claiming(resolve_blobs=False))
    assert isinstance(claim, Claim)
    run = OpenRun(blob_setup.store, blob_scene.keys, claim, SETTINGS, AGENT, clock=SkippingClock())
    blob_setup.object_store.is_down = True
    with pytest.raises(BlobsUnavailable):
        await run.complete_claim(claiming)
    assert run.claim is claim
    blob_setup.object_store.is_down = False

    await run.complete_claim(claiming)
    whole_claim = run.claim

    assert (claim.snapshot.is_resolved, whole_claim.snapshot.is_resolved) == (False, True)
    assert whole_claim.turn.request.message.parts[0].text == whole_claim.task.history[0].parts[0].text == LARGE
