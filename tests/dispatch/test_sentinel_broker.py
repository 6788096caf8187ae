"""Brokers behind Sentinels. They have the guards and timeouts of a Redis broker, and no password is logged."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from celery import Celery
from kombu.transport import redis as kombu_redis
from redis import OutOfMemoryError
from redis.backoff import NoBackoff
from redis.retry import Retry

from a2a_celery.cli.doctor.broker_server import broker_server
from a2a_celery.dispatch.connection import SOCKET_TIMEOUT, PublishingPool, guard
from a2a_celery.gateway.health import broker_line
from tests.support.waiting import LIMIT

URL = "sentinel://:s3cret@127.0.0.1:1/1;sentinel://:s3cret@127.0.0.1:2/1"
OPTIONS: dict[str, Any] = {"master_name": "mymaster", "sentinel_kwargs": {"password": "s3cret", "socket_timeout": 1}}


@pytest.fixture
def app() -> Celery:
    app = Celery("tests", set_as_current=False, broker=URL)
    app.conf.broker_transport_options = OPTIONS
    return app


def test_sentinels_with_a_password_get_timeouts_that_they_do_not_have(app: Celery) -> None:
    guard(app)

    for options in (app.conf.broker_transport_options, PublishingPool(app).connection.transport_options):
        assert options["master_name"] == "mymaster"
        assert options["socket_timeout"] == SOCKET_TIMEOUT
        assert {"password", "socket_connect_timeout", "socket_keepalive"} <= set(options["sentinel_kwargs"])
        assert options["sentinel_kwargs"]["socket_timeout"] == 1


def test_workers_get_the_guards(app: Celery) -> None:
    guard(app)

    assert issubclass(OutOfMemoryError, kombu_redis.SentinelTransport.connection_errors)


def test_no_line_shows_a_password(app: Celery) -> None:
    assert broker_line(app).startswith("sentinel://:**@127.0.0.1:1/1 (")


def test_sentinels_that_do_not_respond_are_reported_in_a_few_words(app: Celery) -> None:
    app.conf.broker_transport_options = {**OPTIONS, "sentinel_kwargs": {"retry": Retry(NoBackoff(), 0)}}

    assert broker_server(app) == "the Sentinels report no available primary"


async def test_sentinels_that_accept_connections_and_do_not_reply_are_reported(app: Celery) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent_sentinel:
        app.conf.broker_url = f"sentinel://127.0.0.1:{silent_sentinel.getsockname()[1]}"

        broker = await asyncio.wait_for(asyncio.to_thread(broker_server, app), LIMIT)

    assert broker == "the Sentinels report no available primary"
