"""Reasons of failed posts, in words that are safe to show to an operator: without headers, bodies or URLs."""

from __future__ import annotations

import logging
import ssl

import httpcore

logger = logging.getLogger(__name__)


def is_disconnect(error: BaseException) -> bool:
    """Return True if `error` is what a write to a connection that the server has closed raises."""
    if isinstance(error, httpcore.RemoteProtocolError):
        return "disconnected" in str(error)
    return isinstance(error, httpcore.ReadError | httpcore.WriteError)


def describe_failure(error: Exception, timeout: float) -> str:
    """Return why a post with a timeout of `timeout` seconds got no response."""
    match error:
        case TimeoutError() | httpcore.ReadTimeout() | httpcore.WriteTimeout() | httpcore.PoolTimeout():
            return f"no response within {timeout:g} s"
        case httpcore.ConnectTimeout():
            return "the connection attempt timed out"
        case httpcore.ConnectError() | httpcore.NetworkError() | OSError():
            return _describe_network_error(_root_cause(error))
        case httpcore.RemoteProtocolError() if is_disconnect(error):
            return "the connection was closed without a response"
        case httpcore.RemoteProtocolError():
            return "the response is not HTTP"
        case _:
            logger.warning("a post failed with an unexpected error", exc_info=error)
            return f"the post failed: {type(error).__name__}"


def _describe_network_error(cause: BaseException) -> str:
    match cause:
        case ssl.SSLCertVerificationError():
            return f"TLS: {cause.verify_message}"
        case ssl.SSLError():
            return f"TLS: {(cause.reason or 'the handshake failed').replace('_', ' ').lower()}"
        case ConnectionRefusedError():
            return "the connection was refused"
        case OSError() if cause.strerror:
            return f"no connection: {cause.strerror}"
        case _:
            return f"no connection: {cause}" if isinstance(cause, httpcore.ConnectError) else "the connection broke"


def _root_cause(error: BaseException) -> BaseException:
    """Return the innermost cause of `error`. httpcore sets no cause, but has it as an argument."""
    while True:
        inner = error.__cause__ or next(iter(error.args), None)
        if not isinstance(inner, BaseException):
            return error
        error = inner
