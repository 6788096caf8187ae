"""What libraries would write into a log of what clients entrust to webhooks: that is left out."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pydantic import ValidationError

FRANK = {
    "a2a.server.routes.jsonrpc_dispatcher": "each request's body",
    "httpcore.http11": "each answer's headers, and some receivers say the request's again",
    "hpack.hpack": "each header, the request's too",
    "hpack.table": "the same",
}
"""Loggers, and what they say at DEBUG."""

QUOTING = ("a2a.compat.v0_3.jsonrpc_adapter", "a2a.server.routes.jsonrpc_dispatcher", "a2a_celery.gateway.faults")
"""Loggers that write down errors which say again what they were given."""


MISTAKES = ("Failed to validate base JSON-RPC request", "Failed to parse request params")
"""How these begin what they say, as an error and with a traceback, of requests that are their clients' fault."""


def keep_secrets_out_of_logs() -> None:
    """From now on, in this process, `FRANK` say nothing at DEBUG, and `QUOTING` nothing of such errors but their kind,
    whatever the level of logs is. A client's mistake is a line at INFO: whoever sends many fills no log with errors."""
    for name in FRANK:
        logging.getLogger(name).addFilter(_not_debug)  # one that is there already is not added again
    for name in QUOTING:
        logging.getLogger(name).addFilter(_without_quotes)


def _not_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


def _without_quotes(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if error is not None and record.getMessage().startswith(MISTAKES):
        record.msg, record.args = f"{record.getMessage()} ({type(error).__name__}: it can't be read)", ()
        record.exc_info, record.levelno, record.levelname = None, logging.INFO, "INFO"
        return logging.getLogger(record.name).isEnabledFor(logging.INFO)
    if any(isinstance(one, ValidationError) for one in _chain(error)):
        record.msg, record.args = f"{record.getMessage()} ({type(error).__name__}: it can't be read)", ()
        record.exc_info = None
    return True


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
