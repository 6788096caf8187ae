"""What a client is told that is refused: the same whatever the reason, which is for the operator's log."""

from __future__ import annotations

import logging

from a2a.utils.errors import A2AError

from ...telemetry.logs import about
from ...telemetry.names import Action
from ..faults import ServiceUnavailableError, UnauthenticatedError
from .schemes import Refused

logger = logging.getLogger(__name__)


def refusal(error: Exception) -> A2AError:
    """The protocol's error for one of authentication's, which is logged without anything of the request."""
    if isinstance(error, Refused):
        logger.info("a request was refused: %s", error.why.value, extra=about(Action.REQUEST_REFUSED))
        return UnauthenticatedError()
    return ServiceUnavailableError()
