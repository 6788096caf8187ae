"""What makes kombu's Redis transport dear, in whoever publishes or consumes: a client for each command.

As in `broker_guards`: applied only while kombu is like that, and to go when it is not.
"""

from __future__ import annotations

from functools import wraps
from types import SimpleNamespace
from typing import Any


def keep_clients(channel: type) -> bool:
    """Channels of that class keep the client that they made for a command; True: they did not.

    kombu 5.7.0 makes one for each publish, and two for each message that a worker takes. redis-py fills a table of some
    170 callbacks for each client, which takes as long as two or three commands. A client is made to be shared: each of
    its commands takes a connection from the pool.
    """
    make = channel._create_client  # type: ignore[attr-defined]
    if not _makes_one_for_each(channel):
        return False

    @wraps(make)
    def _create_client(self: Any, asynchronous: bool = False) -> Any:
        if asynchronous:  # kombu keeps that one itself
            return make(self, asynchronous=True)
        kept = vars(self).get("_kept_client")
        if kept is None or kept.connection_pool is not self.pool:
            kept = self._kept_client = make(self)
        return kept

    channel._create_client = _create_client  # type: ignore[attr-defined]
    return True


def _makes_one_for_each(channel: type) -> bool:
    made: Any = object.__new__(channel)
    made._pool, made.Client = SimpleNamespace(connection_kwargs={}), SimpleNamespace
    try:
        return made._create_client() is not made._create_client()
    except Exception:  # a kombu of another make
        return False
