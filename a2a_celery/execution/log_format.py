"""A worker's log lines in the format that ``log_format`` asks for. Celery sets logging up itself, and tells when."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery, current_app
from celery.signals import after_setup_logger, after_setup_task_logger
from celery.utils.log import get_multiprocessing_logger

from ..config import Settings
from ..telemetry.logs import JSON, JsonFormatter

_settings: WeakKeyDictionary[Celery, Callable[[], Settings]] = WeakKeyDictionary()
"""Of each app that has an A2A: the signal says nothing of whose worker it is, which is the current app's."""


def connect(app: Celery, settings: Callable[[], Settings]) -> None:
    """Makes `app`'s workers log as its settings say. Once per app and process is enough."""
    _settings[app] = settings
    after_setup_logger.connect(logging_is_set_up, weak=False, dispatch_uid="a2a_celery.logging_is_set_up")
    after_setup_task_logger.connect(logging_is_set_up, weak=False, dispatch_uid="a2a_celery.task_logging_is_set_up")


def logging_is_set_up(logger: logging.Logger, **_: Any) -> None:
    """Celery has given `logger` its handlers, and those of the pool, of which it does not tell."""
    settings = _settings.get(current_app._get_current_object())
    if settings is not None and settings().log_format == JSON:
        for handler in (*logger.handlers, *get_multiprocessing_logger().handlers):
            handler.setFormatter(JsonFormatter())
