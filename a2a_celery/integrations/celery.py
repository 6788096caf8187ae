"""Private API of Celery that the workers and publishers of this package use, and a workaround for a defect of the
prefork pool."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import SimpleNamespace
from typing import Any, cast

from celery import Celery, Task, _state
from celery.exceptions import Retry
from celery.local import Proxy
from celery.utils.functional import noop
from celery.utils.serialization import UnpickleableExceptionWrapper

from ..settings.urls import BROKER_READ_VARIABLE, BROKER_WRITE_VARIABLE, RESULTS_VARIABLE
from . import Library, base_in

CELERY = Library("celery>=5.7.0,<6", checked="5.7.0")
CELERY.require(_state, "_task_stack")
CELERY.require(Proxy, "_get_current_object")
CELERY.require(Celery, "_fixups", "_pool", "_tasks")
CELERY.require(Task, "_get_exec_options", "_backend")

task_stack = _state._task_stack
"""Celery's stack of the tasks that are executing in the current thread."""


def resolve_proxy(value: Any) -> Any:
    """Return the object that a Celery proxy refers to, or `value` itself if it is not a proxy."""
    return value._get_current_object() if isinstance(value, Proxy) else value


def fixups(app: Celery) -> list[Any]:
    """Return the fixups of `app`, such as the Django fixup."""
    return list(getattr(app, "_fixups", None) or ())


def is_registered(app: Celery, task_name: str) -> bool:
    """Return True if `app` has a task named `task_name`. Unlike ``app.tasks``, this function does not finalize the
    app."""
    return task_name in app._tasks


def own_options(task: Task) -> dict[str, Any]:
    """Return the options that `task` sets for its messages, such as its queue."""
    return {name: value for name, value in task._get_exec_options().items() if value}


def own_backend(task: Task) -> Any:
    """Return the result backend that `task` sets, or None if `task` uses the result backend of its app."""
    return task._backend


