"""Celery messages that a store script pushes to the broker, if broker and store are one Redis process.

Celery and kombu build the message, as for a run that a `Publisher` publishes, so workers see no difference. The script
that accepts a client's message also pushes the Celery message. The run of an accepted message is therefore in its
queue, even if the gateway process ends immediately.

In all other cases, the run is published after the client's message is accepted; see `MessagePreparer.prepare`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from functools import cached_property, partial
from threading import Lock, Thread
from typing import Any, Self

from celery import Celery, Task, signals
from celery.app.routes import MapRoute

from ...clock import SYSTEM_CLOCK, Clock
from ...dispatch import Publisher, RunOptions
from ...dispatch.connection import PublishingPool
from ...integrations.kombu import BrokerNeeded, RecordedMessage, RecordingProducer
from ...lifecycle.references import RunRef, Scope
from ...operations.publication import RunPublisher
from ...settings import Settings
from ...store import Keys
from ...store.client.redis_clients import database_of
from ...telemetry.tracing import tracing
from ..feature import ServiceFeature
from .section import PushedMessage

logger = logging.getLogger(__name__)

CHECK_INTERVAL = 10.0
"""Minimum seconds between two checks of the broker's process."""

MAX_BODY = 1 << 16
"""Maximum size of a message, in bytes. A script blocks Redis, and the store receives the bytes of the message twice."""

MAX_QUEUES = 1000
"""Default maximum number of remembered queues."""

OWN_RECEIVERS = frozenset({"a2a_celery.exposing"})
"""``dispatch_uid`` of each receiver of ``before_task_publish`` that has no effect in a gateway."""


class MessagePreparer:
    """Factory for messages that the store pushes to the broker.

    Args:
        app: App that publishes.
        pool: Pool of connections to the broker.
        clock: Clock for the time between two checks of the broker.
        max_queues: Maximum number of remembered queues. The limit is needed because routes may select any number of
            queues.

    Attributes:
        is_checking: True while a thread checks the broker.
    """

    def __init__(
        self, app: Celery, pool: PublishingPool, clock: Clock = SYSTEM_CLOCK, *, max_queues: int = MAX_QUEUES
    ) -> None:
        self._max_queues = max_queues
        self._app = app
        self._pool = pool
        self._clock = clock
        self._lock = Lock()
        self._producer: RecordingProducer | None = None
        self._server: tuple[str, int] | None = None
        self._declared: set[str] = set()
        self._undeclared: dict[str, Any] = {}
        self._next_check = self._clock.monotonic()
        self.is_checking = False
        self._is_impossible = False
        self._is_suspended = False

    def prepare(self, options: RunOptions, publish: Callable[[Any], None]) -> tuple[str, int, RecordedMessage] | None:
        """Prepare the message that ``publish(producer)`` publishes.

        This method does not wait for the broker. A thread reads the broker's run id and declares queues. The method
        returns None until the thread has finished. After `suspend`, `publish` is not called until the next check is
        due, so that a broker on another server does not slow down the gateway.

        The method also returns None for:

        * a broker that is not a Redis server, and a transport with ``global_keyprefix``;
        * a message that has a start time or more than `MAX_BODY` bytes;
        * a message that is published through an exchange, or to a queue that expires;
        * a publish in a Celery task, and any publish with ``task_always_eager``;
        * custom routers, receivers of Celery's publish signals, a custom ``apply_async`` of the task, and traces.
          Such code may block, and must not be executed for a message that may be refused.

        Returns:
            The run id of the broker's Redis process, the number of the broker's database and the message, or None if
            the run must be published later.
        """
        if self._is_impossible or options.not_before is not None:
            return None
        with self._lock:
            if self._is_suspended and self._clock.monotonic() < self._next_check:
                return None
            try:
                if not self._is_plain(options):
                    return None
                recorded_call = self._record(publish)
            except BrokerNeeded as e:
                logger.debug("a run will be published after its message is accepted: %s", e)
                return None
            except Exception:  # publishing the run reports the cause
                return None
            server = self._server
            if recorded_call.queue is not None and recorded_call.queue.name not in self._declared:
                server = None
                self._declare_soon(recorded_call.queue)
            self._check_soon()
        if server is None or len(recorded_call.body) > MAX_BODY:
            return None
        return *server, recorded_call

    def suspend(self) -> None:
        """Prepare no further messages until the next check, because the broker is not the server of the store."""
        with self._lock:
            if self._server is not None:
                logger.debug("the store could not publish a message: the gateway publishes runs after it accepts them")
            self._server, self._is_suspended = None, True

    def _is_plain(self, options: RunOptions) -> bool:
        task: Task | None = None if options.call is None else self._app.tasks.get(options.call.task)
        return (
            tracing() is None
            and self._app.current_worker_task is None
            and not self._app.conf.task_always_eager
            and (task is None or type(task).apply_async is Task.apply_async)
            and all(isinstance(router, MapRoute) for router in self._app.amqp.router.routes)
            and not any(map(_has_receivers, _PUBLISH_SIGNALS))
        )

    def _record(self, publish: Callable[[Any], None]) -> RecordedMessage:
        if self._producer is None:
            try:
                self._producer = RecordingProducer(self._pool.connection)
            except BrokerNeeded as e:
                self._is_impossible = True
                logger.debug("the gateway publishes runs after it accepts them: %s", e)
                raise
        return Context().run(self._producer.record, publish)

    def _declare_soon(self, queue: Any) -> None:
        if queue.name in self._undeclared:
            return
        if len(self._undeclared) + len(self._declared) >= self._max_queues:
            self._undeclared.clear()
            self._declared.clear()
        self._undeclared[queue.name] = queue
        if self._server is not None:
            self._next_check = self._clock.monotonic()

    def _check_soon(self) -> None:
        now = self._clock.monotonic()
        if now >= self._next_check and not self.is_checking:
            self.is_checking = True
            self._next_check = now + CHECK_INTERVAL
            with suppress(RuntimeError):  # the process is exiting
                Thread(target=self._check, name="a2a-broker-check", daemon=True).start()

    def _check(self) -> None:
        """Read the run id of the broker's process, and declare the queues that messages have needed."""
        server: tuple[str, int] | None = None
        declared_names: set[str] = set()
        with self._lock:
            undeclared_names = dict(self._undeclared)
        try:
            with self._pool.acquire() as producer:
                channel = producer.channel
                with channel.conn_or_acquire() as client:
                    information = client.info("server")
                # Valkey 8 names the field server_mode
                if information.get("redis_mode", information.get("server_mode")) == "standalone":
                    server = (str(information["run_id"]), int(channel.pool.connection_kwargs["db"]))
                for queue in undeclared_names.values():
                    producer.maybe_declare(queue)
                declared_names = set(undeclared_names)
        except Exception as e:  # each transport raises its own exceptions
            logger.debug("could not check the broker: %s: %s", type(e).__name__, e)
        with self._lock:
            if server != self._server:
                self._declared.clear()
            self._server, self._is_suspended = server, False
            self._declared |= declared_names
            for name in declared_names:
                self._undeclared.pop(name, None)
            self.is_checking = False


