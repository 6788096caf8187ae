"""Operations that open, migrate and empty a store. ``test_operations`` runs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import Keys, Operation
from a2a_celery.store.admin import schema
from a2a_celery.store.admin.archiving import (
    acquire_archivable,
    defer_archiving,
    read_archive_state,
    remove_archived,
    update_archive_backlog,
)
from tests.support.store.seeds import Seeds

Make = Callable[[Keys, Seeds], Awaitable[Operation[Any]]]


async def _ended_of_an_archive(keys: Keys, seeds: Seeds) -> str:
    await seeds.store.redis.hset(keys.installation, "archive", "1")
    return await seeds.create_task_in(COMPLETED)


async def _acquire_archivable(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await _ended_of_an_archive(keys, seeds)
    taking = acquire_archivable(keys, archiver_id="me", limit=1, lease_ms=60_000)
    return replace(taking, parse=lambda answer: taking.parse(answer).tasks)


async def _remove_archived(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return remove_archived(keys, [await seeds.create_task_in(COMPLETED)])


async def _defer_archiving(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return defer_archiving(keys, await _ended_of_an_archive(keys, seeds))


async def _update_archive_backlog(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return update_archive_backlog(keys, "0")


async def _read_archive_state(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await _ended_of_an_archive(keys, seeds)
    return read_archive_state(keys)


def _of_schema(number: int) -> Make:
    """Return the function that makes operation `number` of the sequence that opens an empty store."""

    async def make(keys: Keys, seeds: Seeds) -> Operation[Any]:
        opening = schema.opening_operations(keys, archive=False)
        operation = next(opening)
        for answer in (("", False), ("0", False))[:number]:
            operation = opening.send(answer)
        return operation

    make.__name__ = f"_opening_{number}"
    return make


def _migrate(step: schema.Migration) -> Make:
    async def make(keys: Keys, seeds: Seeds) -> Operation[Any]:
        return step.convert_page(keys, "0", schema.PAGE, False)

    make.__name__ = f"_migrate_to_{step.to}"
    return make


STORE_OPERATIONS: list[Make] = [
    _acquire_archivable, _remove_archived, _defer_archiving, _update_archive_backlog, _read_archive_state,
    *(_migrate(step) for step in schema.STEPS), *(_of_schema(n) for n in range(3)),
]  # fmt: skip
