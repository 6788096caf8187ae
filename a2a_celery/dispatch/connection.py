"""Broker connections of publishers, with timeouts, and the threads that publish.

The same timeouts and corrections keep a worker alive when its broker connection breaks; see ``integrations``.

By default, Celery waits for an unresponsive broker until TCP gives up, after a quarter of an hour or never.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from celery import Celery
from celery.concurrency.asynpool import AsynPool
from celery.signals import celeryd_init
from kombu import pools
from kombu.messaging import Producer

from ..concurrency import settle
from ..integrations.celery import correct_ended_children
from ..integrations.kombu import correct_closed_channels, correct_refused_writes, reuse_clients

CONNECT_TIMEOUT = 4.0
SOCKET_TIMEOUT = 5.0
"""Seconds. A broker replies in milliseconds; if it takes this long, the run stays in the store."""


def redis_timeouts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the timeouts that transport options for Redis, or for its Sentinels, do not set themselves."""
    timeouts = {"socket_timeout": SOCKET_TIMEOUT, "socket_connect_timeout": CONNECT_TIMEOUT, "socket_keepalive": True}
    missing: dict[str, Any] = {name: value for name, value in timeouts.items() if name not in options}
    if options.get("sentinel_kwargs"):  # without these, kombu applies the timeouts of the primary to the Sentinels
        missing["sentinel_kwargs"] = {**timeouts, **options["sentinel_kwargs"]}
    return missing


def amqp_timeouts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the timeouts that transport options for RabbitMQ do not set themselves, and publisher confirms.

    Without confirms, a message that is sent into a dead connection counts as published.
    """
    timeouts = {"confirm_publish": True, "read_timeout": SOCKET_TIMEOUT, "write_timeout": SOCKET_TIMEOUT}
    return {name: value for name, value in timeouts.items() if name not in options}


TIMEOUTS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {"redis": redis_timeouts, "py-amqp": amqp_timeouts}
"""Timeouts by the name of kombu's driver; other drivers keep their options unchanged."""


class PublishingPool:
    """Pool of connections to the broker that `app` publishes to. The pool of `app` lacks the timeouts."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def acquire(self) -> Any:
        """Wait for a free producer; use it in a ``with`` statement."""
        return pools.producers[self.connection].acquire(block=True)

    @property
    def batches(self) -> bool:
        """True if the messages of a ``producer.batch()`` go to the broker in one round trip."""
        producer = Producer(self.connection, auto_declare=False)  # type: ignore[no-untyped-call]
        return bool(producer.supports_batch_publish)

    def is_dead(self, error: BaseException) -> bool:
        """Return True if `error` says that the broker is unreachable, not that one message was refused.

        kombu raises OperationalError for both, for example for a queue that is full or forbidden. On Redis, kombu
        counts any KeyError as an error of the connection.
        """
        try:
            errors = self.connection.connection_errors
        except Exception:  # not the address of a broker
            return True
        error = error.__cause__ or error
        return isinstance(error, errors) and not isinstance(error, KeyError)

    @cached_property
    def connection(self) -> Any:
        """Template of the pool's connections, built at the first use, when `app` is configured."""
        transport = self._app.connection_for_write().get_transport_cls()
        driver = transport.driver_name
        if driver == "redis":
            reuse_clients(transport.Channel)
        options = self._app.conf.broker_transport_options
        timeouts = TIMEOUTS[driver](options) if driver in TIMEOUTS else {}
        return self._app.connection_for_write(transport_options=timeouts)


logger = logging.getLogger(__name__)

HEALTH_CHECK_INTERVAL = 10
"""Seconds between two checks of an idle connection; a dead one is dropped after twice this."""

_guarded: WeakSet[Celery] = WeakSet()


def guard_workers(app: Celery) -> None:
    """Guard the broker connection of each worker of `app` before the worker connects."""
    _guarded.add(app)
    celeryd_init.connect(_before_a_worker_connects, weak=False, dispatch_uid="a2a_celery.broker_guards")


def _before_a_worker_connects(instance: Any = None, **_: Any) -> None:
    try:
        if instance.app in _guarded:
            guard(instance.app)
    except Exception:
        logger.exception("the worker's broker connection was not guarded")


def guard(app: Celery) -> None:
    """Apply the correction of the prefork pool, and set timeouts and apply corrections if `app` consumes from Redis."""
    correct_ended_children(AsynPool)
    transport = app.connection_for_read().get_transport_cls()
    if transport.driver_name != "redis":
        return
    options = app.conf.broker_transport_options
    app.conf.broker_transport_options = {
        "health_check_interval": HEALTH_CHECK_INTERVAL,
        **options,
        **redis_timeouts(options),
    }
    correct_closed_channels(transport.Channel)
    correct_refused_writes(transport)
    reuse_clients(transport.Channel)


THREADS = 4
"""Maximum concurrent publishes if each is a separate round trip."""

MAX_BATCH = 64

T = TypeVar("T")

PublishAll = Callable[[Sequence[T]], Sequence[Exception | None]]
"""Function that publishes runs and returns an error or None for each. It raises nothing."""


@dataclass(frozen=True, slots=True)
class _Asked(Generic[T]):
    one: T
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None] = field(compare=False)


class PublishingThreads(Generic[T]):
    """Calls `publish_all` in daemon threads; see `concurrency.DaemonThreads`.

    `batches` is called at the first run. If it returns True, one thread publishes all waiting runs together; otherwise
    each of a few threads publishes one run at a time.
    """

    def __init__(self, publish_all: PublishAll[T], batches: Callable[[], bool]) -> None:
        self._publish_all = publish_all
        self._batches = batches
        self._asked: SimpleQueue[_Asked[T]] = SimpleQueue()
        self._threads: list[Thread] = []
        self._at_once: int | None = None

    def publish(self, one: T) -> asyncio.Future[None]:
        """Return a future that ends when the broker has the run, or with the error. Cancelling it does not stop the
        publish."""
        loop = asyncio.get_running_loop()
        if self._at_once != 1 and len(self._threads) < THREADS:
            if self._at_once is None:
                self._at_once = 1 if self._batches() else THREADS
            thread = Thread(target=self._serve, name=f"a2a-publish-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        done: asyncio.Future[None] = loop.create_future()
        self._asked.put(_Asked(one, loop, done))
        return done

    def _serve(self) -> None:
        size = MAX_BATCH if self._at_once == 1 else 1
        while True:
            asked = [self._asked.get()]
            with suppress(Empty):
                while len(asked) < size:
                    asked.append(self._asked.get_nowait())
            errors = self._publish_all([each.one for each in asked])
            by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], Exception | None]]] = {}
            for each, error in zip(asked, errors, strict=True):
                by_loop.setdefault(each.loop, []).append((each.done, error))
            for loop, ended in by_loop.items():
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(_settle_all, ended)


def _settle_all(ended: Sequence[tuple[asyncio.Future[None], Exception | None]]) -> None:
    for done, error in ended:
        settle(done, None, error)
