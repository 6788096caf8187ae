"""Reply channels. The creator of a task follows the task on a reply channel, even after lost connections."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from a2a.types import TaskState

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.lifecycle.outcomes import agent_message
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys, SyncStore
from a2a_celery.store.admin.usage import usage
from a2a_celery.store.log.follower import LogFollower
from a2a_celery.store.log.pubsub import PubSubListener, Wakeup
from a2a_celery.store.tasks.commands import ReplyChannel, continue_task, create_task, read_final_task
from a2a_celery.store.tasks.replies import FinalTask, NotFinal
from tests.support.processes.restarts import mortal_redis
from tests.support.store.seeds import ANN, CONTEXT, Seeds, chunk, request, status
from tests.support.waiting import LIMIT, eventually_async

SOON = 10.0
"""Seconds that a notification may take. Less than a listener's poll interval."""


async def create(store: AsyncStore, keys: Keys, task_id: str, reply_channel: ReplyChannel) -> None:
    message_request = request(task_id=task_id, context_id=CONTEXT)
    await store.run(
        create_task(
            keys, ANN, task_id, CONTEXT, message_request, caller=b"{}", retention=60, reply_channel=reply_channel
        )
    )


async def wait_for_wakeup(wakeup: Wakeup, version: int) -> None:
    """Wait for a notification of a version after `version`."""
    async with asyncio.timeout(SOON):
        await wakeup.wait(timeout=LIMIT, after=version)


@pytest.mark.parametrize("final_only", [False, True])
async def test_the_creator_of_a_task_gets_the_notifications_that_it_waits_for(
    store: AsyncStore, keys: Keys, subscriber: PubSubListener, seeds: Seeds, *, final_only: bool
) -> None:
    follower, task_id = LogFollower(store, keys, subscriber), str(uuid4())
    reply_channel = follower.reply_channel(final_only=final_only)

    async with follower.listen(task_id, reply_channel, final_only=final_only) as wakeup:
        await create(store, keys, task_id, reply_channel)
        claim = await seeds.claim_run(task_id)  # version 2: WORKING
        if not final_only:
            await wait_for_wakeup(wakeup, version=1)
        await seeds.append_events(claim, chunk("a"))
        if not final_only:
            await wait_for_wakeup(wakeup, version=2)
        await seeds.settle_run(claim, status(INPUT_REQUIRED), written_count=1)
        await wait_for_wakeup(wakeup, version=3)

    [(_, others)] = await store.redis.pubsub_numsub(keys.task(task_id).notifications)
    assert others == 0, "nobody subscribed to the task's own channel"


