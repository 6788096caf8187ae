"""What libraries would write into a log, at DEBUG, of what clients entrust to webhooks: that is left out."""

from __future__ import annotations

import logging

FRANK = {
    "a2a.server.routes.jsonrpc_dispatcher": "each request's body",
    "httpcore.http11": "each answer's headers, and some receivers say the request's again",
    "httpcore.http2": "the same",
}
"""Loggers, and what they say at DEBUG."""


def keep_secrets_out_of_logs() -> None:
    """From now on, in this process, `FRANK` say nothing at DEBUG, whatever the level of logs is."""
    for name in FRANK:
        logging.getLogger(name).addFilter(_not_debug)  # one that is there already is not added again


def _not_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG
