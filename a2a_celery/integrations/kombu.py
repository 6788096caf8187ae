"""Workarounds for defects of kombu's Redis transport, and a producer that records messages instead of sending them.

A Redis server that restarts, hangs or refuses writes must not end a worker. Each workaround is a function that patches
kombu and returns True if kombu has the defect. Otherwise, the function returns False. Delete a workaround when its test
reports that kombu no longer has the defect.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from traceback import walk_tb
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from amqp.exceptions import AMQPError, MessageNacked
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError, SerializationError, SerializerNotInstalled
from kombu.messaging import Producer
from kombu.transport import redis as redis_transport
from kombu.transport import virtual
from redis.connection import DefaultParser
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError
from redis.sentinel import MasterNotFoundError

from ..errors import BrokerUnavailable
from . import Library

KOMBU = Library("kombu[redis]>=5.7.0,<6", checked="5.7.0")

logger = logging.getLogger(__name__)


class WriteRefused(ResponseError):
    """Error reply of a Redis server that refuses writes for a reason in `REFUSAL_CODES`, or refuses a write of a
    script."""

    def __init__(self, text: str = "", status_code: str | None = None) -> None:
        super().__init__(f"{status_code} {text}" if status_code in REFUSAL_CODES else text, status_code=status_code)


REFUSAL_CODES = ("MISCONF", "NOREPLICAS")
"""Error codes of refused writes for which redis-py has no exception class."""
WRITE_REFUSALS = (OutOfMemoryError, ReadOnlyError, WriteRefused)
_REFUSED_IN_SCRIPT = re.compile(rf"Error running script .*: -(?:OOM|READONLY|{'|'.join(REFUSAL_CODES)})\b")


class _ErrorClasses(dict[str, type[Exception]]):
    """Exception classes of redis-py by the text of an error with the code ERR.

    Redis 6.2 replies ERR if it refuses a write of a script. The code of the refusal is in the text.
    """

    def get(self, text: str, default: Any = None) -> Any:
        """Return the exception class of an error, or `default`."""
        return super().get(text) or (WriteRefused if _REFUSED_IN_SCRIPT.match(text) else default)


def broker_error_text(error: Exception) -> str:
    """Return the type and the text of a broker's error, which is never empty. The text of an error about Sentinels,
    which contains the settings of their connections, is replaced."""
    cause = error.__cause__ or error
    if isinstance(cause, MasterNotFoundError):
        return "the Sentinels report no available primary"
    if text := str(error).rstrip("."):
        return f"{type(error).__name__}: {text}"
    return next((reason for kind, reason in _REASONS.items() if isinstance(cause, kind)), type(cause).__name__)


_REASONS = {
    MessageNacked: "the broker refused the message (nack): is the queue full?",
    TimeoutError: "the broker did not reply in time: see rabbitmq-diagnostics alarms if it is RabbitMQ",
}
"""Reasons for errors of kombu and py-amqp that have no text, by the class of the error."""


def require_confirmed_messages(connection: Any, timeout: float) -> None:
    """Check that RabbitMQ confirms a message, which no queue receives, on a new channel of `connection`.

    In a memory or disk alarm, RabbitMQ accepts connections, but does not read what they publish. Other brokers are not
    checked.

    Args:
        connection: Connection of kombu to the broker. It is closed if the message is not confirmed.
        timeout: Seconds to wait for the confirmation.

    Raises:
        BrokerUnavailable: RabbitMQ does not confirm the message in time.
    """
    if connection.transport.driver_name != "py-amqp":
        return
    channel = connection.channel()
    message = channel.prepare_message("a2a", content_type="text/plain", content_encoding="utf-8")
    try:
        channel.basic_publish_confirm(message, routing_key=f"a2a-probe-{uuid4()}", confirm_timeout=timeout)
        channel.close()
    except TimeoutError as e:
        connection.connection.collect()  # an orderly close would wait for RabbitMQ too
        raise BrokerUnavailable(
            f"RabbitMQ confirmed no message within {timeout:g} s: see rabbitmq-diagnostics alarms"
        ) from e
    except AMQPError:
        # the user may not publish here, but RabbitMQ has read the message
        return


def is_raised_by_broker(error: Exception) -> bool:
    """Return True if a publication failed because of the broker, and False if code of the app raised `error`.

    kombu calls the broker, so that errors of the broker pass through its code. Code of the app, such as a router or a
    task's ``apply_async``, raises outside kombu, or in a serializer.
    """
    if isinstance(error, SerializationError | SerializerNotInstalled):
        return False
    names = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return isinstance(error, OperationalError) or any(name.partition(".")[0] == "kombu" for name in names)


def reuse_clients(channel: type) -> bool:
    """Make each channel of the class `channel` reuse one Redis client.

    kombu 5.7.0 creates a client for each message that it publishes, and two clients for each message that a worker
    fetches. For each client, redis-py fills a table of about 170 callbacks, which takes as long as two or three
    commands. A client can be shared, because each command acquires a connection from the pool.

    Returns:
        True if the class had the defect and is now patched.
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