def wrap_autoretry(task: Task, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Wrap the function of `task` inside the wrapper of Celery's autoretry. Without autoretry, do nothing."""
    if hasattr(task, "_orig_run"):
        task._orig_run = wrap(task._orig_run)


def cause_of(retry: Retry) -> BaseException | None:
    """Return the exception in Celery's `Retry`, or None.

    If an exception cannot be pickled, Celery's constructor replaces it with an exception of a base class or with a
    wrapper. In this case, the original exception is returned.
    """
    cause, original = cast(BaseException | None, retry.exc), retry.__cause__ or retry.__context__
    if cause is None or original is None:
        return cause
    is_replaced = isinstance(cause, UnpickleableExceptionWrapper) or isinstance(original, type(cause))
    return original if is_replaced else cause


def without_cycle(retry: Retry) -> Retry:
    """Remove the `args` of `retry`, which contain `retry` itself, and return `retry`.

    Otherwise, the exception and its traceback would stay in memory until the garbage collector runs.
    """
    retry.args = ()
    return retry


def execute_before_eta(consumer: Any, request: Any) -> None:
    """Execute a request that waits for its ETA. Call this function on the timer of `consumer`."""
    consumer.timer.cancel(request._eta_timer_entry)
    consumer.apply_eta_task(request)


def patch_ended_children(pool: type) -> bool:
    """Make a prefork pool skip ended children when the pool registers its children with a new event loop.

    With Celery 5.7.0, a child may end at the moment when the broker connection breaks. After the reconnect, the pool
    still contains the child, but without the file descriptor that signals the child's end. kombu raises ``ValueError:
    file descriptor is None``, and the worker exits with "Unrecoverable error". With the patch, the pool replaces the
    child at the next check.

    Returns:
        True if the pool had the defect and is now patched.
    """
    CELERY.require(pool, "_track_child_process", "_sentinel_poll")
    track = pool._track_child_process  # type: ignore[attr-defined]
    if not _tracks_ended_children(pool):
        return False

    @wraps(track)
    def _track_child_process(self: Any, child: Any, hub: Any) -> None:
        if not _has_ended(child):
            track(self, child, hub)

    pool._track_child_process = _track_child_process  # type: ignore[attr-defined]
    return True


def _has_ended(child: Any) -> bool:
    return getattr(child, "_sentinel_poll", child) is None  # a new child does not have this attribute


def _tracks_ended_children(pool: Any) -> bool:
    descriptors: list[Any] = []
    hub = SimpleNamespace(add_reader=lambda fd, *_: descriptors.append(fd))
    pool._track_child_process(object.__new__(pool), SimpleNamespace(_sentinel_poll=None), hub)
    return bool(descriptors)


class RequestInternals:
    """Mixin for a subclass of ``celery.worker.request.Request`` that exposes and releases the request's private
    state."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        CELERY.require(base_in(cls, "celery"), *READ_OF_REQUEST, *RELEASED_OF_REQUEST)

    @property
    def is_announced_revoked(self: Any) -> bool:
        """True if Celery has announced that the request was revoked."""
        return bool(self._already_revoked)

    @property
    def is_announced_cancelled(self: Any) -> bool:
        """True if Celery has announced that the request was cancelled."""
        return bool(self._already_cancelled)

    @property
    def canvas_options(self: Any) -> dict[str, Any]:
        """Callbacks, errbacks, chain and chord of the message."""
        _, _, options = self._payload
        return options or {}

    @property
    def raw_message(self: Any) -> Any:
        """Message of the request, as received from the broker."""
        return self._message

    @property
    def task_context(self: Any) -> Any:
        """Context that Celery passes to the receivers of its signals as ``request``."""
        return self._context

    def announce_cancelled(self: Any) -> None:
        """Announce that the request was cancelled, without reporting a retry."""
        self._announce_cancelled(emit_retry=False)

    def announce_terminated(self: Any, reason: str) -> None:
        """Announce that the process of the request was terminated.

        Args:
            reason: Text that Celery's event and signal contain as `signum`, as in Celery's own announcement.
        """
        self._announce_revoked("terminated", True, reason, False)

    def release_message(self: Any, headers: dict[str, Any]) -> None:
        """Release the message and its body, about 5 KiB, and use the caller's `headers` instead of a copy.

        The request must be acknowledged, and its arguments must have been read.
        """
        self._message = self._body = None
        self._on_ack = self._on_reject = noop
        self._request_dict = headers
        self._delivery_info = headers["delivery_info"]
        self._type, self._root_id = headers["task"], headers.get("root_id")
        self._argsrepr, self._kwargsrepr = headers.get("argsrepr", ""), headers.get("kwargsrepr", "")
        self.name = headers.get("shadow") or self._type
        self.canvas_options.clear()


READ_OF_REQUEST = (
    "_already_revoked",
    "_already_cancelled",
    "_announce_cancelled",
    "_announce_revoked",
    "_context",
    "_eta_timer_entry",
    "_payload",
)
RELEASED_OF_REQUEST = (
    "_message",
    "_body",
    "_on_ack",
    "_on_reject",
    "_request_dict",
    "_delivery_info",
    "_type",
    "_root_id",
    "_argsrepr",
    "_kwargsrepr",
)


class PoolInfo:
    """Mixin for a pool that adds `further_info` to the pool's entries in ``celery inspect stats``."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        CELERY.require(base_in(cls, "celery"), "_get_info")

    def further_info(self) -> dict[str, Any]:
        """Return the entries to add to the pool's statistics."""
        return {}

    def _get_info(self) -> dict[str, Any]:
        base: dict[str, Any] = super()._get_info()  # type: ignore[misc]
        return {**base, **self.further_info()}


SOCKET_SCHEMES = ("redis+socket://", "socket://")
"""Schemes of Celery's URLs for a Redis server on a Unix socket."""


def disable_tls_on_sockets(app: Celery) -> None:
    """Disable the TLS options of `app` for a broker or a result backend on a Unix socket, where TLS does not exist.

    The embedded Redis replaces servers for which the app may configure TLS. With TLS options, a connection to a socket
    raises TypeError.
    """
    if all(str(url or "").startswith(SOCKET_SCHEMES) for url in (app.conf.broker_read_url, app.conf.broker_write_url)):
        app.conf.broker_use_ssl = False
    if str(app.conf.result_backend or "").startswith(SOCKET_SCHEMES):
        app.conf.redis_backend_use_ssl = None


URL_VARIABLES = (BROKER_READ_VARIABLE, BROKER_WRITE_VARIABLE, RESULTS_VARIABLE)
"""Environment variables that outrank the configuration that `memory_broker` sets."""


@contextmanager
def memory_broker(app: Celery) -> Iterator[None]:
    """Make `app` use kombu's in-memory transport and an in-memory result backend inside a ``with`` block.

    The environment variables that outrank the configuration of the app are removed from the process inside the block.
    """
    CELERY.require(app.amqp, "_producer_pool")
    urls = {"broker_read_url": "memory://", "broker_write_url": "memory://", "result_backend": "cache+memory://"}
    previous_values = {name: app.conf.get(name) for name in urls}
    variables = {name: os.environ.pop(name) for name in URL_VARIABLES if name in os.environ}
    _replace_pools(app)
    app.conf.update(urls)
    try:
        yield
    finally:
        os.environ.update(variables)
        app.conf.update(previous_values)
        _replace_pools(app)


def _replace_pools(app: Celery) -> None:
    """Make `app` reconnect to its broker when it publishes the next message, as Celery does after a fork."""
    app._pool = app.amqp._producer_pool = None
