"""Access to the store in Redis. Only this package defines the keys of the store and runs its scripts.

An `Operation` is data: a Lua script of ``scripts/``, its keys and arguments, and a parser of its reply.
`AsyncStore` and `SyncStore` run operations. ``keys`` defines every key, and ``sdk`` implements the A2A SDK's task
store.
"""

from ..settings.urls import redis_url
from .client.connection import AsyncStore, SyncStore
from .keys import Keys, TaskKeys
from .operation import Operation

__all__ = ["AsyncStore", "Keys", "Operation", "SyncStore", "TaskKeys", "redis_url"]
