"""Corrections of kombu's Redis transport, and messages of this transport that another client sends.

A Redis that restarts, hangs or refuses writes must not end a worker. Each correction is applied only while kombu has
the defect, and returns True if kombu has it. Delete a correction when its test reports that kombu is fixed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from types import SimpleNamespace
from typing import Any

from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer
from kombu.transport import redis as redis_transport
from kombu.transport import virtual
from redis.connection import DefaultParser
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from . import Library

KOMBU = Library("kombu[redis]>=5.7.0,<6", checked="5.7.0")

logger = logging.getLogger(__name__)


class WriteRefused(ResponseError):
    """Redis refuses writes for one of the reasons in `REFUSAL_CODES`. redis-py has classes for the other reasons."""

    def __init__(self, text: str = "", status_code: str | None = None) -> None:
        super().__init__(f"{status_code} {text}" if status_code else text, status_code=status_code)


REFUSAL_CODES = ("MISCONF", "NOREPLICAS")
WRITE_REFUSALS = (OutOfMemoryError, ReadOnlyError, WriteRefused)


def reuse_clients(channel: type) -> bool:
    """Make the channels of a class reuse one Redis client.

    kombu 5.7.0 creates a client for each publish, and two clients for each message that a worker takes. For each
    client, redis-py fills a table of about 170 callbacks, which takes as long as two or three commands. A client can be
    shared, because each command takes a connection from the pool.
    """
    KOMBU.require(channel, "_create_client")
    create = channel._create_client  # type: ignore[attr-defined]
    if not _creates_client_per_command(channel):
        return False

    @wraps(create)
    def _create_client(self: Any, asynchronous: bool = False) -> Any:
        if asynchronous:  # kombu itself reuses this client
            return create(self, asynchronous=True)
        client = vars(self).get("_a2a_client")
        if client is None or client.connection_pool is not self.pool:
            client = self._a2a_client = create(self)
        return client

    channel._create_client = _create_client  # type: ignore[attr-defined]
    return True


def _creates_client_per_command(channel: type) -> bool:
    probe: Any = object.__new__(channel)
    probe._pool, probe.Client = SimpleNamespace(connection_kwargs={}), SimpleNamespace
    try:
        return probe._create_client() is not probe._create_client()
    except Exception:  # kombu's implementation has changed
        return False


def correct_closed_channels(channel: type) -> bool:
    """Make a channel raise a connection error, instead of ending the worker, if its connection was garbage-collected.

    kombu 5.7.0 (celery/kombu#582): after a Redis restart the worker collects its connection and then closes it. If the
    close returns unacknowledged messages, ``Channel._connparams`` reads ``connection.client.hostname``, but the client
    is None. celery expects a connection error there, and ends: "Unrecoverable error: AttributeError".
    """
    KOMBU.require(channel, "_connparams")
    connparams = channel._connparams  # type: ignore[attr-defined]
    if not _fails_on_a_closed_connection(channel):
        return False

    def _connparams(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self.connection, "client", None) is None:
            raise ConnectionError("the connection to the broker is closed")
        return connparams(self, *args, **kwargs)

    channel._connparams = _connparams  # type: ignore[attr-defined]
    return True


def _fails_on_a_closed_connection(channel: type) -> bool:
    closed: Any = object.__new__(channel)
    closed.connection = SimpleNamespace(client=None, default_port=0)
    try:
        closed._connparams()
    except AttributeError as e:
        return e.obj is None
    except Exception:
        return False
    return False


def correct_refused_writes(transport: type) -> bool:
    """Treat a Redis broker that refuses writes as unavailable, so that workers reconnect until it accepts writes.

    kombu 5.7.0 treats the errors MISCONF, OOM and READONLY as errors of a command, on which the celery worker exits
    with "Unrecoverable error". With the correction, a new channel checks that the broker accepts writes, so celery
    waits between its attempts to connect.

    A full Redis delivers a message and then refuses to record it as unacknowledged. kombu raises, and the message is
    lost. With the correction, the worker executes the message. If the worker is killed, the message is not redelivered.
    """
    if issubclass(OutOfMemoryError, transport.connection_errors):  # type: ignore[attr-defined]
        return False
    for code in REFUSAL_CODES:
        DefaultParser.EXCEPTION_CLASSES.setdefault(code, WriteRefused)
    transport.connection_errors += WRITE_REFUSALS  # type: ignore[attr-defined]
    channel: Any = transport.Channel  # type: ignore[attr-defined]
    open_channel, append = channel.__init__, channel.QoS.append

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        open_channel(self, *args, **kwargs)
        try:
            self.client.zadd(self.unacked_index_key, {"": 0}, xx=True)  # a write that changes nothing
        except WRITE_REFUSALS:
            self.close()
            raise

    def append_or_log(self: Any, message: Any, delivery_tag: str) -> None:
        try:
            append(self, message, delivery_tag)
        except WRITE_REFUSALS as e:
            logger.warning("the broker refuses writes, so it would not redeliver this message: %s", e)
            virtual.QoS.append(self, message, delivery_tag)  # type: ignore[no-untyped-call]

    channel.__init__, channel.QoS.append = __init__, append_or_log
    return True


class BrokerNeeded(Exception):
    """kombu cannot publish the message without a command to the broker before the message's own commands."""


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """Message as kombu would write it to Redis, and the queue that kombu would declare before.

    Attributes:
        key: list to which kombu would push the message.
        body: element of the list.
        queue: queue to declare, or None.
        event_channel: channel of the ``task-sent`` event, or "" if there is no event.
        event: notification on `event_channel`.
    """

    key: str
    body: bytes
    queue: Queue | None
    event_channel: str = ""
    event: bytes = b""


class RecordingProducer(Producer):
    """Producer that records the commands of a message instead of sending them. It has no connection to the broker.

    Args:
        template: connection whose broker receives the messages from another client.

    Raises:
        BrokerNeeded: the transport or its options need more than one command for a message.
    """

    def __init__(self, template: Connection) -> None:
        transport = template.get_transport_cls()  # type: ignore[no-untyped-call]
        if transport not in (redis_transport.Transport, redis_transport.SentinelTransport):
            raise BrokerNeeded(f"{transport.__name__} is not a Redis transport of kombu")
        connection: Any = template.clone()  # type: ignore[no-untyped-call]
        connection.transport_cls = _recording(transport)  # the URL of a Unix socket overrides an argument
        channel = connection.default_channel
        if channel.global_keyprefix:
            raise BrokerNeeded("the transport option global_keyprefix is set")
        _ = channel.pool  # formats the prefix of the events' channels
        self._queues: list[Queue] = []
        super().__init__(channel, auto_declare=False)  # type: ignore[no-untyped-call]

    def maybe_declare(self, entity: Any, retry: bool = False, **retry_policy: Any) -> Any:
        """Declare an exchange in this process only, and record a queue."""
        if isinstance(entity, Exchange):
            return super().maybe_declare(entity, retry, **retry_policy)  # type: ignore[no-untyped-call]
        self._queues.append(entity)
        return None

    def record(self, publish: Callable[[Producer], None]) -> RecordedMessage:
        """Return the message that ``publish(producer)`` publishes.

        Raises:
            BrokerNeeded: `publish` publishes something else than one message to one list, and at most one event.
        """
        self._queues.clear()
        commands: list[tuple[str, Any, Any]] = self.channel.commands
        commands.clear()
        publish(self)
        names = [name for name, *_ in commands]
        if names not in (["lpush"], ["lpush", "publish"]) or any(map(_expires, self._queues)) or len(self._queues) > 1:
            raise BrokerNeeded(f"the message needs {names or 'no command'}")
        (_, key, body), *events = commands
        queue = self._queues[0] if self._queues else None
        _, event_channel, event = events[0] if events else ("", "", "")
        return RecordedMessage(key, body.encode(), queue, event_channel, event.encode())


def _expires(queue: Any) -> bool:
    return bool(queue.expires or queue.auto_delete or queue.queue_arguments)


class _NoClient:
    """Redis client that cannot send commands. A channel sends a PING when it is opened."""

    def ping(self) -> None:
        pass

    def __getattr__(self, command: str) -> Any:
        raise BrokerNeeded(f"kombu uses {command} of its Redis client")


def _recording(transport: Any) -> type:
    """Return `transport` with channels that append their commands to a list."""
    KOMBU.require(transport.Channel, "_create_client", "_put", "_put_fanout")

    class RecordingChannel(transport.Channel):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.commands: list[tuple[str, Any, Any]] = []
            super().__init__(*args, **kwargs)

        def _create_client(self, asynchronous: bool = False) -> Any:
            return _NoClient()

        def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
            super()._put(queue, message, _publish_batch=self, **kwargs)

        def _put_fanout(self, exchange: str, message: Any, routing_key: str, **kwargs: Any) -> None:
            super()._put_fanout(exchange, message, routing_key, _publish_batch=self, **kwargs)

        def add(self, name: str, *args: Any) -> None:
            """Record a command. kombu calls this method of a batch of messages."""
            self.commands.append((name, *args))

    class RecordingTransport(transport):  # type: ignore[misc]
        Channel = RecordingChannel

    return RecordingTransport
