"""Backup of a store, to simulate a failover that loses the newest writes."""

from __future__ import annotations

from a2a_celery.store import SyncStore


def backup_of(store: SyncStore) -> dict[bytes, bytes]:
    """Return a consistent copy of all keys of the store."""
    keys = store.redis.keys()
    with store.redis.pipeline(transaction=True) as pipeline:
        for key in keys:
            pipeline.dump(key)
        return {key: value for key, value in zip(keys, pipeline.execute(), strict=True) if value is not None}


def restore(store: SyncStore, backup: dict[bytes, bytes]) -> None:
    """Replace the content of the store with `backup` and cut pub/sub connections, like a failover to a replica."""
    with store.redis.pipeline(transaction=True) as pipeline:
        pipeline.flushdb()
        for key, value in backup.items():
            pipeline.restore(key, 0, value)
        pipeline.execute()
    store.redis.client_kill_filter(_type="pubsub")
