"""The only package that talks to Redis. An operation is data (``operation``); ``connection`` runs it.

One file of verbs per noun (``tasks``, ``runs``, ``log``), one Lua script per verb (``scripts/``), all key names in
``keys``. ``sdk`` offers the store through the A2A SDK's own interfaces, ``wake`` tells who waits that a log has grown.
"""

from ..store_urls import redis_url
from .connection import AsyncStore, SyncStore
from .keys import Keys, Scope, TaskKeys
from .operation import Operation

__all__ = ["AsyncStore", "Keys", "Operation", "Scope", "SyncStore", "TaskKeys", "redis_url"]
