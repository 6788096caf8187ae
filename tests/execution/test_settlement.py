"""Settlement of runs. A run is settled once, with the outcome of its agent, and the next run of its task is
published."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from a2a.types import Message, Role
from a2a.utils.errors import InvalidAgentResponseError

from a2a_celery import InputRequired, Turn
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.lifecycle import Canceled, Completed, Failure
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, SUBMITTED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.operation import FIRST_PUBLISH_GRACE_US
from a2a_celery.store.tasks.commands import continue_task
from tests.support.store.replies import begins
from tests.support.store.seeds import ANN, CONTEXT, chunk, request, status

from .local_agents import local_agents
from .scene import Scene, until


@pytest.mark.parametrize(("outcome", "state"), [(Completed(), COMPLETED), (Failure(), FAILED), (Canceled(), CANCELED)])
async def test_an_open_run_ends_with_its_outcome(scene: Scene, outcome: Any, state: Any) -> None:
    claim, events = await scene.begin()
    await events.enqueue_event(chunk("a"))

    await scene.settle(claim, events, outcome)

    assert await scene.seeds.states(claim.task.id) == [SUBMITTED, WORKING, state]


async def test_an_end_written_by_the_agent_is_the_only_one(scene: Scene) -> None:
    claim, events = await scene.begin()
    await events.enqueue_event(status(FAILED, "my own words"))

    await scene.settle(claim, events, Completed())

    assert await scene.seeds.states(claim.task.id) == [SUBMITTED, WORKING, FAILED]


async def test_a_pause_and_a_return_are_settled_once_and_can_be_answered_right_after(scene: Scene) -> None:
    claim, events = await scene.begin()
    await events.enqueue_event(chunk("so far"))
    await events.enqueue_event(status(INPUT_REQUIRED, "which?"))

    await scene.settle(claim, events)

    task_id = claim.task.id
    assert await scene.seeds.states(task_id) == [SUBMITTED, WORKING, INPUT_REQUIRED]
    assert scene.gate.calls.count("settle_run") == 1
    message_request = request("this", task_id, CONTEXT)
    answer = await scene.gate.run(continue_task(scene.keys, ANN, task_id, message_request, "", caller=b"{}", nonce="n"))
    assert begins(answer)


async def test_a_pause_is_not_shown_before_the_run_is_over_if_the_agent_returns(scene: Scene) -> None:
    claim, events = await scene.begin()
    await events.enqueue_event(chunk("so far"))
    await events.enqueue_event(status(INPUT_REQUIRED, "which?"))

    async def chunk_written() -> bool:
        return len(await scene.seeds.log(claim.task.id)) == 3

    await until(chunk_written)
    assert INPUT_REQUIRED not in await scene.seeds.states(claim.task.id)


async def test_a_pause_is_shown_after_the_hold_if_the_agent_continues(scene: Scene) -> None:
    claim, events = await scene.begin(hold=0.01)
    await events.enqueue_event(status(INPUT_REQUIRED, "which?"))

    async def shown() -> bool:
        return await scene.seeds.states(claim.task.id) == [SUBMITTED, WORKING, INPUT_REQUIRED]

    await until(shown)
    await events.enqueue_event(status(WORKING, "never mind"))
    await scene.settle(claim, events)
    assert (await scene.seeds.states(claim.task.id))[2:] == [INPUT_REQUIRED, WORKING, COMPLETED]


async def test_a_message_that_waited_begins_the_next_run_which_is_published(scene: Scene) -> None:
    claim, events = await scene.begin()
    message_request = request("next", claim.task.id, CONTEXT)
    await scene.gate.run(continue_task(scene.keys, ANN, claim.task.id, message_request, "", caller=b"{}", nonce="n"))

    await events.enqueue_event(status(INPUT_REQUIRED, "and?"))
    await scene.settle(claim, events)

    assert scene.published == [("agent", 2)]


@pytest.mark.parametrize("follows", ["a waiting message", "the next task of the context"])
async def test_the_next_run_is_recorded_as_published(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis, follows: str
) -> None:
    """Without the record, a watcher would publish a second message of each run that waits in its queue."""
    next_run = RunRef("t", 2) if follows == "a waiting message" else RunRef("next", 1)
    async with local_agents(store, keys, redis_server.store_url) as agents:

        @agents.a2a.agent("agent")
        async def pauses(turn: Turn) -> None:
            raise InputRequired

        for task_id in ["t"] if follows == "a waiting message" else ["t", "next"]:
            await agents.create(task_id, serialize_context=True)
        if follows == "a waiting message":
            message = request("next", "t", CONTEXT)
            await store.run(continue_task(keys, ANN, "t", message, "", caller=b"{}", nonce="n"))
        await agents.perform("agent", "t")

        async def is_published() -> bool:
            published_at = await store.redis.hget(keys.task(next_run.task_id).record, "published_at")
            return published_at is not None and published_at.startswith(b"%d " % next_run.run)

        await until(is_published)
        seconds, _ = await store.redis.time()
        due = await store.redis.zscore(keys.dispatch, next_run.name) / 1_000_000 - seconds
        assert due > FIRST_PUBLISH_GRACE_US / 1_000_000 + 1


async def test_events_after_a_settlement_are_dropped(scene: Scene) -> None:
    claim, events = await scene.begin()
    await scene.settle(claim, events)

    await events.enqueue_event(chunk("late"))

    assert len(await scene.seeds.log(claim.task.id)) == 3


async def test_an_end_on_hold_waits_for_the_settlement(scene: Scene) -> None:
    claim, events = await scene.begin()
    events.hold_end()
    await events.enqueue_event(chunk("a"))
    await events.enqueue_event(status(CANCELED))

    async def chunk_written() -> bool:
        return len(await scene.seeds.log(claim.task.id)) == 3

    await until(chunk_written)
    await scene.settle(claim, events, Canceled())
    assert await scene.seeds.states(claim.task.id) == [SUBMITTED, WORKING, CANCELED]


async def test_a_cancelled_run_that_could_not_be_settled_can_still_fail(scene: Scene) -> None:
    claim, events = await scene.begin()
    events.hold_end()
    await events.enqueue_event(status(COMPLETED))

    await scene.settle(claim, events, Failure())

    assert await scene.seeds.states(claim.task.id) == [SUBMITTED, WORKING, FAILED]


async def test_a_run_lost_at_its_settlement_is_marked_as_lost(scene: Scene) -> None:
    claim, events = await scene.begin()
    await scene.seeds.store.redis.hset(scene.keys.task(claim.task.id).record, "token", "another's")
    data_before = await scene.seeds.all_values()

    await scene.settle(claim, events)

    assert scene.run_of(events).is_lost
    assert await scene.seeds.all_values() == data_before


async def test_a_settlement_whose_answer_is_lost_still_publishes_the_next_run(scene: Scene) -> None:
    claim, events = await scene.begin()
    message_request = request("next", claim.task.id, CONTEXT)
    await scene.gate.run(continue_task(scene.keys, ANN, claim.task.id, message_request, "", caller=b"{}", nonce="n"))
    await events.enqueue_event(status(INPUT_REQUIRED))
    scene.gate.open.clear()
    scene.gate.lose_answers = 1

    settling = asyncio.create_task(scene.settle(claim, events))
    scene.gate.open.set()
    await settling

    assert scene.published == [("agent", 2)]
    assert not scene.run_of(events).is_lost


async def test_a_run_can_end_otherwise_after_a_refused_answer(scene: Scene) -> None:
    claim, events = await scene.begin(working=False)
    unsendable = Message(message_id="m", role=Role.ROLE_AGENT)
    unsendable.metadata.fields["x"].number_value = float("nan")

    with pytest.raises(InvalidAgentResponseError):
        await events.enqueue_event(unsendable)
    await scene.settle(claim, events, Failure())

    assert await scene.seeds.states(claim.task.id) == [SUBMITTED, FAILED]


@pytest.mark.parametrize("last", [[], [chunk("a")]])
async def test_an_invalid_end_is_a_failure(scene: Scene, last: list[Any]) -> None:
    claim, events = await scene.begin()

    async with asyncio.timeout(20):
        await scene.settlement(events).write(last, 0)

    assert scene.gate.calls == ["settle_run", "settle_run"]
    assert await scene.seeds.states(claim.task.id) == [SUBMITTED, WORKING, FAILED]


async def test_a_run_whose_events_the_store_lost_is_lost_and_logged(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    claim, events = await scene.begin()
    task_id = claim.task.id
    backup = await scene.seeds.backup()
    await events.enqueue_event(chunk("a"))

    async def is_written() -> bool:
        return len(await scene.seeds.log(task_id)) == 3

    await until(is_written)
    await scene.seeds.restore(backup)
    await events.enqueue_event(chunk("b"))
    await until(lambda: asyncio.sleep(0, scene.run_of(events).is_lost))
    await scene.settle(claim, events)

    assert await scene.seeds.states(task_id) == [SUBMITTED, WORKING]
    assert f"run {claim.ref.name} is lost: the store lost 1 confirmed events" in caplog.text
    assert await scene.seeds.store.redis.hget(scene.keys.task(task_id).record, "token") == b""
