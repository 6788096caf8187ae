"""Messages that arrive while an agent works. The agent reads each message once and in order, and a repeated turn reads
the messages again."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
from a2a.helpers import get_message_text
from a2a.types import Message, Part

from a2a_celery import ConfigError
from a2a_celery.agents import OnMessage
from a2a_celery.caller import Caller
from a2a_celery.execution.agents.running_agent import RunningAgent
from a2a_celery.execution.agents.turn import Turn
from a2a_celery.execution.events.queue import RunEventQueue
from a2a_celery.execution.open_run import OpenRun
from a2a_celery.execution.run import begin_agent
from a2a_celery.lifecycle import Paused, Superseded
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED, SUBMITTED, WORKING
from a2a_celery.store.runs.commands import Claim
from a2a_celery.store.tasks.commands import continue_task
from tests.execution.scene import Scene, until
from tests.support.store.seeds import ANN, CONTEXT, request, status


async def send(scene: Scene, claim: Claim, text: str, on_message: OnMessage = "steer") -> None:
    task_id = claim.ref.task_id
    message = request(text, task_id, CONTEXT)
    await scene.seeds.store.run(
        continue_task(scene.keys, ANN, task_id, message, "", caller=b"{}", nonce=uuid4().hex, on_message=on_message)
    )


async def turn_of(scene: Scene, claim: Claim | None = None) -> tuple[Claim, RunEventQueue, Turn]:
    """Begin a run of an agent that can be steered."""
    claim, events = await scene.begin(claim=claim, on_message="steer")
    run = await scene.open_features(events, on_message="steer")
    return claim, events, new_turn(run, events)


def new_turn(run: OpenRun, events: RunEventQueue) -> Turn:
    begin_agent(RunningAgent(run, events))
    return Turn(run, events, Caller())


async def next_turn(scene: Scene, claim: Claim, **options: int) -> tuple[Claim, RunEventQueue, Turn]:
    """Begin the next run of the task."""
    run = claim.ref.run + 1
    return await turn_of(scene, await scene.seeds.claim_run(claim.ref.task_id, run=run, steering=True, **options))


async def poll(turn: Turn) -> list[str]:
    return [get_message_text(message) for message in await turn.poll_messages()]


async def wait_until_reading(scene: Scene) -> None:
    """Wait until an agent has read the store once."""

    async def has_read() -> bool:
        return "read_messages" in scene.gate.calls

    await until(has_read)


async def test_each_message_is_read_once_in_order(scene: Scene) -> None:
    claim, events, turn = await turn_of(scene)
    assert await poll(turn) == []
    for text in ("left", "right"):
        await send(scene, claim, text)

    assert await poll(turn) == ["left", "right"]
    assert await poll(turn) == []

    await scene.settle(claim, events)
    assert (await scene.seeds.task(claim.ref.task_id)).status.state == COMPLETED


async def test_a_poll_reads_the_store_once(scene: Scene) -> None:
    claim, _, turn = await turn_of(scene)
    await send(scene, claim, "left")
    call_count = len(scene.gate.calls)

    await turn.poll_messages()

    assert scene.gate.calls[call_count:] == ["read_messages"]


async def test_an_iteration_waits_for_a_notification_without_reading_the_store(scene: Scene) -> None:
    claim, events, turn = await turn_of(scene)
    texts: list[str] = []

    async def listen() -> None:
        async for message in turn.incoming():
            texts.append(get_message_text(message))
            if texts[-1] == "done":
                break

    async with asyncio.timeout(20):
        listening = asyncio.create_task(listen())
        await wait_until_reading(scene)
        for text in ("left", "done"):
            await send(scene, claim, text)
        assert scene.gate.calls.count("read_messages") == 1
        scene.run_of(events).message_arrived.set()
        await listening

    assert texts == ["left", "done"]
    assert scene.gate.calls.count("read_messages") == 2


async def test_what_an_iteration_has_not_yielded_is_unread(scene: Scene) -> None:
    claim, events, turn = await turn_of(scene)
    for text in ("left", "right", "back"):
        await send(scene, claim, text)

    async for message in turn.incoming():
        assert get_message_text(message) == "left"
        break
    await scene.settle(claim, events)

    assert scene.published == [("agent", 2)]
    _, _, later_turn = await next_turn(scene, claim)
    assert (later_turn.text, later_turn.number) == ("right", 2)
    assert await poll(later_turn) == ["back"]


async def test_concurrent_readers_share_the_messages(scene: Scene) -> None:
    claim, events, turn = await turn_of(scene)
    iterator = turn.incoming()
    waiting: asyncio.Future[Message] = asyncio.ensure_future(anext(iterator))  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        await wait_until_reading(scene)
        for text in ("left", "right"):
            await send(scene, claim, text)
        assert await poll(turn) == ["left", "right"], "a reader that waits blocks no other"
        await send(scene, claim, "back")
        scene.run_of(events).message_arrived.set()
        assert get_message_text(await waiting) == "back"


async def test_a_reader_that_is_cancelled_consumes_nothing(scene: Scene) -> None:
    claim, _, turn = await turn_of(scene)
    await send(scene, claim, "left")
    scene.gate.open.clear()
    reading = asyncio.create_task(turn.poll_messages())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait({reading})
    scene.gate.open.set()

    assert await poll(turn) == ["left"]


async def test_the_next_attempt_reads_the_messages_again(scene: Scene) -> None:
    claim, _, turn = await turn_of(scene, await scene.seeds.claim_run(max_attempts=2, steering=True))
    await send(scene, claim, "left")
    assert await poll(turn) == ["left"]
    await scene.seeds.recover_run(claim.ref)
    await send(scene, claim, "right")

    next_claim, events, next_run_turn = await next_turn(scene, claim, max_attempts=2)

    assert (next_run_turn.text, next_run_turn.attempt) == ("hello", 2)
    assert await poll(next_run_turn) == ["left", "right"]
    with pytest.raises(asyncio.CancelledError):
        await turn.poll_messages()
    await scene.settle(next_claim, events)
    assert (await scene.seeds.task(claim.ref.task_id)).status.state == COMPLETED


async def test_a_function_that_is_called_again_after_an_answer_reads_them_again(scene: Scene) -> None:
    claim, events, turn = await turn_of(scene)
    await send(scene, claim, "left")
    assert await poll(turn) == ["left"]
    scene.run_of(events).ask([Part(text="how far?")])
    await scene.settle(claim, events, Paused(INPUT_REQUIRED))
    await send(scene, claim, "ten")

    next_claim, events, next_run_turn = await next_turn(scene, claim)
    await send(scene, claim, "right")

    assert next_run_turn.text == "hello"
    assert await poll(next_run_turn) == ["left", "right"]
    assert await next_run_turn.ask("how far?") == "ten"
    await scene.settle(next_claim, events)
    assert (await scene.seeds.task(claim.ref.task_id)).status.state == COMPLETED


async def test_a_step_that_received_a_message_is_replayed_although_more_messages_arrived(scene: Scene) -> None:
    calls: list[str] = []

    async def handle(text: str) -> str:
        calls.append(text)
        return f"handled {text}"

    async def poll_and_handle(turn: Turn) -> list[str]:
        return [await turn.step("handle", handle, text) for text in await poll(turn)]

    claim, _, turn = await turn_of(scene, await scene.seeds.claim_run(max_attempts=2, steering=True))
    await send(scene, claim, "left")
    assert await poll_and_handle(turn) == ["handled left"]
    await scene.seeds.recover_run(claim.ref)
    await send(scene, claim, "right")

    next_claim, events, next_run_turn = await next_turn(scene, claim, max_attempts=2)

    assert await poll_and_handle(next_run_turn) == ["handled left", "handled right"]
    assert calls == ["left", "right"]
    await scene.settle(next_claim, events)
    assert (await scene.seeds.task(claim.ref.task_id)).status.state == COMPLETED


async def test_an_unread_message_becomes_the_next_turn_of_an_agent_that_sent_its_own_end(scene: Scene) -> None:
    claim, events, _ = await turn_of(scene)
    await events.enqueue_event(status(COMPLETED, "done"))
    await send(scene, claim, "left")

    await scene.settle(claim, events)

    task = await scene.seeds.task(claim.ref.task_id)
    assert (task.status.state, scene.published) == (WORKING, [("agent", 2)])
    assert [get_message_text(message) for message in task.history] == ["hello", "left", "done"]


async def test_an_interrupted_run_leaves_its_task_working(scene: Scene) -> None:
    claim, events = await scene.begin(on_message="interrupt")
    await events.enqueue_event(status(WORKING, "half"))
    await send(scene, claim, "rather this", "interrupt")

    await scene.settle(claim, events, Superseded())

    assert scene.published == [("agent", 2)]
    assert await scene.seeds.states(claim.ref.task_id) == [SUBMITTED, WORKING, WORKING, WORKING]
    assert (await scene.seeds.claim_run(claim.ref.task_id, run=2)).turn.request.message.parts[0].text == "rather this"


@pytest.mark.parametrize("on_message", ["queue", "interrupt", "reject"])
async def test_other_agents_learn_that_they_cannot_read_messages(scene: Scene, on_message: OnMessage) -> None:
    _, events = await scene.begin(on_message=on_message)
    turn = new_turn(await scene.open_features(events, on_message=on_message), events)

    text = "agent 'agent' receives no messages while it works: only functions and executors with on_message='steer'"
    with pytest.raises(ConfigError, match=text):
        await turn.poll_messages()
    with pytest.raises(ConfigError):
        await anext(turn.incoming())
