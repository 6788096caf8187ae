"""Broker connections with timeouts for publishers, and the threads that publish.

By default, Celery waits for an unresponsive broker until TCP gives up, which may take 15 minutes or never happen. The
same timeouts, and the workarounds in ``integrations``, keep a worker alive when its broker connection breaks.
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

from ..concurrency import close_old_connections, settle
from ..integrations.celery import disable_tls_on_sockets, patch_ended_children
from ..integrations.kombu import patch_closed_channels, patch_refused_writes, reuse_clients, skip_ack_emulation

CONNECT_TIMEOUT = 4.0
SOCKET_TIMEOUT = 5.0
"""Seconds that the broker may take to reply. Without a reply in this time, the run stays in the store, and a watcher
publishes the run. A reply normally takes milliseconds."""


def redis_timeouts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the timeouts that are missing in the transport options of Redis or of its Sentinels."""
    timeouts = {"socket_timeout": SOCKET_TIMEOUT, "socket_connect_timeout": CONNECT_TIMEOUT, "socket_keepalive": True}
    missing: dict[str, Any] = {name: value for name, value in timeouts.items() if name not in options}
    if options.get("sentinel_kwargs"):  # without these, kombu applies the timeouts of the primary to the Sentinels
        missing["sentinel_kwargs"] = {**timeouts, **options["sentinel_kwargs"]}
    return missing


def amqp_timeouts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for publisher confirms and timeouts that are missing in the transport options of RabbitMQ.

    Without confirms, a message that is sent over a dead connection would be considered published.
    """
    timeouts = {"confirm_publish": True, "read_timeout": SOCKET_TIMEOUT, "write_timeout": SOCKET_TIMEOUT}
    return {name: value for name, value in timeouts.items() if name not in options}


TIMEOUTS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {"redis": redis_timeouts, "py-amqp": amqp_timeouts}
"""Functions that return the missing timeouts, by driver name in kombu. The options of other drivers are unchanged."""


class PublishingPool:
    """Pool of broker connections for publishing, with timeouts that the connections of Celery's own pool lack."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def acquire(self) -> Any:
        """Wait for a free producer and return it. At the end of a ``with`` block, the producer returns to the pool."""
        return pools.producers[self.connection].acquire(block=True)

    @property
    def batches(self) -> bool:
        """True if ``producer.batch()`` sends its messages to the broker in one round trip."""
        producer = Producer(self.connection, auto_declare=False)  # type: ignore[no-untyped-call]
        return bool(producer.supports_batch_publish)

    def is_dead(self, error: BaseException) -> bool:
        """Return True if `error` means that the broker is unreachable, and False if the broker refused one message.

        kombu raises OperationalError in both cases. For example, a broker refuses a message to a full or forbidden
        queue. For Redis, kombu treats any KeyError as a connection error.
        """
        try:
            errors = self.connection.connection_errors
        except Exception:  # the address of the broker is invalid
            return True
        error = error.__cause__ or error
        return isinstance(error, errors) and not isinstance(error, KeyError)

    @cached_property
    def connection(self) -> Any:
        """Connection that the pool clones, created on first use because `app` may not be configured earlier."""
        transport = self._app.connection_for_write().get_transport_cls()
        driver = transport.driver_name
        if driver == "redis":
            reuse_clients(transport.Channel)
        options = self._app.conf.broker_transport_options
        timeouts = TIMEOUTS[driver](options) if driver in TIMEOUTS else {}
        return self._app.connection_for_write(transport_options=timeouts)


logger = logging.getLogger(__name__)

HEALTH_CHECK_INTERVAL = 10
"""Seconds between two checks of an idle connection. A dead connection is closed after twice this time."""

_guarded_apps: WeakSet[Celery] = WeakSet()


def guard_workers(app: Celery) -> None:
    """Call `guard` for each worker of `app` before the worker connects to the broker."""
    _guarded_apps.add(app)
    celeryd_init.connect(_before_a_worker_connects, weak=False, dispatch_uid="a2a_celery.broker_guards")