async def test_only_requested_notifications_are_published(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    reply_channels = {
        True: ReplyChannel(keys.reply_channel("a"), True),
        False: ReplyChannel(keys.reply_channel("b"), False),
    }
    ids = {final_only: str(uuid4()) for final_only in reply_channels}
    names = {final_only: keys.task(task_id).notifications for final_only, task_id in ids.items()}
    messages: list[tuple[str, str]] = []

    async with store.redis.pubsub() as ear:
        await ear.subscribe(keys.reply_channel("a"), keys.reply_channel("b"), *names.values())
        for _ in range(4):
            assert await ear.get_message(timeout=5)
        for final_only, task_id in ids.items():
            await create(store, keys, task_id, reply_channels[final_only])
            claim = await seeds.claim_run(task_id)
            await seeds.settle_run(claim, chunk("x"), status(COMPLETED))
        while len(messages) < 7:
            message = await ear.get_message(timeout=5)
            assert message, messages
            text, _, _ = message["data"].partition(b"\n")  # inline entries follow, see test_inline_entries.py
            messages.append((message["channel"].decode(), text.decode()))

    assert [body for channel, body in messages if channel == keys.reply_channel("a")] == [f"{names[True]} 4 final"]
    assert [body for channel, body in messages if channel == keys.reply_channel("b")] == [
        f"{names[False]} 2",
        f"{names[False]} 4 final",
    ]
    for name in names.values():
        assert [body for channel, body in messages if channel == name] == ["2", "4 final"]
    for task_id in ids.values():
        assert not await store.redis.hexists(keys.task(task_id).record, "reply_channel"), "it goes with the task's end"


async def test_a_pause_that_a_waiting_message_ends_at_once_is_notified(
    store: AsyncStore, keys: Keys, subscriber: PubSubListener, seeds: Seeds
) -> None:
    follower, task_id = LogFollower(store, keys, subscriber), str(uuid4())
    reply_channel = follower.reply_channel(final_only=True)
    async with follower.listen(task_id, reply_channel, final_only=True) as wakeup:
        await create(store, keys, task_id, reply_channel)
        claim = await seeds.claim_run(task_id)
        next_request = request("more", task_id, CONTEXT)
        await store.run(
            continue_task(keys, ANN, task_id, next_request, "", caller=b"{}", nonce="n")
        )  # the message waits
        await seeds.settle_run(claim, status(INPUT_REQUIRED))

        await wait_for_wakeup(wakeup, version=2)

    assert (await seeds.task(task_id)).status.state != INPUT_REQUIRED


async def test_a_creator_is_signalled_when_the_subscriber_reconnects(tmp_path: Path, keys: Keys) -> None:
    with mortal_redis(tmp_path) as server:
        store, subscriber = AsyncStore(server.store_url), PubSubListener(server.store_url)
        follower, seeds = LogFollower(store, keys, subscriber), Seeds(store, keys)
        reply_channel = follower.reply_channel(final_only=True)
        async with follower.listen("first", reply_channel, final_only=True) as wakeup:  # the subscriber is not started
            await create(store, keys, "first", reply_channel)
            await seeds.settle_run(await seeds.claim_run("first"), status(COMPLETED))
            await wait_for_wakeup(wakeup, version=1)
        async with follower.listen("second", reply_channel, final_only=True) as wakeup:
            await create(store, keys, "second", reply_channel)
            claim = await seeds.claim_run("second")
            server.die()
            server.start()
            await seeds.settle_run(claim, status(COMPLETED))
            await wait_for_wakeup(wakeup, version=1)
        await subscriber.stop()
        await store.aclose()


@pytest.mark.parametrize(
    ("state", "text", "is_final"), [(WORKING, "", False), (INPUT_REQUIRED, "what?", True), (COMPLETED, "", True)]
)
async def test_a_task_is_read_once_after_its_end(
    store: AsyncStore, keys: Keys, seeds: Seeds, state: TaskState, text: str, *, is_final: bool
) -> None:
    claim = await seeds.claim_run(working=False)
    task_id = claim.ref.task_id
    if is_final:
        await seeds.settle_run(claim, chunk("some"), status(state, text))
    else:
        await seeds.append_events(claim, status(state))

    final_task = await store.run(read_final_task(keys, ANN, task_id))

    assert final_task == (FinalTask(await seeds.task(task_id), 3, None) if is_final else NotFinal())
    assert await store.run(read_final_task(keys, ANN, "none")) is None


async def test_an_answer_without_a_task_is_recognized(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim, first = await seeds.claim_run(), await seeds.claim_run(working=False)
    only_message = agent_message("that is all", first.ref.task_id, CONTEXT)

    await seeds.settle_run(claim, agent_message("later", claim.ref.task_id, CONTEXT))  # after WORKING
    final = await store.run(read_final_task(keys, ANN, claim.ref.task_id))
    assert isinstance(final, FinalTask)
    assert final.answer is None

    await seeds.settle_run(first, only_message)
    final = await store.run(read_final_task(keys, ANN, first.ref.task_id))
    assert isinstance(final, FinalTask)
    assert final.answer == only_message


async def test_reply_channels_are_counted(
    redis_server: EmbeddedRedis,
    store: AsyncStore,
    keys: Keys,
) -> None:
    sync = SyncStore(redis_server.store_url)
    subscriber = PubSubListener(redis_server.store_url, count_interval=0.05)
    follower = LogFollower(store, keys, subscriber)

    async def follow_once(number: int) -> None:
        async def is_counted() -> bool:
            return (await asyncio.to_thread(usage, sync, keys)).followed == number

        await eventually_async(is_counted, what=f"{number} are counted")

    reply_channel = follower.reply_channel(final_only=True)
    async with follower.listen("a", reply_channel), follower.listen("b", reply_channel), follower.listen("c"):
        await follow_once(3)
        async with follower.listen("d", reply_channel):
            await follow_once(4)
    await follow_once(0)
    await subscriber.stop()
    sync.close()
