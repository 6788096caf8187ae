"""Push-notification configs: their owners, their limits and the keys that seal them."""

from __future__ import annotations

import pytest

from a2a_celery.features.webhooks import keys as webhook_keys
from a2a_celery.features.webhooks.config_section import MAX_PUSH_CONFIGS, config_section
from a2a_celery.features.webhooks.push_configs import (
    delete_push_config,
    list_push_configs,
    read_push_config,
    save_push_config,
)
from a2a_celery.lifecycle.refusals import Reason, Refusal
from a2a_celery.lifecycle.states import COMPLETED, INPUT_REQUIRED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.start_check import secrets_in_use
from a2a_celery.store.tasks.commands import continue_task, create_task
from tests.support.store.delivery_cursors import Webhooks, new
from tests.support.store.replies import is_limited, reason_of
from tests.support.store.seeds import ANN, BOB, CONTEXT, RETENTION, Seeds, request, status


@pytest.mark.parametrize("config_id", ["plain", "a:b", "with space", "{brace}", "new\nline", "ünï", "%41", ":sealed"])
async def test_a_config_is_returned_unchanged(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks, config_id: str
) -> None:
    task_id = await seeds.create_task()
    await webhooks.save_config(task_id, config_id, b"\x00 \xff")

    assert await store.run(read_push_config(keys, ANN, task_id, config_id)) == b"\x00 \xff"
    assert await store.run(list_push_configs(keys, ANN, task_id)) == [(config_id, b"\x00 \xff")]
    assert await store.run(delete_push_config(keys, ANN, task_id, config_id))
    assert await store.run(delete_push_config(keys, ANN, task_id, config_id))
    assert await store.run(read_push_config(keys, ANN, task_id, config_id)) is None
    assert await store.run(list_push_configs(keys, ANN, task_id)) == []


