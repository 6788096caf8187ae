"""Guards of the broker connection. They patch a kombu or Celery that has the defects, and change neither a version
without the defects nor other brokers."""

from __future__ import annotations

import inspect
import os
import ssl
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.concurrency import asynpool
from kombu.asynchronous import Hub
from kombu.transport import redis as kombu_redis

from a2a_celery.dispatch.connection import HEALTH_CHECK_INTERVAL, SOCKET_TIMEOUT, PublishingPool, guard
from a2a_celery.integrations.celery import patch_ended_children
from a2a_celery.integrations.kombu import patch_closed_channels


def channel_without_connection(channel: type) -> Any:
    """Return a channel whose connection is closed."""
    closed_channel: Any = object.__new__(channel)
    closed_channel.connection = SimpleNamespace(client=None, default_port=6379)
    return closed_channel


def test_a_patched_closed_channel_of_this_kombu_raises_a_connection_error() -> None:
    """Check that the installed kombu still needs the workaround. If this test fails because kombu has fixed the bug,
    remove the workaround."""

    class Channel(kombu_redis.Channel):  # type: ignore[misc]
        pass

    assert patch_closed_channels(Channel)
    with pytest.raises(kombu_redis.Transport.connection_errors):
        channel_without_connection(Channel)._connparams()
    assert not patch_closed_channels(Channel), "once is enough"


def test_a_patched_pool_of_this_celery_skips_ended_children() -> None:
    """Check that the installed Celery still needs the workaround. If this test fails because Celery has fixed the bug,
    remove the workaround."""

    class Pool(asynpool.AsynPool):  # type: ignore[misc]
        _track_child_process = inspect.unwrap(asynpool.AsynPool._track_child_process)  # other tests apply guards

        def __init__(self) -> None:
            """Skip the start of child processes."""

        def __del__(self) -> None:
            """Skip the stop of child processes."""

    read_end, write_end = os.pipe()
    hub = Hub()
    living_child, ended_child = SimpleNamespace(_sentinel_poll=read_end), SimpleNamespace(_sentinel_poll=None)
    with pytest.raises(ValueError, match="file descriptor is None"):
        Pool()._track_child_process(ended_child, hub)

    assert patch_ended_children(Pool)
    for child in (living_child, ended_child):
        Pool()._track_child_process(child, hub)
    tracked_ends = list(hub.readers)
    hub.close()
    os.close(write_end)

    assert tracked_ends == [read_end]
    assert not patch_ended_children(Pool), "once is enough"


def test_a_channel_without_the_defect_is_not_patched() -> None:
    class Channel:
        def _connparams(self, asynchronous: bool = False) -> Any:
            raise ConnectionError

    assert not patch_closed_channels(Channel)


def test_what_the_user_set_stays() -> None:
    app = Celery(broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.broker_transport_options = {"socket_timeout": 60, "visibility_timeout": 5}

    options = PublishingPool(app).connection.transport_options

    assert options == {
        "socket_timeout": 60,
        "visibility_timeout": 5,
        "socket_connect_timeout": 4.0,
        "socket_keepalive": True,
    }
    assert app.conf.broker_transport_options == {"socket_timeout": 60, "visibility_timeout": 5}


def test_a_worker_detects_a_redis_broker_that_does_not_respond() -> None:
    app = Celery(broker="redis://127.0.0.1:1/0", set_as_current=False)
    timeouts = {"socket_timeout": 5.0, "socket_connect_timeout": 4.0, "socket_keepalive": True}

    guard(app)
    assert app.conf.broker_transport_options == {"health_check_interval": HEALTH_CHECK_INTERVAL, **timeouts}

    own = {"health_check_interval": 3, "socket_timeout": 60, "socket_connect_timeout": 1, "socket_keepalive": False}
    app.conf.broker_transport_options = own
    guard(app)
    assert app.conf.broker_transport_options == own


def test_publishing_over_amqp_is_confirmed_in_time() -> None:
    app = Celery(broker="amqp://127.0.0.1:1//", set_as_current=False)

    options = PublishingPool(app).connection.transport_options

    assert options == {"confirm_publish": True, "read_timeout": SOCKET_TIMEOUT, "write_timeout": SOCKET_TIMEOUT}


def test_nothing_happens_for_other_brokers() -> None:
    for broker in ("memory://", "amqp://127.0.0.1:1//"):
        app = Celery(broker=broker, set_as_current=False)

        guard(app)

        assert app.conf.broker_transport_options == {}
    assert PublishingPool(Celery(broker="memory://", set_as_current=False)).connection.transport_options == {}


@pytest.mark.parametrize(("server", "has_tls"), [("redis+socket:///run/redis.sock", False), ("rediss://redis", True)])
def test_tls_options_do_not_apply_to_a_socket(server: str, has_tls: bool) -> None:
    app = Celery(broker=server, backend=server, set_as_current=False)
    options = {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    app.conf.broker_use_ssl = app.conf.redis_backend_use_ssl = options

    guard(app)

    assert bool(app.connection_for_write().ssl) is has_tls
    assert ("ssl_cert_reqs" in app.backend.connparams) is has_tls
