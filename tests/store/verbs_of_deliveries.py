"""The operations about webhooks: for ``test_operations``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from a2a_celery.store import Keys, Operation
from a2a_celery.store.deliveries import (
    Line,
    delivery_figures,
    give_up_delivery,
    note_delivered,
    postpone_delivery,
    read_delivery,
    replay_delivery,
    scan_deliveries,
    take_due_deliveries,
)
from a2a_celery.store.push_configs import (
    NewPushConfig,
    delete_push_config,
    list_push_configs,
    save_push_config,
    secrets_in_use,
)
from a2a_celery.store.runs import RunRef, claim_run
from tests.support.seeds import ANN, LEASE_US, Seeds

Make = Callable[[Keys, Seeds], Awaitable[Operation[Any]]]

PUSH = NewPushConfig("c", b"sealed", "f0")


async def _save_push(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.created(task_id="t")
    return save_push_config(keys, ANN, "t", PUSH)


async def owed(keys: Keys, seeds: Seeds) -> Line:
    """The line of a config of the task "t", in hand."""
    await seeds.created(task_id="t")
    await seeds.store.run(save_push_config(keys, ANN, "t", PUSH))
    await seeds.store.run(claim_run(keys, RunRef("t", 1), token="token", runner="r", lease_us=LEASE_US, working=True))
    [line] = await seeds.store.run(take_due_deliveries(keys, limit=1, lease_us=LEASE_US))
    return line


async def _list_push(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await owed(keys, seeds)
    return list_push_configs(keys, ANN, "t")


async def _delete_push(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await owed(keys, seeds)
    return delete_push_config(keys, ANN, "t", "c")


async def _secrets(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await owed(keys, seeds)
    return secrets_in_use(keys)


async def _take_deliveries(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await owed(keys, seeds)
    return take_due_deliveries(keys, limit=1, lease_us=LEASE_US)


async def _note(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return note_delivered(keys, await owed(keys, seeds), 2, lease_us=LEASE_US)


async def _postpone(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return postpone_delivery(keys, await owed(keys, seeds), after_us=9, counts=True, said={"status": 500})


async def _give_up(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return give_up_delivery(keys, await owed(keys, seeds), said={"reason": "no"})


async def _replay(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.store.run(await _give_up(keys, seeds))
    return replay_delivery(keys, "t", "c")


async def _read_delivery(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await owed(keys, seeds)
    return read_delivery(keys, "t", "c")


async def _scan_deliveries(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await owed(keys, seeds)
    return scan_deliveries(keys)


async def _delivery_figures(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await seeds.store.run(await _give_up(keys, seeds))
    return delivery_figures(keys)


VERBS_OF_DELIVERIES: list[Make] = [
    _save_push, _list_push, _delete_push, _secrets, _take_deliveries, _note, _postpone, _give_up, _replay,
    _read_delivery, _scan_deliveries, _delivery_figures,
]  # fmt: skip
