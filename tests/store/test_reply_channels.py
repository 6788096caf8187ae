"""Who makes a task follows it on a channel of its own: told of what it waits for, whatever breaks, and counted."""

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
from a2a_celery.store.log import pubsub as wake
from a2a_celery.store.log.pubsub import LogFollower, LogSignal, PubSubListener
from a2a_celery.store.tasks.commands import ReplyChannel, continue_task, create_task, read_final_task
from a2a_celery.store.tasks.results import FinalTask
from tests.support.restarts import mortal_redis
from tests.support.seeds import ANN, CONTEXT, Seeds, chunk, request, status
from tests.support.waiting import eventually_async

SOON = 10.0
"""Seconds a ring may take; less than what a listener waits that hears nothing."""


async def made(store: AsyncStore, keys: Keys, task_id: str, reply_channel: ReplyChannel) -> None:
    """A task whose maker follows it."""
    sent = request(task_id=task_id, context_id=CONTEXT)
    await store.run(
        create_task(keys, ANN, task_id, CONTEXT, sent, caller=b"{}", retention=60, reply_channel=reply_channel)
    )


async def rings(signal: LogSignal, after: int) -> None:
    """Fails if the bell doesn't ring in time for something behind that version."""
    async with asyncio.timeout(SOON):
        await signal.wait(timeout=60, after=after)


@pytest.mark.parametrize("final_only", [False, True])
async def test_its_maker_hears_what_it_waits_for(
    store: AsyncStore, keys: Keys, line: PubSubListener, seeds: Seeds, *, final_only: bool
) -> None:
    follower, task_id = LogFollower(store, keys, line), str(uuid4())
    reply_channel = follower.reply_channel(final_only=final_only)

    async with follower.listen(task_id, reply_channel, final_only=final_only) as signal:
        await made(store, keys, task_id, reply_channel)
        claim = await seeds.claimed(task_id)  # version 2: WORKING
        if not final_only:
            await rings(signal, after=1)
        await seeds.appended(claim, chunk("a"))
        if not final_only:
            await rings(signal, after=2)
        await seeds.settled(claim, status(INPUT_REQUIRED), before=1)
        await rings(signal, after=3)

    [(_, others)] = await store.redis.pubsub_numsub(keys.task(task_id).notifications)
    assert others == 0, "nobody subscribed to the task's own channel"


