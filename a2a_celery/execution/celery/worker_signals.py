"""Celery signals that load the worker side of an app.

A process that only registers agents never imports the worker side. A worker imports the worker side in its main process
before the pool forks, so that children share the memory and do not repeat the import.

A prefork child may be spawned instead of forked: if `worker_pool_start_method` is "spawn", and by default on macOS. A
spawned child is a new interpreter. Celery alone builds a new app there and imports the modules of task classes, so the
child would have neither agents nor a worker side. `reduce_app` makes the child import the app and load its worker side.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from billiard.reduction import ForkingPickler
from celery import Celery
from celery.app import app_or_default
from celery.signals import after_setup_logger, after_setup_task_logger, celeryd_init, worker_init
from celery.utils.log import get_multiprocessing_logger

from ...settings import Settings
from ...telemetry.logging_setup import format_handlers_of_celery
from ...telemetry.logs import JSON, JsonFormatter

if TYPE_CHECKING:
    from ..agent_worker import AgentWorker

logger = logging.getLogger(__name__)

_loaders: WeakKeyDictionary[Celery, list[Callable[[], AgentWorker]]] = WeakKeyDictionary()
"""Functions that load the worker side, by app, one for each `A2A` object. Each function is called only once."""


def connect(app: Celery, load: Callable[[], AgentWorker]) -> None:
    """Call `load` when a worker of `app` starts in this process."""
    _loaders.setdefault(app, []).append(load)
    celeryd_init.connect(worker_is_created, weak=False, dispatch_uid="a2a_celery.worker_is_created")
    worker_init.connect(worker_is_initialized, weak=False, dispatch_uid="a2a_celery.worker_is_initialized")
    ForkingPickler.register(type(app), reduce_app)


def worker_is_created(instance: Any = None, **_: Any) -> None:
    """Load the worker side of the worker `instance`, and guard its broker connection.

    A receiver that is connected while its signal is being sent is not called. This function therefore does the work of
    such receivers.
    """
    for worker in _load(instance.app):
        worker.guard_broker()


def worker_is_initialized(sender: Any = None, **_: Any) -> None:
    """Load the worker side if celeryd_init was not sent, as with the workers of `celery.contrib.testing`, and check
    whether the worker can start."""
    for worker in _load(sender.app):
        worker.check_start(sender)


def _load(app: Celery) -> list[AgentWorker]:
    """Load the worker side of each `A2A` object of `app`, unless already loaded in this process.

    Raises:
        SystemExit: The worker side cannot be loaded. Celery swallows every other exception of a receiver.
    """
    try:
        return [load() for load in _loaders.pop(app, [])]
    except Exception as e:
        logger.exception("the worker side of A2A cannot be loaded")
        raise SystemExit(f"Error: the worker side of A2A cannot be loaded: {e}") from e


def reduce_app(app: Celery) -> Any:
    """Pickle `app` for a spawned child as its import path and its changed configuration."""
    path = import_path(app)
    return app.__reduce__() if path is None else (_import_app, (*path, dict(app.conf.changes)))


def import_path(app: Celery) -> tuple[str, str] | None:
    """Return the module and the variable from which another process can import `app`, or None if there are none."""
    paths = [
        (name, variable)
        for name, module in tuple(sys.modules.items())
        if not name.startswith("celery.")  # Celery has variables for the current app
        for variable, value in tuple(getattr(module, "__dict__", {}).items())
        if value is app
    ]
    return min(paths, key=lambda path: path[1] not in ("app", "celery"), default=None)


def _import_app(module: str, variable: str, changes: Mapping[str, Any]) -> Celery:
    """Import an app in a spawned child, and load its worker side.

    Celery sends neither celeryd_init nor worker_init in a child. The modules of the app are imported first, because
    they may define agents and other `A2A` objects.
    """
    app: Celery = getattr(import_module(module), variable)
    app.conf.update(changes)
    app.loader.init_worker()
    _load(app)
    return app


_settings: WeakKeyDictionary[Celery, Callable[[], Settings]] = WeakKeyDictionary()
"""Functions that return the settings, by app. Celery's logging signals do not identify the app, so the current app is
used."""


def connect_logging(app: Celery, settings: Callable[[], Settings]) -> None:
    """Make the workers of `app` log in the format of its settings. One call per app and process is sufficient."""
    _settings[app] = settings
    after_setup_logger.connect(logging_is_set_up, weak=False, dispatch_uid="a2a_celery.logging_is_set_up")
    after_setup_task_logger.connect(logging_is_set_up, weak=False, dispatch_uid="a2a_celery.task_logging_is_set_up")


def logging_is_set_up(logger: logging.Logger, **_: Any) -> None:
    """Apply the setting `log_format` "json" to the handlers that Celery gave `logger` and the pool's logger."""
    settings = _settings.get(app_or_default())
    if settings is not None and settings().log_format == JSON:
        for configured in (logger, get_multiprocessing_logger()):
            format_handlers_of_celery(configured, JsonFormatter())
