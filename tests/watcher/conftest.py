"""Fixtures for the tests of watchers."""

from __future__ import annotations

import pytest

from a2a_celery.lifecycle.references import RunRef
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.publication import mark_published
from tests.support.store.dispatcher_setup import DUE_NOW_US, create_operation


@pytest.fixture
async def due(store: AsyncStore, keys: Keys) -> list[str]:
    """Ids of three tasks whose runs are due to be published."""
    task_ids = [f"t{n}" for n in range(3)]
    for task_id in task_ids:
        await store.run(create_operation(keys, task_id))
        await store.run(mark_published(keys, RunRef(task_id, 1), delay_us=DUE_NOW_US))
    return task_ids
