"""A channel's Redis client: one for as long as its connections are the same, off where upstream is right."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import unwrap
from typing import Any

import pytest
from kombu import Connection
from kombu.transport import redis as kombu_redis

from a2a_celery.dispatch.redis_clients import keep_clients
from tests.support.restarts import MortalRedis

AS_IT_IS = unwrap(kombu_redis.Channel._create_client)
"""kombu's own, whatever others in this process did."""


@pytest.fixture
def channel(server: MortalRedis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """One that keeps its client."""
    monkeypatch.setattr(kombu_redis.Channel, "_create_client", AS_IT_IS)
    assert keep_clients(kombu_redis.Channel)
    with Connection(server.broker_url) as connection:
        yield connection.channel()


def test_channels_of_this_kombu_make_a_client_for_each_command() -> None:
    """When this fails, kombu is mended: drop the guard."""

    class AsItIs(kombu_redis.Channel):  # type: ignore[misc]
        _create_client = AS_IT_IS

    assert keep_clients(AsItIs)
    assert not keep_clients(AsItIs), "once is enough"


def test_a_channel_that_is_right_is_left_alone() -> None:
    class Right:
        def _create_client(self, asynchronous: bool = False) -> Any:
            return vars(self).setdefault("client", object())

    class Unlike:
        def _create_client(self, pool: Any) -> Any:
            return object()

    assert not keep_clients(Right)
    assert not keep_clients(Unlike)


def test_its_commands_share_one_client(channel: Any) -> None:
    with channel.conn_or_acquire() as first, channel.conn_or_acquire() as second:
        assert first is second
        assert first.ping()
    assert channel.client is not first, "one that is waited on has connections of its own"


def test_new_connections_mean_a_new_client(channel: Any) -> None:
    with channel.conn_or_acquire() as before:
        assert before.ping()

    channel._disconnect_pools()  # as in a child, and when the broker is lost

    with channel.conn_or_acquire() as after:
        assert after is not before
        assert after.connection_pool is channel.pool
        assert after.ping()


def test_it_gets_over_a_restart(server: MortalRedis, channel: Any) -> None:
    channel.queue_purge("runs")
    server.die()
    server.start()
    with channel.conn_or_acquire() as client:
        assert client.ping()
