"""Log lines and the counter of requests that are refused because of their caller, before an operation begins."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from starlette.requests import HTTPConnection

from ...clock import SYSTEM_CLOCK, Clock
from ...telemetry.logs import LineLimit, about
from ...telemetry.names import Action
from ..metrics import Metrics
from ..protocol_errors import Denial, PermissionDeniedError
from .schemes import RefusalReason

logger = logging.getLogger(__name__)

PREFLIGHT = "preflight"
"""Reason of refused CORS preflight requests."""

REASONS = (*(reason.name.lower() for reason in RefusalReason), *Denial, PREFLIGHT)
"""Values of the metric's label."""

MAX_TEXT = 200
"""Maximum number of characters of an address, a path or a header in a log line."""

AGENT = re.compile(r"/agents/([^/]+)")
"""Beginning of the paths of an agent."""

UNESCAPED = "".join(map(chr, range(0x21, 0x7F)))
"""Characters that a log line shows as the client sent them."""


@dataclass(frozen=True, slots=True)
class RequestSource:
    """Client, path and scheme of a request, for a log line.

    Attributes:
        client: Address of the client, or None if it is unknown.
        path: Path as the client sent it, without the query, or the name of the gRPC method.
        scheme: "http", "https" or "grpc".
        method: HTTP method, or "" for gRPC.
    """

    client: str | None
    path: str
    scheme: str
    method: str = ""

    @classmethod
    def of_http(cls, connection: HTTPConnection) -> RequestSource:
        """Return the source of an HTTP request."""
        scope = connection.scope
        path = quote(scope.get("raw_path") or scope["path"].encode(), safe=UNESCAPED)
        client = connection.client.host if connection.client else None
        return cls(client, path, scope["scheme"], scope["method"])


class RefusalLog:
    """Log of refused requests, with a limited number of lines per second for each reason.

    Attributes:
        metrics: Metrics that count the refused requests, or None.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.metrics: Metrics | None = None
        self._limits: defaultdict[str, LineLimit] = defaultdict(partial(LineLimit, clock))

    def record(self, reason: str, text: str, source: RequestSource, agent: str | None = None, **details: str) -> None:
        """Count a refused request and log it, unless too many lines with the same reason were logged in this second.

        The last line that is admitted in a second, and the number of omitted lines, have the level WARNING.

        Args:
            reason: Value of the metric's label.
            text: Reason for the operator.
            source: Client and path of the request.
            agent: Agent that received the request, or None to read the name from the path.
            details: Further fields of the line, such as the owner. Empty fields are omitted.
        """
        if self.metrics is not None:
            self.metrics.count_refused_caller(reason)
        omitted = self._limits[reason].admit()
        if omitted is None:
            return
        if omitted:
            fields = about(Action.REQUEST_REFUSED, reason=reason, omitted=omitted)
            logger.warning("%d more requests were refused: %s", omitted, text, extra=fields)
        path, client = source.path[:MAX_TEXT], (source.client or "an unknown address")[:MAX_TEXT]
        named = AGENT.search(path)
        details = {name: value[:MAX_TEXT] for name, value in details.items() if value}
        fields = about(
            Action.REQUEST_REFUSED,
            reason=reason,
            client=client,
            method=source.method or None,
            path=path,
            scheme=source.scheme,
            agent=agent or (named and named[1]),
            **details,
        )
        request = f"{source.method} {path}".lstrip()
        request += f" from {client} over {source.scheme}"
        request += "".join(f", {name} {value!r}" for name, value in details.items())
        level = logging.WARNING if self._limits[reason].is_reached else logging.INFO
        logger.log(level, "a request was refused: %s (%s)", text, request, extra=fields)

    def record_denial(
        self, error: PermissionDeniedError, source: RequestSource, owner: str, agent: str | None = None
    ) -> None:
        """Record a request of `owner` ("" for an unauthenticated caller) that was refused with `error`."""
        self.record(error.reason, error.message, source, agent, owner=owner)
