"""Scheduling of deliveries. Each script that writes an event also schedules the event's deliveries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from a2a_celery.dispatch import Call, RunOptions
from a2a_celery.features.webhooks import keys as webhook_keys
from a2a_celery.features.webhooks.config_section import config_section
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, WORKING
from a2a_celery.store import AsyncStore, Keys, Operation
from a2a_celery.store.runs.commands import append, claim_run, end_run, settle_run
from a2a_celery.store.runs.recovery import Lapsed, lapse_run, return_run
from a2a_celery.store.runs.release import delegate_to_canvas, end_by_result, record_result, release_run, retry_run
from a2a_celery.store.tasks.commands import continue_task, create_task, delete_task, end_pauses, request_cancel
from tests.store.test_cost import Meter
from tests.support.store.delivery_cursors import Webhooks, new
from tests.support.store.seeds import ANN, CONTEXT, LEASE_US, RETENTION, Seeds, chunk, request, status

REF = RunRef("t", 1)
Write = Callable[[Keys, Seeds], Awaitable[Operation[object]]]


async def claim_task(keys: Keys, seeds: Seeds, *, lease_us: int = LEASE_US, attempts: int = 1) -> None:
    """Claim the run of task "t"."""
    claim = claim_run(keys, REF, token="k", runner="r", lease_us=lease_us, working=True, max_attempts=attempts)
    await seeds.store.run(claim)


async def _append(keys: Keys, seeds: Seeds) -> Operation[object]:
    await claim_task(keys, seeds)
    return append(keys, REF, token="k", written_count=0, events=[chunk("a"), chunk("b")])  # type: ignore[return-value]


async def _claim(keys: Keys, seeds: Seeds) -> Operation[object]:
    return claim_run(keys, REF, token="k", runner="r", lease_us=LEASE_US, working=True)  # type: ignore[return-value]


async def _settle(keys: Keys, seeds: Seeds) -> Operation[object]:
    await claim_task(keys, seeds)
    return settle_run(keys, REF, token="k", written_count=0, events=[status(COMPLETED)])  # type: ignore[return-value]


async def _pause(keys: Keys, seeds: Seeds) -> Operation[object]:
    await claim_task(keys, seeds)
    return settle_run(  # type: ignore[return-value]
        keys,
        REF,
        token="k",
        written_count=0,
        events=[status(INPUT_REQUIRED)],
        pause_us=1,
        pause_timeout=status(FAILED, "late"),
    )


async def _end_pauses(keys: Keys, seeds: Seeds) -> Operation[object]:
    await seeds.store.run(await _pause(keys, seeds))
    return end_pauses(keys, limit=10)  # type: ignore[return-value]


async def _continue(keys: Keys, seeds: Seeds) -> Operation[object]:
    await seeds.store.run(await _pause(keys, seeds))
    message_request = request("more", "t", CONTEXT)
    return continue_task(keys, ANN, "t", message_request, "", caller=b"{}", nonce="n")  # type: ignore[return-value]


async def _cancel(keys: Keys, seeds: Seeds) -> Operation[object]:
    return request_cancel(keys, ANN, "t", CONTEXT)  # type: ignore[return-value]


async def _lapse(keys: Keys, seeds: Seeds) -> Operation[object]:
    await claim_task(keys, seeds, lease_us=-1)
    return lapse_run(  # type: ignore[return-value]
        keys, Lapsed(REF, "agent", 1, 1), await seeds.task("t"), 2, delay_us=0
    )


async def _lapse_again(keys: Keys, seeds: Seeds) -> Operation[object]:
    await claim_task(keys, seeds, lease_us=-1, attempts=2)
    return lapse_run(  # type: ignore[return-value]
        keys, Lapsed(REF, "agent", 1, 2), await seeds.task("t"), 2, delay_us=0
    )


async def _end(keys: Keys, seeds: Seeds) -> Operation[object]:
    return end_run(keys, REF, runner=None, event=status(FAILED, "over"))  # type: ignore[return-value]


async def _lose(keys: Keys, seeds: Seeds) -> Operation[object]:
    await claim_task(keys, seeds)
    return end_run(keys, REF, runner="r", event=status(FAILED, "over"), lost=True)  # type: ignore[return-value]


async def _return_run(keys: Keys, seeds: Seeds) -> Operation[object]:
    await claim_task(keys, seeds)
    return return_run(keys, REF, runner="r", loss=status(FAILED, "lost"))  # type: ignore[return-value]


async def _release(keys: Keys, seeds: Seeds) -> Operation[object]:
    await claim_task(keys, seeds)
    return release_run(  # type: ignore[return-value]
        keys, REF, token="k", written_count=0, events=[status(WORKING)], options=b"", retries=1, delay_us=0
    )


async def _retry(keys: Keys, seeds: Seeds) -> Operation[object]:
    await claim_task(keys, seeds)
    return retry_run(  # type: ignore[return-value]
        keys, REF, runner="r", event=status(WORKING), options=b"", retries=1, delay_us=0
    )


async def _end_by_result(keys: Keys, seeds: Seeds) -> Operation[object]:
    await claim_task(keys, seeds)
    await seeds.store.run(delegate_to_canvas(keys, REF, token="k", written_count=0, events=[], canvas="{}"))
    return end_by_result(keys, REF, [chunk("a"), status(COMPLETED)])  # type: ignore[return-value]


async def _record_result(keys: Keys, seeds: Seeds) -> Operation[object]:
    options = RunOptions(call=Call("tasks.resize", {})).to_json()
    await seeds.store.redis.hset(keys.task("t").record, "options", options)
    return record_result(keys, REF, previous_state="", state="1 0 d", event=status(WORKING))  # type: ignore[return-value]


WRITERS: list[Write] = [
    _append, _claim, _settle, _pause, _end_pauses, _continue, _cancel, _lapse, _lapse_again, _end, _lose, _return_run,
    _release, _retry, _end_by_result, _record_result,
]  # fmt: skip


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__[1:])
async def test_every_writing_script_schedules_deliveries(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks, write: Write
) -> None:
    await seeds.create_task(task_id="t")
    await webhooks.save_config("t")
    operation = await write(keys, seeds)
    version = len(await seeds.log("t"))
    await webhooks.drain()
    assert await webhooks.lease_cursors() == []

    await store.run(operation)

    versions = [entry.version for entry in (await seeds.log("t"))[version:]]
    assert versions
    assert await webhooks.drain() == {("t", "c"): versions}


async def test_a_config_sent_with_the_first_message_receives_the_first_event(
    store: AsyncStore, keys: Keys, webhooks: Webhooks
) -> None:
    message_request = request("hello", "t", CONTEXT)
    create = create_task(
        keys,
        ANN,
        "t",
        CONTEXT,
        message_request,
        caller=b"{}",
        retention=RETENTION,
        sections=[config_section(keys, new())],
    )
    first, second = await store.run(create), await store.run(create)

    assert type(first) is type(second)
    assert await webhooks.drain() == {("t", "c"): [1]}


async def test_a_config_sent_with_a_further_message_receives_its_turn(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    task_id = await seeds.create_task_in(INPUT_REQUIRED)
    message_request = request("more", task_id, CONTEXT)
    version = len(await seeds.log(task_id))

    await store.run(
        continue_task(
            keys, ANN, task_id, message_request, "", caller=b"{}", nonce="n", sections=[config_section(keys, new())]
        )
    )

    assert await webhooks.drain() == {(task_id, "c"): [version + 1, version + 2]}


async def test_every_config_of_a_task_receives_the_events_after_its_creation(seeds: Seeds, webhooks: Webhooks) -> None:
    claim = await seeds.claim_run()
    await webhooks.save_config(claim.ref.task_id, "early")
    await seeds.append_events(claim, chunk("a"))
    await webhooks.save_config(claim.ref.task_id, "late: {odd} ü")
    await seeds.append_events(claim, chunk("b"), written_count=1)

    assert await webhooks.drain() == {
        (claim.ref.task_id, "early"): [3, 4],
        (claim.ref.task_id, "late: {odd} ü"): [4],
    }


async def test_deliveries_cost_nothing_without_configs_and_little_with_them(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    meter, claim = Meter(store), await seeds.claim_run()

    def write(version: int) -> Operation[object]:
        events = [chunk(str(n)) for n in range(20)]
        return append(keys, claim.ref, token=claim.token, written_count=version, events=events)  # type: ignore[return-value]

    bare = await meter.cost_of(write(0))
    assert [key for key in await seeds.all_values() if "push" in key or "deliver" in key] == []
    assert not {"cmdstat_hget", "cmdstat_zadd"} & bare.keys()
    await webhooks.save_config(claim.ref.task_id)
    owing = await meter.cost_of(write(20))

    assert sum(owing.values()) - sum(bare.values()) <= 4


async def test_a_due_delivery_is_notified(store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks) -> None:
    task_id = await seeds.create_task()
    await webhooks.save_config(task_id)
    async with store.redis.pubsub() as pubsub:
        await pubsub.subscribe(webhook_keys.delivery_notifications(keys))
        await pubsub.get_message(timeout=5)

        await seeds.claim_run(task_id)

        assert await pubsub.get_message(ignore_subscribe_messages=True, timeout=5) is not None


async def test_a_deleted_task_leaves_no_cursor(store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks) -> None:
    task_id = (await seeds.claim_run()).ref.task_id
    await webhooks.save_config(task_id)

    await store.run(delete_task(keys, ANN, task_id))

    assert (await seeds.all_values()).keys() <= {keys.secrets, keys.scopes}


async def test_cursors_expire_with_their_tasks(store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks) -> None:
    claim = await seeds.claim_run()
    await webhooks.save_config(claim.ref.task_id)
    assert await store.redis.ttl(keys.sealed_with("f0")) == -1
    await seeds.settle_run(claim, status(CANCELED))

    for key in (keys.task(claim.ref.task_id).cursors, keys.sealed_with("f0")):
        assert RETENTION - 60 < await store.redis.ttl(key) <= RETENTION
    for key in keys.task(claim.ref.task_id):
        await store.redis.delete(key)
    assert await webhooks.lease_cursors() == []
    assert not await store.redis.exists(webhook_keys.deliveries(keys))