def patch_closed_channels(channel: type) -> bool:
    """Make channels raise a connection error if their connection is closed. Without the patch, the worker exits.

    After a Redis restart, a Celery worker closes its connection with kombu's ``Connection.collect()``, which sets the
    client of the transport to None (kombu 5.7.0, celery/kombu#582). If a channel then returns unacknowledged messages
    to their queue, ``Channel._connparams`` raises AttributeError on ``connection.client.hostname``. Celery handles only
    connection errors at this point, so the worker exits with "Unrecoverable error: AttributeError".

    Returns:
        True if the class had the defect and is now patched.
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
    closed_channel: Any = object.__new__(channel)
    closed_channel.connection = SimpleNamespace(client=None, default_port=0)
    try:
        closed_channel._connparams()
    except AttributeError as e:
        return e.obj is None
    except Exception:
        return False
    return False


def patch_refused_writes(transport: type) -> bool:
    """Treat a Redis broker that refuses writes as unavailable, so that workers reconnect until it accepts writes.

    kombu 5.7.0 treats the errors MISCONF, OOM and READONLY as errors of a command, so the Celery worker exits with
    "Unrecoverable error". Scripts of kombu, such as the release of a lock, are affected too. With the patch, a new
    channel checks that the broker accepts writes, so Celery waits between its attempts to connect.

    A full Redis server delivers a message and then refuses to record the message as unacknowledged. kombu raises an
    exception, and the message is lost. With the patch, the worker executes the message. If the worker is killed, the
    message is not redelivered.

    Returns:
        True if the transport had the defect and is now patched.
    """
    if issubclass(OutOfMemoryError, transport.connection_errors):  # type: ignore[attr-defined]
        return False
    classes: dict[str, Any] = DefaultParser.EXCEPTION_CLASSES
    for code in REFUSAL_CODES:
        classes.setdefault(code, WriteRefused)
    classes["ERR"] = _ErrorClasses(classes["ERR"])
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


def skip_ack_emulation(transport: type, skips: Callable[[Any], bool]) -> None:
    """Make a Redis transport record some unacknowledged messages in memory only.

    Redis has no acknowledgements, so kombu emulates them. kombu writes each message that a worker fetches to a hash and
    a sorted set, and removes the message when the worker acknowledges it. This emulation takes two transactions per
    message. A message that is recorded in memory still counts toward the prefetch limit, and returns to its queue when
    the channel is closed or the message is rejected with `requeue`. If the process is killed, the message is lost, and
    another component must recover its task.

    Args:
        transport: Class of the Redis transport.
        skips: Function that returns True for a message to record in memory only. Later calls add their functions.
    """
    channel: Any = transport.Channel  # type: ignore[attr-defined]
    KOMBU.require(channel, "_do_restore_message")
    KOMBU.require(channel.QoS, "_delivered")
    KOMBU.require(virtual.Message, "_raw")

    class PartialAckEmulation(channel.QoS):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.tags_in_memory: set[str] = set()

        def append(self, message: Any, delivery_tag: str) -> None:
            if skips(message):
                self.tags_in_memory.add(delivery_tag)
                virtual.QoS.append(self, message, delivery_tag)  # type: ignore[no-untyped-call]
            else:
                super().append(message, delivery_tag)

        def ack(self, delivery_tag: str) -> None:
            if delivery_tag in self.tags_in_memory:
                self.tags_in_memory.discard(delivery_tag)
                virtual.QoS.ack(self, delivery_tag)  # type: ignore[no-untyped-call]
            else:
                super().ack(delivery_tag)

        def reject(self, delivery_tag: str, requeue: bool = False) -> None:
            if delivery_tag not in self.tags_in_memory:
                super().reject(delivery_tag, requeue=requeue)
                return
            if requeue:
                self._push_back([self.get(delivery_tag)], leftmost=True)
            self.ack(delivery_tag)

        def restore_unacked(self, client: Any = None) -> None:
            newest_first = [tag for tag in reversed(self._delivered) if tag in self.tags_in_memory]
            self.tags_in_memory.clear()
            if newest_first:
                self._push_back([self._delivered.pop(tag) for tag in newest_first], client=client)
            super().restore_unacked(client)

        def _push_back(self, messages: Sequence[Any], *, client: Any = None, leftmost: bool = False) -> None:
            with self.channel.conn_or_acquire(client) as connected_client, connected_client.pipeline() as pipe:
                for message in messages:
                    exchange, key = message.delivery_info["exchange"], message.delivery_info["routing_key"]
                    self.channel._do_restore_message(message._raw, exchange, key, pipe, leftmost)
                pipe.execute()

    channel.QoS = PartialAckEmulation


class BrokerNeeded(Exception):
    """Error for a message that kombu cannot publish without sending other commands to the broker first."""


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """Message in the form in which kombu writes it to Redis, and the queue that kombu would declare first.

    Attributes:
        key: Key of the list to which kombu would push the message.
        body: Element of the list.
        queue: Queue to declare, or None.
        event_channel: Channel of the ``task-sent`` event, or "" if there is no event.
        event: Notification on `event_channel`.
    """

    key: str
    body: bytes
    queue: Queue | None
    event_channel: str = ""
    event: bytes = b""


class RecordingProducer(Producer):
    """Producer that records the commands of a message instead of sending them to the broker.

    Args:
        template: Connection to the broker to which another client sends the recorded messages.

    Raises:
        BrokerNeeded: The transport is not a Redis transport of kombu, or `global_keyprefix` is set.
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
        _ = channel.pool  # the first access formats the prefix of the events' channels
        self._queues: list[Queue] = []
        super().__init__(channel, auto_declare=False)  # type: ignore[no-untyped-call]

    def maybe_declare(self, entity: Any, retry: bool = False, **retry_policy: Any) -> Any:
        """Declare an exchange only in this process, or record a queue to declare later."""
        if isinstance(entity, Exchange):
            return super().maybe_declare(entity, retry, **retry_policy)  # type: ignore[no-untyped-call]
        self._queues.append(entity)
        return None

    def record(self, publish: Callable[[Producer], None]) -> RecordedMessage:
        """Return the message that ``publish(producer)`` publishes.

        Raises:
            BrokerNeeded: `publish` publishes anything other than one message to one list and at most one event, or
                declares several queues or a queue that has arguments, expires or is deleted automatically.
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
    """Redis client that rejects all commands except `ping`, which kombu sends when it opens a channel. `ping` does
    nothing."""

    def ping(self) -> None:
        pass

    def __getattr__(self, command: str) -> Any:
        raise BrokerNeeded(f"kombu uses {command} of its Redis client")


def _recording(transport: Any) -> type:
    """Return a variant of `transport` whose channels append their commands to a list."""
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
            """Record a command. kombu calls this method for each command of a batch."""
            self.commands.append((name, *args))

    class RecordingTransport(transport):  # type: ignore[misc]
        Channel = RecordingChannel

    return RecordingTransport