def _before_a_worker_connects(instance: Any = None, **_: Any) -> None:
    try:
        if instance.app in _guarded_apps:
            guard(instance.app)
    except Exception:
        logger.exception("could not set the timeouts of the worker's broker connection")


def guard(app: Celery) -> None:
    """Patch Celery's prefork pool, and disable TLS on Unix sockets. If `app` consumes from Redis, also set timeouts and
    patch kombu's transport."""
    disable_tls_on_sockets(app)
    patch_ended_children(AsynPool)
    transport = app.connection_for_read().get_transport_cls()
    if transport.driver_name != "redis":
        return
    options = app.conf.broker_transport_options
    app.conf.broker_transport_options = {
        "health_check_interval": HEALTH_CHECK_INTERVAL,
        **options,
        **redis_timeouts(options),
    }
    patch_closed_channels(transport.Channel)
    patch_refused_writes(transport)
    reuse_clients(transport.Channel)


def skip_run_acks(app: Celery, is_run: Callable[[Any], bool]) -> None:
    """Record unacknowledged messages of runs only in memory if `app` consumes from Redis.

    Args:
        app: App of the worker.
        is_run: Function that returns True if a message belongs to a run.
    """
    transport = app.connection_for_read().get_transport_cls()
    if transport.driver_name == "redis":
        skip_ack_emulation(transport, is_run)


THREADS = 4
"""Maximum number of threads that publish if each message takes a separate round trip."""

MAX_BATCH = 64

T = TypeVar("T")

PublishAll = Callable[[Sequence[T]], Sequence[Exception | None]]
"""Function that publishes runs. For each run, the function returns None or an exception, instead of raising it."""


@dataclass(frozen=True, slots=True)
class _Request(Generic[T]):
    run: T
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None] = field(compare=False)


class PublishingThreads(Generic[T]):
    """Daemon threads that publish runs.

    Args:
        publish_all: Function that publishes runs.
        batches: Function that is called before the first publish. If it returns True, one thread publishes up to
            `MAX_BATCH` waiting runs together. Otherwise, each of at most `THREADS` threads publishes one run at a time.
    """

    def __init__(self, publish_all: PublishAll[T], batches: Callable[[], bool]) -> None:
        self._publish_all = publish_all
        self._batches = batches
        self._requests: SimpleQueue[_Request[T]] = SimpleQueue()
        self._threads: list[Thread] = []
        self._at_once: int | None = None

    def publish(self, run: T) -> asyncio.Future[None]:
        """Start publishing a run.

        Returns:
            A future that completes when the broker has the run, or fails with the error. Cancelling the future does not
            stop the publishing.
        """
        loop = asyncio.get_running_loop()
        if self._at_once != 1 and len(self._threads) < THREADS:
            if self._at_once is None:
                self._at_once = 1 if self._batches() else THREADS
            thread = Thread(target=self._serve, name=f"a2a-publish-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        completion: asyncio.Future[None] = loop.create_future()
        self._requests.put(_Request(run, loop, completion))
        return completion

    def _serve(self) -> None:
        size = MAX_BATCH if self._at_once == 1 else 1
        while True:
            requests = [self._requests.get()]
            with suppress(Empty):
                while len(requests) < size:
                    requests.append(self._requests.get_nowait())
            close_old_connections()  # a task's apply_async, or a receiver of Celery's signals, may use Django's ORM
            errors = self._publish_all([request.run for request in requests])
            by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], Exception | None]]] = {}
            for request, error in zip(requests, errors, strict=True):
                by_loop.setdefault(request.loop, []).append((request.done, error))
            for loop, results in by_loop.items():
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(_settle_all, results)


def _settle_all(results: Sequence[tuple[asyncio.Future[None], Exception | None]]) -> None:
    for completion, error in results:
        settle(completion, None, error)
