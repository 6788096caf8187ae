"""Push-notification configs in a store, and delivery cursors that tests advance without HTTP requests."""

from __future__ import annotations

from a2a_celery.features.webhooks import keys as webhook_keys
from a2a_celery.features.webhooks.config_section import NewPushConfig
from a2a_celery.features.webhooks.deliveries import (
    Delivery,
    DeliveryCursor,
    acquire_due_deliveries,
    read_delivery,
    record_delivery,
)
from a2a_celery.features.webhooks.push_configs import save_push_config
from a2a_celery.lifecycle import EventId
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.log.pages import read_log
from tests.support.store.seeds import ANN

LEASE_US = 60_000_000


def new(
    config_id: str = "c", sealed: bytes = b"sealed", fingerprint: str = "f0", account_limit: int | None = None
) -> NewPushConfig:
    """Return a config of Ann's account. `account_limit` is its maximum number of configs, or None for no limit."""
    return NewPushConfig(config_id, sealed, fingerprint, ANN.account, account_limit)


class Webhooks:
    """Push-notification configs and their delivery cursors."""

    def __init__(self, store: AsyncStore, keys: Keys) -> None:
        self.store, self.keys = store, keys

    async def save_config(self, task_id: str, config_id: str = "c", sealed: bytes = b"sealed") -> None:
        """Save a config of the task."""
        assert await self.store.run(save_push_config(self.keys, None, task_id, new(config_id, sealed))) is None

    async def lease_cursors(self, limit: int = 100, lease_us: int = LEASE_US) -> list[DeliveryCursor]:
        """Lease up to `limit` cursors with due deliveries."""
        return await self.store.run(acquire_due_deliveries(self.keys, limit=limit, lease_us=lease_us))

    async def pass_time(self, seconds: float) -> None:
        """Move the times of all scheduled and failing deliveries `seconds` into the past."""
        micros = int(seconds * 1_000_000)
        for member in await self.store.redis.zrange(webhook_keys.deliveries(self.keys), 0, -1):
            await self.store.redis.zincrby(webhook_keys.deliveries(self.keys), -micros, member)
        async for key in self.store.redis.scan_iter(f"{self.keys.prefix}:*:push"):
            for field in await self.store.redis.hkeys(key):
                if field.endswith(b":first_failed_at"):
                    await self.store.redis.hincrby(key, field, -micros)

    async def lease_cursor(self, lease_us: int = LEASE_US) -> DeliveryCursor:
        """Lease the only cursor with due deliveries. Fail if the number of such cursors is not one."""
        [cursor] = await self.lease_cursors(lease_us=lease_us)
        return cursor

    async def record_delivery(self, cursor: DeliveryCursor, version: int, *, posted: bool = True) -> str:
        """Record the delivery of the events up to `version`, and return the script's reply."""
        return await self.store.run(
            record_delivery(self.keys, cursor, EventId(version), lease_us=LEASE_US, posted=posted)
        )

    async def drain(self) -> dict[tuple[str, str], list[int]]:
        """Deliver all due events, and return the delivered versions by task and config."""
        got: dict[tuple[str, str], list[int]] = {}
        while cursors := await self.lease_cursors():
            for cursor in cursors:
                versions = got.setdefault((cursor.task_id, cursor.config_id), [])
                page = await self.store.run(read_log(self.keys, cursor.task_id, cursor.delivered))
                for entry in page.entries:
                    versions.append(entry.version)
                    await self.record_delivery(cursor, entry.version)
        return got

    async def delivery(self, task_id: str, config_id: str = "c") -> Delivery:
        """Return the delivery state of a config."""
        delivery = await self.store.run(read_delivery(self.keys, task_id, config_id))
        assert delivery is not None
        return delivery
