"""Call of an operation: what a client asks for, and what the gateway knows about the request, such as its service
parameters (the protocol version and the extensions).

An extension is active if the client requests it and the card declares it. The response lists the active extensions in
the same service parameter as the request, because the specification defines no parameter for responses.

Source: A2A specification 3.2.6, 3.6 and 4.6; unknown extensions are ignored (4.6.3).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from a2a.server.context import ServerCallContext
from a2a.types import AgentCard
from a2a.utils.constants import PROTOCOL_VERSION_0_3, VERSION_HEADER
from a2a.utils.errors import VersionNotSupportedError
from pydantic import Field, SkipValidation
from starlette.requests import HTTPConnection

from ..lifecycle import EventId
from ..lifecycle.references import Scope
from ..operations.errors import MAX_ID_LENGTH, LimitExceededError, invalid
from .auth.refusal_log import RequestSource
from .gate import HeavyWork
from .protocol_errors import retry_seconds

if TYPE_CHECKING:
    from .handler import GatewayHandler
else:
    GatewayHandler: TypeAlias = Any


class Call(ServerCallContext):
    """Context of a call, which the SDK's adapters pass on unchanged.

    Attributes:
        handler: Handler of the agent that serves the call. At a shared address, the handler of requests without a
            tenant, until `choose_agent` has read the tenant.
        source: Function that returns the source of the request, for log lines.
        agents: Handlers of the agents at a shared address, by name, or None.
        base_url: Function that returns the URL of the gateway as the client knows it, or "" if it is unknown.
        path: Path of the agent, or "" for the root.
        protocol: Version of the protocol that the client speaks.
        body: JSON body of an operation that is not part of A2A, or None.
        path_parameters: Parameters of the path that are not fields of the request, by name.
        has_begun: True if the call has reached an operation. A request that fails later was well-formed.
        event_ids: Ids of the events that an adapter of the SDK streams, with which a client resumes the stream
            (``Last-Event-ID``), or None if they are not sent.
        is_last: True if the event that an adapter of the SDK streams ends the stream.
        retry_after: Seconds after which the client may repeat a call that exceeded a limit, or None.
    """

    handler: SkipValidation[GatewayHandler]
    source: SkipValidation[Callable[[], RequestSource]]
    agents: SkipValidation[Mapping[str, GatewayHandler] | None] = None
    base_url: SkipValidation[Callable[[], str]] = str
    path: str = ""
    protocol: str = "1.0"
    body: SkipValidation[Any] = None
    path_parameters: SkipValidation[dict[str, str]] = Field(default_factory=dict)
    has_begun: bool = False
    event_ids: SkipValidation[list[EventId | None] | None] = None
    is_last: bool = False
    retry_after: int | None = None

    @property
    def scope(self) -> Scope:
        """The caller's tenant and owner as a scope without an agent."""
        return Scope(tenant=self.tenant, owner=self.user.user_name)

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the request, or metadata of gRPC, with names in lower case."""
        headers: Mapping[str, str] = self.state["headers"]
        return headers

    def choose_agent(self) -> None:
        """At a shared address, choose the agent in the tenant, which has the form "agent" or "agent/tenant", and keep
        the rest of the tenant. A single agent serves every tenant.

        Source: A2A specification 4.4.6 (`AgentInterface.tenant`), 5.1 (the same result in every binding).

        Raises:
            InvalidParamsError: There are several agents, and the tenant does not begin with the name of one.
        """
        agents, self.agents = self.agents, None
        if agents is None:
            return
        agent, _, tenant = self.tenant.partition("/")
        if agent in agents:
            self.handler, self.tenant, self.path = agents[agent], tenant, f"/agents/{agent}"
        elif self.tenant and len(agents) > 1:
            raise invalid("tenant", f"Send AGENT/{tenant or agent}, with the name of an agent: {', '.join(agents)}.")

    def note_limit(self, error: Exception) -> None:
        """Note when the client may repeat the call, if `error` is a limit error."""
        if isinstance(error, LimitExceededError):
            self.retry_after = retry_seconds(error)

    def heavy_work(self) -> HeavyWork:
        """Return the function that executes heavy work of the caller."""
        return partial(self.handler.gate.work, self.scope)


_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.[0-9]{1,4})?", re.ASCII)


def requested_version(request: HTTPConnection) -> str:
    """Return the protocol version in the header or the query of `request`, or "" if there is none.

    Source: A2A specification 3.2.6 (names are case-insensitive).
    """
    if version := request.headers.get(VERSION_HEADER):
        return version
    parameters = {name.lower(): value for name, value in request.query_params.items()}
    return parameters.get(VERSION_HEADER.lower(), "")


def require_version(requested_version: str, served_version: str) -> None:
    """Raise VersionNotSupportedError unless a request for `requested_version` can be served with `served_version`.

    Only the major and minor numbers are compared. A request without a version is a request for 0.3.
    """
    if served_as(requested_version) == served_version:
        return
    problem = (
        f"A2A version {requested_version[:MAX_ID_LENGTH]!r} is not served here"
        if requested_version
        else "No A2A version means 0.3"
    )
    raise VersionNotSupportedError(
        f"{problem}: send A2A-Version: {served_version}", data={"version": requested_version[:MAX_ID_LENGTH]}
    )


def served_as(requested_version: str) -> str:
    """Return the major and minor number of `requested_version`, or "" if `requested_version` is not a version."""
    numbers = _VERSION.fullmatch(requested_version or PROTOCOL_VERSION_0_3)
    return f"{int(numbers[1])}.{int(numbers[2])}" if numbers else ""


def active_extensions(card: AgentCard, requested_uris: set[str]) -> str:
    """Return the requested extensions of `card` in the format of the header ``A2A-Extensions``, or "" if there are
    none."""
    return ",".join(sorted({extension.uri for extension in card.capabilities.extensions} & requested_uris))