async def test_only_what_is_waited_for_is_said(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    reply_channels = {
        True: ReplyChannel(keys.reply_channel("a"), True),
        False: ReplyChannel(keys.reply_channel("b"), False),
    }
    ids = {final_only: str(uuid4()) for final_only in reply_channels}
    names = {final_only: keys.task(task_id).notifications for final_only, task_id in ids.items()}
    heard: list[tuple[str, str]] = []

    async with store.redis.pubsub() as ear:
        await ear.subscribe(keys.reply_channel("a"), keys.reply_channel("b"), *names.values())
        for _ in range(4):
            assert await ear.get_message(timeout=5)
        for final_only, task_id in ids.items():
            await made(store, keys, task_id, reply_channels[final_only])
            claim = await seeds.claimed(task_id)
            await seeds.settled(claim, chunk("x"), status(COMPLETED))
        while len(heard) < 7:
            message = await ear.get_message(timeout=5)
            assert message, heard
            said, _, _ = message["data"].partition(b"\n")  # behind which are news, see test_inline_entries.py
            heard.append((message["channel"].decode(), said.decode()))

    assert [what for channel, what in heard if channel == keys.reply_channel("a")] == [f"{names[True]} 4 final"]
    assert [what for channel, what in heard if channel == keys.reply_channel("b")] == [
        f"{names[False]} 2",
        f"{names[False]} 4 final",
    ]
    for name in names.values():
        assert [what for channel, what in heard if channel == name] == ["2", "4 final"]
    for task_id in ids.values():
        assert not await store.redis.hexists(keys.task(task_id).record, "reply_channel"), "it goes with the task's end"


async def test_a_pause_that_a_waiting_message_ends_at_once_is_said(
    store: AsyncStore, keys: Keys, line: PubSubListener, seeds: Seeds
) -> None:
    follower, task_id = LogFollower(store, keys, line), str(uuid4())
    reply_channel = follower.reply_channel(final_only=True)
    async with follower.listen(task_id, reply_channel, final_only=True) as signal:
        await made(store, keys, task_id, reply_channel)
        claim = await seeds.claimed(task_id)
        more = request("more", task_id, CONTEXT)
        await store.run(continue_task(keys, ANN, task_id, more, "", caller=b"{}", nonce="n"))  # it waits
        await seeds.settled(claim, status(INPUT_REQUIRED))

        await rings(signal, after=2)

    assert (await seeds.task(task_id)).status.state != INPUT_REQUIRED


async def test_who_made_it_while_the_line_was_down_is_rung_when_it_is_up(tmp_path: Path, keys: Keys) -> None:
    with mortal_redis(tmp_path) as server:
        store, line = AsyncStore(server.store_url), PubSubListener(server.store_url)
        follower, seeds = LogFollower(store, keys, line), Seeds(store, keys)
        reply_channel = follower.reply_channel(final_only=True)
        async with follower.listen("first", reply_channel, final_only=True) as signal:  # nobody has started the line
            await made(store, keys, "first", reply_channel)
            await seeds.settled(await seeds.claimed("first"), status(COMPLETED))
            await rings(signal, after=1)
        async with follower.listen("second", reply_channel, final_only=True) as signal:
            await made(store, keys, "second", reply_channel)
            claim = await seeds.claimed("second")
            server.die()
            server.start()
            await seeds.settled(claim, status(COMPLETED))
            await rings(signal, after=1)
        await line.stop()
        await store.aclose()


@pytest.mark.parametrize(
    ("state", "text", "stopped"), [(WORKING, "", False), (INPUT_REQUIRED, "what?", True), (COMPLETED, "", True)]
)
async def test_a_task_is_read_once_it_has_stopped(
    store: AsyncStore, keys: Keys, seeds: Seeds, state: TaskState, text: str, *, stopped: bool
) -> None:
    claim = await seeds.claimed(working=False)
    task_id = claim.ref.task_id
    if stopped:
        await seeds.settled(claim, chunk("some"), status(state, text))
    else:
        await seeds.appended(claim, status(state))

    found = await store.run(read_final_task(keys, ANN, task_id))

    assert found == (FinalTask(await seeds.task(task_id), 3, None) if stopped else None)
    assert await store.run(read_final_task(keys, ANN, "none")) is None


async def test_a_message_alone_is_known_as_that(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim, first = await seeds.claimed(), await seeds.claimed(working=False)
    alone = agent_message("that is all", first.ref.task_id, CONTEXT)

    await seeds.settled(claim, agent_message("later", claim.ref.task_id, CONTEXT))  # behind WORKING
    found = await store.run(read_final_task(keys, ANN, claim.ref.task_id))
    assert found is not None
    assert found.answer is None

    await seeds.settled(first, alone)
    found = await store.run(read_final_task(keys, ANN, first.ref.task_id))
    assert found is not None
    assert found.answer == alone


async def test_those_that_are_followed_so_are_counted(
    redis_server: EmbeddedRedis, store: AsyncStore, keys: Keys, line: PubSubListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "COUNT_EVERY", 0.05)
    sync = SyncStore(redis_server.store_url)
    follower = LogFollower(store, keys, line)

    async def followed(number: int) -> None:
        async def counted() -> bool:
            return (await asyncio.to_thread(usage, sync, keys)).followed == number

        await eventually_async(counted, what=f"{number} are counted")

    reply_channel = follower.reply_channel(final_only=True)
    async with follower.listen("a", reply_channel), follower.listen("b", reply_channel), follower.listen("c"):
        await followed(3)
        async with follower.listen("d", reply_channel):
            await followed(4)
    await followed(0)
    sync.close()
