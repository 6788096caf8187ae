"""The operations that open, migrate and empty a store: for ``test_operations``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import Keys, Operation, schema
from a2a_celery.store.archiving import archive_state, keep_ended, let_go, set_aside, take_ended
from tests.support.seeds import Seeds

Make = Callable[[Keys, Seeds], Awaitable[Operation[Any]]]


async def _ended_of_an_archive(keys: Keys, seeds: Seeds) -> str:
    await seeds.store.redis.hset(keys.installation, "archive", "1")
    return await seeds.ended(COMPLETED)


async def _take_ended(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await _ended_of_an_archive(keys, seeds)
    taking = take_ended(keys, who="me", limit=1, lease_ms=60_000)
    return replace(taking, parse=lambda answer: taking.parse(answer).tasks)


async def _let_go(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return let_go(keys, [await seeds.ended(COMPLETED)])


async def _set_aside(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return set_aside(keys, await _ended_of_an_archive(keys, seeds))


async def _keep_ended(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return keep_ended(keys, "0")


async def _archive_state(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await _ended_of_an_archive(keys, seeds)
    return archive_state(keys)


def _of_schema(number: int) -> Make:
    """The operations of a store that is opened: it has no schema, and no keys."""

    async def make(keys: Keys, seeds: Seeds) -> Operation[Any]:
        opening = schema._opening(keys, archive=False)
        operation = next(opening)
        for answer in (("", False), ("0", False))[:number]:
            operation = opening.send(answer)
        return operation

    make.__name__ = f"_opening_{number}"
    return make


async def _migrate(keys: Keys, seeds: Seeds) -> Operation[Any]:
    return schema.page_of(keys, schema.STEPS[0], "0", dry_run=False)


VERBS_OF_KEEPING: list[Make] = [
    _take_ended, _let_go, _set_aside, _keep_ended, _archive_state, _migrate, *(_of_schema(n) for n in range(3)),
]  # fmt: skip