class MessagePusher(ServiceFeature):
    """Sections with the Celery messages of the runs that messages of clients begin."""

    acts_on_runs = True

    def __init__(self, publisher: Publisher, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> None:
        self._publisher = publisher
        self._settings = settings
        self._clock = clock

    @classmethod
    def of(cls, settings: Settings, _keys: Keys, _agents: Iterable[str], runs: RunPublisher) -> Self | None:
        """Return the feature, or None if the settings exclude it.

        With `store_wait_replicas`, scripts do not push Celery messages, because a client's message is accepted only
        after replicas have confirmed it.
        """
        return None if settings.store_wait_replicas else cls(runs.messages, settings, runs.clock)

    @cached_property
    def preparer(self) -> MessagePreparer:
        """Preparer of the messages."""
        return MessagePreparer(self._publisher.app, self._publisher.pool, self._clock)

    @cached_property
    def _database(self) -> int:
        return database_of(self._settings.store_url)

    def section_for_scope(self, scope: Scope) -> None:
        """Return None: the section depends on the run."""

    def section_for_run(self, agent: str, ref: RunRef, options: RunOptions) -> PushedMessage | None:
        """Return the section with the Celery message of a run; see `MessagePreparer.prepare`."""
        publish = partial(self._publisher.publish_with, agent=agent, ref=ref, options=options)
        prepared = self.preparer.prepare(options, publish)
        if prepared is None:
            return None
        server, database, message = prepared
        return PushedMessage(
            ref.name,
            server,
            database,
            self._database,
            message.key,
            message.body,
            message.event_channel,
            message.event,
            options.republish_in(self._clock.now(), self._settings),
        )

    def run_not_published(self) -> None:
        """Stop preparing messages for some seconds, because the store has accepted a run but could not push the run's
        message."""
        self.preparer.suspend()


_PUBLISH_SIGNALS = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)


def _has_receivers(signal: Any) -> bool:
    return any(uid not in OWN_RECEIVERS for (uid, _), _ in signal.receivers)
