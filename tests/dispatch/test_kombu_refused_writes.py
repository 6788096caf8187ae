"""Redis broker that refuses writes. It counts as unavailable, and loses no delivered message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.transport import redis as kombu_redis

from a2a_celery.integrations.kombu import patch_refused_writes
from tests.support.processes.restarts import MortalRedis, allow_writes, installed_servers, refuse_writes
from tests.support.waiting import LIMIT


def transport() -> Any:
    """Return a subclass of kombu's Redis transport that a test may change."""

    class QoS(kombu_redis.QoS):  # type: ignore[misc]
        pass

    class Channel(kombu_redis.Channel):  # type: ignore[misc]
        pass

    class Transport(kombu_redis.Transport):  # type: ignore[misc]
        connection_errors = kombu_redis.get_redis_error_classes().connection_errors

    Channel.QoS, Transport.Channel = QoS, Channel
    return Transport


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MortalRedis]:
    """Broker, of the default program or of the program that is the test's parameter."""
    server = MortalRedis(tmp_path, getattr(request, "param", None))
    server.start()
    yield server
    server.die()  # a graceful shutdown takes 0.1 s
    server.stop()


@pytest.fixture
def connect(server: MortalRedis) -> Iterator[Callable[[], Connection]]:
    """Function that opens connections to the server through a patched transport."""
    patched = transport()
    connections: list[Connection] = []
    assert patch_refused_writes(patched)

    def connect() -> Connection:
        connection = Connection(server.broker_url)
        connection.transport_cls = patched
        connections.append(connection)
        return connection

    yield connect
    allow_writes(server)
    for connection in connections:
        connection.release()


def test_this_kombu_needs_the_workaround() -> None:
    """Check that the installed kombu still needs the workaround. If this test fails because kombu has fixed the bug,
    remove the workaround."""
    unpatched = transport()
    assert not issubclass(redis.OutOfMemoryError, unpatched.connection_errors)
    assert patch_refused_writes(unpatched)
    assert not patch_refused_writes(unpatched), "once is enough"


@pytest.mark.parametrize("problem", ["OOM", "MISCONF", "READONLY"])
def test_no_connection_to_a_broker_that_refuses_writes(
    server: MortalRedis, connect: Callable[[], Connection], problem: str
) -> None:
    refuse_writes(server, problem)
    refused = connect()
    with pytest.raises(OperationalError) as error:
        refused.ensure_connection(max_retries=1, interval_start=0)
    assert isinstance(error.value.__cause__, refused.connection_errors)

    allow_writes(server)
    connect().connect()


@pytest.mark.parametrize("problem", ["OOM", "MISCONF"])
def test_a_refusal_on_an_open_connection_is_an_error_of_the_connection(
    server: MortalRedis, connect: Callable[[], Connection], problem: str
) -> None:
    connection = connect()
    queue = connection.SimpleQueue("q")
    refuse_writes(server, problem)

    with pytest.raises(connection.connection_errors) as refused:
        queue.put("lost", retry=False)

    assert problem in f"{getattr(refused.value, 'status_code', '')} {refused.value}"


@pytest.mark.parametrize("server", installed_servers(), ids=str, indirect=True)
@pytest.mark.parametrize("problem", ["OOM", "MISCONF", "READONLY"])
def test_a_refusal_in_a_script_is_an_error_of_the_connection(
    server: MortalRedis, connect: Callable[[], Connection], problem: str
) -> None:
    """A script of kombu renews a binding, and a script of redis-py releases kombu's lock."""
    connection = connect()
    client = connection.channel().client
    refuse_writes(server, problem)

    with pytest.raises(connection.connection_errors) as refused:
        client.eval("return redis.call('SET', KEYS[1], '1')", 1, "key")

    assert problem in f"{getattr(refused.value, 'status_code', '')} {refused.value}"


def test_a_mistake_in_a_script_is_not_an_error_of_the_connection(connect: Callable[[], Connection]) -> None:
    connection = connect()
    with pytest.raises(redis.ResponseError) as mistake:
        connection.channel().client.eval("return redis.call('GET')", 0)
    assert not isinstance(mistake.value, connection.connection_errors)


def test_a_message_delivered_by_a_full_broker_is_not_lost(
    server: MortalRedis, connect: Callable[[], Connection]
) -> None:
    queue = connect().SimpleQueue("q")
    queue.put("message")
    refuse_writes(server, "OOM")

    assert queue.get(timeout=LIMIT).payload == "message"
