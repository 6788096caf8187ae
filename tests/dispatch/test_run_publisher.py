"""Time at which a published run is due again. The time is later for a plain Celery task."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery import Celery

from a2a_celery.dispatch import Call, Publisher, RunOptions
from a2a_celery.dispatch.options import DEFAULT_OPTIONS
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.operations.publication import RunPublisher
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from tests.support.store.seeds import Seeds

REDISPATCH, LEASE = 600.0, 15.0


class Broker(Publisher):
    """Broker that accepts every run immediately."""

    def __init__(self) -> None:
        super().__init__(Celery(broker="memory://", set_as_current=False), {})

    def publish_soon(self, agent: str, ref: RunRef, options: RunOptions, callback: Callable[[], None]) -> None:
        callback()

    async def publish_async(
        self, agent: str, ref: RunRef, options: RunOptions = DEFAULT_OPTIONS, *, version_queue: str = ""
    ) -> None:
        pass

    async def finish(self, limit: float) -> None:
        """Return at once, because no run is being sent."""


@pytest.mark.parametrize(("options", "wait"), [(RunOptions(), LEASE), (RunOptions(call=Call("t", {})), REDISPATCH)])
@pytest.mark.parametrize("mode", [{}, {"in_background": True}, {"in_batches": True}], ids=str)
async def test_a_published_run_is_due(
    store: AsyncStore, keys: Keys, options: RunOptions, wait: float, mode: dict[str, bool]
) -> None:
    ref = RunRef(await Seeds(store, keys).create_task(), 1)
    settings = Settings(redispatch_after=REDISPATCH, lease_ttl=LEASE)
    publisher = RunPublisher(Broker(), store, keys, settings, **mode)

    assert await publisher.publish("agent", ref, options)
    await publisher.aclose()

    seconds, _ = await store.redis.time()
    due = await store.redis.zscore(keys.dispatch, ref.name) / 1_000_000 - seconds
    assert wait - 10 < due <= wait + 1
