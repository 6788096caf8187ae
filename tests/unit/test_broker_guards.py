"""The guards of the broker connection: on where they are needed, off where upstream is right, silent elsewhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu.transport import redis as kombu_redis

from a2a_celery.dispatch.broker_guards import guard, guard_closed_channels
from a2a_celery.dispatch.connection import ANSWER_TIMEOUT, PublishingPool


def closed(channel: type) -> Any:
    """A channel whose connection was collected."""
    made: Any = object.__new__(channel)
    made.connection = SimpleNamespace(client=None, default_port=6379)
    return made


def test_a_closed_channel_of_this_kombu_needs_the_guard_and_then_says_that_it_is_closed() -> None:
    """When this fails, kombu is mended: drop the guard."""

    class Channel(kombu_redis.Channel):  # type: ignore[misc]
        pass

    assert guard_closed_channels(Channel)
    with pytest.raises(kombu_redis.Transport.connection_errors):
        closed(Channel)._connparams()
    assert not guard_closed_channels(Channel), "once is enough"


def test_a_channel_that_is_right_is_left_alone() -> None:
    class Channel:
        def _connparams(self, asynchronous: bool = False) -> Any:
            raise ConnectionError

    assert not guard_closed_channels(Channel)


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


def test_publishing_over_amqp_is_confirmed_in_time() -> None:
    app = Celery(broker="amqp://127.0.0.1:1//", set_as_current=False)

    options = PublishingPool(app).connection.transport_options

    assert options == {"confirm_publish": True, "read_timeout": ANSWER_TIMEOUT, "write_timeout": ANSWER_TIMEOUT}


def test_nothing_happens_for_other_brokers() -> None:
    for broker in ("memory://", "amqp://127.0.0.1:1//"):
        app = Celery(broker=broker, set_as_current=False)

        guard(app)

        assert app.conf.broker_transport_options == {}
    assert PublishingPool(Celery(broker="memory://", set_as_current=False)).connection.transport_options == {}
