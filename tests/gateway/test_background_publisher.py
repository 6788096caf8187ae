"""Time at which a published run is due again. The time is later for a plain Celery task."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from a2a_celery.dispatch import Call, RunOptions
from a2a_celery.gateway.operations.send_message import BackgroundPublisher
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import RunRef
from tests.support.seeds import Seeds

REDISPATCH, LEASE = 600.0, 15.0


class Broker:
    """Broker that accepts every run immediately."""

    def publish_soon(self, agent: str, task_id: str, run: int, options: bytes, then: Callable[[], None]) -> None:
        then()


@pytest.mark.parametrize(("options", "wait"), [(RunOptions(), LEASE), (RunOptions(call=Call("t", {})), REDISPATCH)])
async def test_a_published_run_is_due(store: AsyncStore, keys: Keys, options: RunOptions, wait: float) -> None:
    ref = RunRef(await Seeds(store, keys).create_task(), 1)
    settings = Settings(redispatch_after=REDISPATCH, lease_ttl=LEASE)
    publisher = BackgroundPublisher(Broker(), store, keys, settings)  # type: ignore[arg-type]

    publisher.publish("agent", ref, options)
    await publisher.aclose()

    seconds, _ = await store.redis.time()
    due = await store.redis.zscore(keys.dispatch, ref.name) / 1_000_000 - seconds
    assert wait - 10 < due <= wait + 1
