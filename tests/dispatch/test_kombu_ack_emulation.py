"""Messages that kombu's Redis transport records as unacknowledged only in memory, together with messages that it
records in Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Connection, Queue
from kombu.transport import redis as kombu_redis

from a2a_celery.dispatch.connection import skip_run_acks
from a2a_celery.integrations.kombu import skip_ack_emulation
from tests.support.processes.restarts import MortalRedis

Connect = Callable[[], Any]


def is_run(message: Any) -> bool:
    return bool(message.headers["task"] == "a2a.echo")


@pytest.fixture
def channels(server: MortalRedis) -> Iterator[Connect]:
    """Function that opens a channel in which `is_run` selects the messages that are recorded only in memory."""

    class Channel(kombu_redis.Channel):  # type: ignore[misc]
        pass

    class Transport(kombu_redis.Transport):  # type: ignore[misc]
        pass

    Transport.Channel = Channel
    app = Celery(broker=server.broker_url, set_as_current=False)
    app.conf.broker_transport = Transport
    skip_run_acks(app, is_run)
    connections: list[Connection] = []

    def channel() -> Any:
        connection = app.connection_for_read()
        connections.append(connection)
        channel = connection.channel()
        Queue("runs", max_priority=9)(channel).declare()  # type: ignore[no-untyped-call]
        return channel

    yield channel
    for connection in connections:
        connection.release()


@pytest.fixture
def broker(server: MortalRedis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.store_url + "?db=1") as client:
        yield client


def publish(channel: Any, task: str, body: str = "x", priority: int = 0) -> None:
    with channel.connection.client.Producer() as producer:
        producer.publish(body, routing_key="runs", headers={"task": task}, priority=priority)


def fetch(channel: Any) -> Any:
    message = channel.basic_get("runs")
    assert message is not None
    return message


def recorded(broker: redis.Redis) -> tuple[object, object]:
    return broker.hlen("unacked"), broker.zcard("unacked_index")


def test_only_other_messages_are_recorded_in_redis(channels: Connect, broker: redis.Redis) -> None:
    channel = channels()
    for task in ("a2a.echo", "tasks.resize"):
        publish(channel, task)

    run = fetch(channel)
    assert recorded(broker) == (0, 0)
    other = fetch(channel)
    assert recorded(broker) == (1, 1)

    other.ack()
    run.ack()
    assert recorded(broker) == (0, 0)
    channel.close()
    assert broker.llen("runs") == 0


def test_a_message_in_memory_counts_for_the_prefetch_limit(channels: Connect) -> None:
    channel = channels()
    channel.basic_qos(prefetch_count=2)
    for _ in range(3):
        publish(channel, "a2a.echo")

    first = fetch(channel)
    assert channel.qos.can_consume()
    fetch(channel)
    assert not channel.qos.can_consume()

    first.ack()
    assert channel.qos.can_consume()


def test_a_closed_channel_returns_its_messages_to_the_front_of_their_queue(channels: Connect) -> None:
    channel = channels()
    for body in ("first", "second", "later"):
        publish(channel, "a2a.echo", body)
    fetch(channel), fetch(channel)

    channel.close()

    again = channels()
    returned = [fetch(again) for _ in range(3)]
    assert [message.body for message in returned] == [b"first", b"second", b"later"]
    assert [message.delivery_info.get("redelivered", False) for message in returned] == [True, True, False]


def test_a_closed_channel_also_returns_what_is_recorded_in_redis(channels: Connect, broker: redis.Redis) -> None:
    channel = channels()
    for task in ("a2a.echo", "tasks.resize"):
        publish(channel, task, priority=3)
    fetch(channel), fetch(channel)

    channel.close()

    assert broker.llen("runs\x06\x163") == 2
    assert recorded(broker) == (0, 0)


@pytest.mark.parametrize("requeue", [True, False])
def test_a_rejected_message_returns_only_with_requeue(channels: Connect, broker: redis.Redis, requeue: bool) -> None:
    channel = channels()
    for task in ("a2a.echo", "tasks.resize"):
        publish(channel, task)

    for message in (fetch(channel), fetch(channel)):
        message.reject(requeue=requeue)

    assert broker.llen("runs") == (2 if requeue else 0)
    assert recorded(broker) == (0, 0)
    assert channel.qos.can_consume()
    channel.close()
    assert broker.llen("runs") == (2 if requeue else 0)


def test_the_functions_of_several_apps_add_up(server: MortalRedis, channels: Connect, broker: redis.Redis) -> None:
    channel = channels()
    skip_ack_emulation(channel.connection.__class__, lambda message: message.headers["task"] == "a2a.other")
    channel = channels()
    for task in ("a2a.echo", "a2a.other", "tasks.resize"):
        publish(channel, task)

    messages = [fetch(channel) for _ in range(3)]

    assert recorded(broker) == (1, 1)
    for message in messages:
        message.ack()
    channel.close()
    assert (recorded(broker), broker.llen("runs")) == ((0, 0), 0)
