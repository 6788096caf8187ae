"""Configuration of logging, by the rules of Celery's workers in each process."""

from __future__ import annotations

import logging

from celery import Celery
from celery.utils.log import ColorFormatter

from .logs import JSON, TEXT_FORMAT, JsonFormatter, TextFormatter


def set_up(app: Celery, level: str, log_format: str) -> None:
    """Configure logging to standard error in `log_format`.

    A receiver of ``setup_logging`` configures logging instead. With ``worker_hijack_root_logger = False``, the handlers
    that the app has added to the root logger stay.
    """
    app.log.setup_logging_subsystem(level, format=TEXT_FORMAT, colorize=False)
    format_handlers_of_celery(logging.getLogger(), JsonFormatter() if log_format == JSON else TextFormatter())


def format_handlers_of_celery(logger: logging.Logger, formatter: logging.Formatter) -> None:
    """Set the formatter of each handler of `logger` that Celery has configured. Formatters of the app stay."""
    for handler in logger.handlers:
        if isinstance(handler.formatter, ColorFormatter):
            handler.setFormatter(formatter)
