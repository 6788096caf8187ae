"""Event queue of a run. It writes events to the log once, in order and in few writes, while the run holds its lease."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.types import Message, Part, Role, Task, TaskState, TaskStatus

from a2a_celery.caller import Caller
from a2a_celery.execution.agents.adapters import ExecutorAdapter
from a2a_celery.execution.events.queue import MAX_PENDING
from a2a_celery.lifecycle.states import COMPLETED, FAILED, INPUT_REQUIRED, SUBMITTED, WORKING
from tests.support.store.seeds import chunk, status

from .scene import Scene, until


async def test_events_during_a_write_are_written_together_in_order(scene: Scene) -> None:
    claim, events = await scene.begin()
    scene.gate.open.clear()

    for number in range(50):
        await events.enqueue_event(chunk(str(number)))
    scene.gate.open.set()
    await scene.settle(claim, events)

    assert await scene.texts(claim.task.id) == [str(n) for n in range(50)]
    assert len(scene.gate.calls) <= 3
    assert (await scene.seeds.task(claim.task.id)).status.state == COMPLETED
    await scene.seeds.require_consistent(claim.task.id)


async def test_events_are_written_while_the_agent_works(scene: Scene) -> None:
    claim, events = await scene.begin()

    for number in range(5):
        await events.enqueue_event(chunk(str(number)))

        async def is_written(length: int = number + 3) -> bool:
            return len(await scene.seeds.log(claim.task.id)) == length

        await until(is_written)


async def test_events_after_the_end_are_dropped(scene: Scene) -> None:
    claim, events = await scene.begin()
    await events.enqueue_event(status(COMPLETED))
    for late_event in (chunk("late"), status(FAILED), status(WORKING)):
        await events.enqueue_event(late_event)

    await scene.settle(claim, events)

    assert await scene.seeds.states(claim.task.id) == [SUBMITTED, WORKING, COMPLETED]
    assert len(await scene.seeds.log(claim.task.id)) == 3


async def test_a_lost_run_writes_nothing_and_is_marked_as_lost(scene: Scene) -> None:
    claim, events = await scene.begin()
    await scene.seeds.store.redis.hset(scene.keys.task(claim.task.id).record, "token", "another's")
    data_before = await scene.seeds.all_values()

    await events.enqueue_event(chunk("a"))
    async with asyncio.timeout(10):
        await events.aborted.wait()
    assert scene.run_of(events).is_lost
    await events.enqueue_event(chunk("b"))
    await scene.settle(claim, events)

    assert await scene.seeds.all_values() == data_before


async def test_an_abandoned_run_writes_nothing_more(scene: Scene) -> None:
    claim, events = await scene.begin()
    scene.gate.open.clear()
    await events.enqueue_event(chunk("a"))

    async with asyncio.timeout(10):
        await events.abandon()
    scene.gate.open.set()
    await events.enqueue_event(chunk("b"))

    assert len(await scene.seeds.log(claim.task.id)) == 2


@pytest.mark.parametrize("trouble", [{"refuse": 3}, {"lose_answers": 3}, {"refuse": 1, "lose_answers": 2}])
async def test_a_write_waits_for_the_store_and_is_written_once(scene: Scene, trouble: dict[str, int]) -> None:
    claim, events = await scene.begin()
    vars(scene.gate).update(trouble)

    for number in range(3):
        await events.enqueue_event(chunk(str(number)))

    async def is_written() -> bool:
        return len(await scene.seeds.log(claim.task.id)) == 5

    await until(is_written)
    vars(scene.gate).update(trouble)
    await scene.settle(claim, events)
    assert await scene.texts(claim.task.id) == ["0", "1", "2"]
    assert await scene.seeds.states(claim.task.id) == [SUBMITTED, WORKING, COMPLETED]


async def test_working_is_announced_after_the_hold(scene: Scene) -> None:
    claim, events = await scene.begin(hold=0.01, working=False)

    events.announce_later()

    async def is_announced() -> bool:
        return await scene.seeds.states(claim.task.id) == [SUBMITTED, WORKING]

    await until(is_announced)


async def test_within_the_hold_a_message_alone_is_the_answer(scene: Scene) -> None:
    claim, events = await scene.begin(working=False)
    events.announce_later()

    await events.enqueue_event(Message(message_id="m", role=Role.ROLE_AGENT, parts=[Part(text="42")]))
    await scene.settle(claim, events)

    log = await scene.seeds.log(claim.task.id)
    assert isinstance(log[-1].event, Message)
    assert len(log) == 2
    assert (await scene.seeds.task(claim.task.id)).status.state == COMPLETED


async def test_after_the_hold_a_message_completes_the_task(scene: Scene) -> None:
    claim, events = await scene.begin(hold=0.0, working=False)
    events.announce_later()

    async def is_announced() -> bool:
        return WORKING in await scene.seeds.states(claim.task.id)

    await until(is_announced)
    await events.enqueue_event(Message(message_id="m", role=Role.ROLE_AGENT, parts=[Part(text="42")]))
    await scene.settle(claim, events)

    assert await scene.seeds.states(claim.task.id) == [SUBMITTED, WORKING, COMPLETED]
    assert (await scene.seeds.task(claim.task.id)).status.message.parts[0].text == "42"


async def test_an_agent_faster_than_the_store_waits(scene: Scene) -> None:
    claim, events = await scene.begin()
    scene.gate.open.clear()

    sent: list[int] = []

    async def talk() -> None:
        for number in range(MAX_PENDING + 50):
            await events.enqueue_event(chunk(str(number)))
            sent.append(number)

    talking = asyncio.create_task(talk())
    finished_tasks, _ = await asyncio.wait({talking}, timeout=0.1)
    assert not finished_tasks
    assert len(sent) == MAX_PENDING - 1, "the call that fills the queue waits"

    scene.gate.open.set()
    async with asyncio.timeout(10):
        await talking
    await scene.settle(claim, events)
    assert await scene.texts(claim.task.id) == [str(n) for n in range(MAX_PENDING + 50)]


async def test_an_agent_blocked_by_a_full_queue_continues_when_its_run_is_lost(scene: Scene) -> None:
    _, events = await scene.begin()
    scene.gate.open.clear()

    async def talk() -> None:
        while not scene.run_of(events).is_lost:
            await events.enqueue_event(chunk("x"))

    talking = asyncio.create_task(talk())
    await asyncio.wait({talking}, timeout=0.05)

    async with asyncio.timeout(10):
        await events.abandon()
        await talking


class Witness(AgentExecutor):
    """Executor that records the request contexts of `execute` and `cancel`."""

    def __init__(self) -> None:
        self.executed: RequestContext
        self.cancelled: RequestContext

    async def execute(self, context: RequestContext, event_queue: Any) -> None:
        self.executed = context

    async def cancel(self, context: RequestContext, event_queue: Any) -> None:
        self.cancelled = context


@pytest.mark.parametrize(
    ("interrupted_state", "attempt", "new"), [(None, 1, True), (None, 2, True), (INPUT_REQUIRED, 1, False)]
)
async def test_an_executor_gets_no_current_task_in_the_first_turn(
    scene: Scene, interrupted_state: TaskState | None, attempt: int, new: bool
) -> None:
    claim = await scene.seeds.claim_run()
    turn = replace(claim.turn, caller=Caller().to_json(), interrupted_state=interrupted_state, attempt=attempt)
    claim = replace(claim, turn=turn)
    events, witness = scene.open(claim), Witness()

    await ExecutorAdapter(witness).run(scene.run_of(events), events)
    await ExecutorAdapter(witness).cancel(scene.run_of(events), events)

    if new:
        assert witness.executed.current_task is None
    else:
        paused_task = Task(id=claim.task.id, context_id=claim.task.context_id, history=claim.task.history)
        paused_task.status.CopyFrom(TaskStatus(state=INPUT_REQUIRED, timestamp=claim.task.status.timestamp))
        assert witness.executed.current_task == paused_task, (
            "as in the SDK's server: paused, and its history has the message"
        )
        assert claim.task.status.state != INPUT_REQUIRED
    assert (witness.executed.task_id, witness.executed.context_id) == (claim.task.id, claim.task.context_id)
    assert witness.executed.call_context.state["a2a_attempt"] == attempt
    assert witness.cancelled.current_task == claim.task
