"""Redaction of webhook secrets and client texts in the logs of other libraries."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pydantic import ValidationError

LOGS_SECRETS_AT_DEBUG = {
    "a2a.server.routes.jsonrpc_dispatcher": "the body of each request",
    "httpcore.http11": "the headers of each response, in which some receivers repeat the request headers",
    "hpack.hpack": "each header of requests and responses",
    "hpack.table": "each header of requests and responses",
}
"""Loggers that log secrets at DEBUG, with a description of the content."""

LOGS_INPUT = (
    "a2a.compat.v0_3.jsonrpc_adapter",
    "a2a.server.routes.jsonrpc_dispatcher",
    "a2a_celery.gateway.protocol_errors",
)
"""Loggers whose error records may contain the client's input."""

CLIENT_ERRORS = ("Failed to validate base JSON-RPC request", "Failed to parse request params")
"""First words of the messages that loggers in `LOGS_INPUT` log, with a traceback, as errors for an invalid request."""


def redact_logs() -> None:
    """Drop DEBUG records of `LOGS_SECRETS_AT_DEBUG`, and remove the input from validation errors of `LOGS_INPUT`.

    The redaction does not depend on the levels of the loggers. An invalid request is logged as one line at INFO, so
    that clients cannot fill a log with errors.
    """
    for name in LOGS_SECRETS_AT_DEBUG:
        logging.getLogger(name).addFilter(_is_above_debug)  # adding a filter twice has no effect
    for name in LOGS_INPUT:
        logging.getLogger(name).addFilter(_remove_input)


def _is_above_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


def _remove_input(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if error is not None and record.getMessage().startswith(CLIENT_ERRORS):
        record.msg, record.args = f"{record.getMessage()} ({type(error).__name__}: the input is invalid)", ()
        record.exc_info, record.levelno, record.levelname = None, logging.INFO, "INFO"
        return logging.getLogger(record.name).isEnabledFor(logging.INFO)
    if any(isinstance(link, ValidationError) for link in _chain(error)):
        record.msg, record.args = f"{record.getMessage()} ({type(error).__name__}: the input is invalid)", ()
        record.exc_info = None
    return True


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    error_ids: set[int] = set()
    while error is not None and id(error) not in error_ids:
        yield error
        error_ids.add(id(error))
        error = error.__cause__ or error.__context__
