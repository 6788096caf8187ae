"""Redis clients of kombu channels. A patched channel reuses one client as long as its connection pool is the same. A
kombu without the defect is not patched."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import unwrap
from typing import Any

import pytest
from kombu import Connection
from kombu.transport import redis as kombu_redis

from a2a_celery.integrations.kombu import reuse_clients
from tests.support.processes.restarts import MortalRedis

ORIGINAL = unwrap(kombu_redis.Channel._create_client)
"""kombu's method, without a patch that this process may have applied."""


@pytest.fixture
def channel(server: MortalRedis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Patched channel, which reuses its Redis client."""
    monkeypatch.setattr(kombu_redis.Channel, "_create_client", ORIGINAL)
    assert reuse_clients(kombu_redis.Channel)
    with Connection(server.broker_url) as connection:
        yield connection.channel()


def test_channels_of_this_kombu_create_a_client_for_each_command() -> None:
    """Check that the installed kombu still needs the workaround. If this test fails because kombu has fixed the bug,
    remove the workaround."""

    class Original(kombu_redis.Channel):  # type: ignore[misc]
        _create_client = ORIGINAL

    assert reuse_clients(Original)
    assert not reuse_clients(Original), "once is enough"


def test_a_channel_without_the_defect_is_not_patched() -> None:
    class Correct:
        def _create_client(self, asynchronous: bool = False) -> Any:
            return vars(self).setdefault("client", object())

    class Different:
        def _create_client(self, pool: Any) -> Any:
            return object()

    assert not reuse_clients(Correct)
    assert not reuse_clients(Different)


def test_its_commands_share_one_client(channel: Any) -> None:
    with channel.conn_or_acquire() as first, channel.conn_or_acquire() as second:
        assert first is second
        assert first.ping()
    assert channel.client is not first, "the client for blocking commands has separate connections"


def test_new_connections_mean_a_new_client(channel: Any) -> None:
    with channel.conn_or_acquire() as before:
        assert before.ping()

    channel._disconnect_pools()  # as in a forked child, and after the broker is lost

    with channel.conn_or_acquire() as after:
        assert after is not before
        assert after.connection_pool is channel.pool
        assert after.ping()


def test_the_client_survives_a_restart(server: MortalRedis, channel: Any) -> None:
    channel.queue_purge("runs")
    server.die()
    server.start()
    with channel.conn_or_acquire() as client:
        assert client.ping()