async def test_only_the_operator_sees_configs_of_others(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    task_id = await seeds.create_task()
    await webhooks.save_config(task_id)
    data_before = await seeds.all_values()

    assert reason_of(await store.run(save_push_config(keys, BOB, task_id, new("other")))) is Reason.MISSING
    assert await store.run(read_push_config(keys, BOB, task_id, "c")) is None
    assert await store.run(list_push_configs(keys, BOB, task_id)) is None
    assert not await store.run(delete_push_config(keys, BOB, task_id, "c"))
    assert await seeds.all_values() == data_before
    assert await store.run(read_push_config(keys, None, task_id, "c")) == b"sealed"
    assert await store.run(list_push_configs(keys, None, "missing")) is None


async def test_a_config_beyond_the_limit_is_refused_and_a_replacement_is_not(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    task_id = await seeds.create_task_in(INPUT_REQUIRED)
    for number in reversed(range(MAX_PUSH_CONFIGS)):
        await webhooks.save_config(task_id, f"c{number}")
    data_before = await seeds.all_values()
    message_request, section = request("more", task_id, CONTEXT), config_section(keys, new("more"))
    next_message = continue_task(keys, ANN, task_id, message_request, "", caller=b"{}", nonce="n", sections=[section])

    refusal = Refusal(Reason.FEATURE, task_id, {"text": "a task has at most 10 push notification configs: delete one"})
    assert await store.run(save_push_config(keys, ANN, task_id, new("more"))) == refusal
    assert await store.run(next_message) == refusal
    assert await seeds.all_values() == data_before
    await webhooks.save_config(task_id, "c3", b"another")
    configs = await store.run(list_push_configs(keys, ANN, task_id))
    assert [config_id for config_id, _ in configs or []] == [f"c{number}" for number in range(MAX_PUSH_CONFIGS)]


async def test_the_configs_of_an_owner_are_limited_across_tasks_until_they_are_deleted_or_expire(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    first, second = await seeds.create_task(retention=1), await seeds.create_task_in(INPUT_REQUIRED)
    for task_id in (first, second):
        assert await store.run(save_push_config(keys, ANN, task_id, new(account_limit=2))) is None
    message_request = request("more", second, CONTEXT)
    section = config_section(keys, new("more", account_limit=2))
    further = continue_task(keys, ANN, second, message_request, "", caller=b"{}", nonce="n", sections=[section])
    fresh = request("hello", "fresh", CONTEXT)
    create = create_task(keys, ANN, "fresh", CONTEXT, fresh, caller=b"{}", retention=RETENTION, sections=[section])
    save = save_push_config(keys, ANN, second, new("more", account_limit=2))
    limit = {"limit": "webhooks", "maximum": 2, "retry_in": 60.0}
    data_before = await seeds.all_values()

    assert [await store.run(call) for call in (further, create, save)] == [
        Refusal(Reason.LIMITED, task_id, limit) for task_id in (second, "fresh", second)
    ]
    assert await seeds.all_values() == data_before
    assert await store.run(save_push_config(keys, ANN, second, new("c", b"another", account_limit=2))) is None
    assert await store.run(delete_push_config(keys, ANN, second, "c"))
    assert await store.run(save) is None

    claim = await seeds.claim_run(first)
    await seeds.settle_run(claim, status(COMPLETED))
    assert await store.redis.zscore(webhook_keys.account_cursors(keys, ANN.account), f"{first} c") < float("inf")
    await store.redis.zadd(webhook_keys.account_cursors(keys, ANN.account), {f"{first} c": 1})  # its retention is over
    assert not is_limited(await store.run(create))


async def test_the_list_of_an_owner_expires_with_the_last_task(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    task_id = await seeds.create_task()
    await store.run(save_push_config(keys, ANN, task_id, new(account_limit=2)))
    assert await store.redis.ttl(webhook_keys.account_cursors(keys, ANN.account)) == -1

    await seeds.settle_run(await seeds.claim_run(task_id), status(COMPLETED))

    assert RETENTION - 60 < await store.redis.ttl(webhook_keys.account_cursors(keys, ANN.account)) <= RETENTION


async def test_the_list_of_an_owner_expires_with_the_last_task_after_the_configs_of_live_tasks_are_deleted(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    ended_id, live_id = await seeds.create_task(), await seeds.create_task()
    for task_id in (ended_id, live_id):
        await store.run(save_push_config(keys, ANN, task_id, new(account_limit=2)))
    await seeds.settle_run(await seeds.claim_run(ended_id), status(COMPLETED))

    await store.run(delete_push_config(keys, ANN, live_id, "c"))

    assert RETENTION - 60 < await store.redis.ttl(webhook_keys.account_cursors(keys, ANN.account)) <= RETENTION


async def test_the_same_call_again_changes_nothing(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    task_id = await seeds.create_task()
    save = save_push_config(keys, ANN, task_id, new())
    await store.run(save)
    await seeds.claim_run(task_id)
    await webhooks.lease_cursor()
    data_before = await seeds.all_values()

    assert await store.run(save) is None

    assert await seeds.all_values() == data_before


async def test_configs_of_an_ended_task_have_no_due_deliveries(
    store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks
) -> None:
    task_id = await seeds.create_task_in(COMPLETED)

    await webhooks.save_config(task_id)

    assert await webhooks.lease_cursors() == []
    for key in (keys.task(task_id).cursors, keys.sealed_with("f0")):
        assert RETENTION - 60 < await store.redis.ttl(key) <= RETENTION


async def test_the_secrets_in_use_are_those_of_existing_configs(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    claim = await seeds.claim_run()
    ends, stays = claim.ref.task_id, await seeds.create_task(retention=1)
    await store.run(save_push_config(keys, ANN, ends, new("c", b"1", "old")))
    await store.run(save_push_config(keys, ANN, stays, new("c", b"2", "old")))
    assert await store.run(secrets_in_use(keys)) == {"old"}

    await store.run(save_push_config(keys, ANN, stays, new("c", b"3", "new")))
    await seeds.settle_run(claim, status(COMPLETED))
    assert await store.run(secrets_in_use(keys)) == {"old", "new"}

    await store.redis.zadd(keys.sealed_with("old"), {f"{ends} c": 1})  # its retention is over
    assert await store.run(secrets_in_use(keys)) == {"new"}
    await store.run(delete_push_config(keys, ANN, stays, "c"))
    assert await store.run(secrets_in_use(keys)) == frozenset()
    assert not await store.redis.exists(keys.secrets)


async def test_a_config_needs_an_id(keys: Keys) -> None:
    with pytest.raises(ValueError, match="needs an id"):
        save_push_config(keys, ANN, "t", new(""))
