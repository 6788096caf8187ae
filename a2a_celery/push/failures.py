"""Why there was no answer, in words that are safe to show an operator: no header, body or URL is in them."""

from __future__ import annotations

import logging
import ssl

import httpcore

logger = logging.getLogger(__name__)


def had_hung_up(error: BaseException) -> bool:
    """Whether it is what one finds who writes to a connection that the other side has closed."""
    if isinstance(error, httpcore.RemoteProtocolError):
        return "disconnected" in str(error)
    return isinstance(error, httpcore.ReadError | httpcore.WriteError)


def why(error: Exception, timeout: float) -> str:
    """What kept a post from being answered; `timeout` is how many seconds it had."""
    cause = _cause(error)
    match error:
        case TimeoutError() | httpcore.ReadTimeout() | httpcore.WriteTimeout() | httpcore.PoolTimeout():
            return f"no answer within {timeout:g} s"
        case httpcore.ConnectTimeout():
            return "no connection within its time"
        case httpcore.ConnectError() | httpcore.NetworkError() | OSError():
            return _of_the_network(cause)
        case httpcore.RemoteProtocolError() if had_hung_up(error):
            return "the connection was closed without an answer"
        case httpcore.RemoteProtocolError():
            return "the answer is not HTTP"
        case _:
            logger.warning("a post failed in an unknown way", exc_info=error)
            return f"the post failed: {type(error).__name__}"


def _of_the_network(cause: BaseException) -> str:
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


def _cause(error: BaseException) -> BaseException:
    """What `error` was raised for, at the bottom of it. httpcore drops the cause, and keeps it as an argument."""
    while True:
        inner = error.__cause__ or next(iter(error.args), None)
        if not isinstance(inner, BaseException):
            return error
        error = inner
