"""Caller of a run, stored with the run so that the worker receives it.

A stored caller contains no credentials: no Authorization header, no cookie, and no header outside `CARRIED_HEADERS`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from a2a.auth.user import User
from a2a.server.context import ServerCallContext

from .lifecycle.references import Scope

CARRIED_HEADERS = ("a2a-version", "a2a-extensions", "traceparent", "tracestate")
"""Request headers that an agent can read in ``call_context.state["headers"]``."""

API_KEY_HEADER = "X-API-Key"
"""Header, or gRPC metadata, with an API key for a gateway, or for an agent whose card specifies no header."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Caller of a request. Without authentication, `user` is "" and `authenticated` is False."""

    user: str = ""
    authenticated: bool = False
    tenant: str = ""
    extensions: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, context: ServerCallContext) -> Caller:
        """Return the caller of the request that `context` describes."""
        headers = {str(name).lower(): str(value) for name, value in context.state.get("headers", {}).items()}
        return cls(
            user=context.user.user_name,
            authenticated=context.user.is_authenticated,
            tenant=context.tenant,
            extensions=tuple(sorted(context.requested_extensions)),
            headers={name: headers[name] for name in CARRIED_HEADERS if name in headers},
        )

    def to_json(self) -> bytes:
        """Return the caller as JSON for the store."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Caller:
        """Parse the output of `to_json`."""
        fields: dict[str, Any] = json.loads(content)
        return cls(**{**fields, "extensions": tuple(fields["extensions"])})

    def scope(self, agent: str) -> Scope:
        """Return the scope of the caller's tasks of `agent`."""
        return Scope(agent, self.tenant, self.user)

    def call_context(self) -> ServerCallContext:
        """Return the call context that an executor would receive in the gateway, without credentials."""
        return ServerCallContext(
            user=_RecordedUser(self.user, self.authenticated),
            tenant=self.tenant,
            requested_extensions=set(self.extensions),
            state={"headers": dict(self.headers)},
        )


@dataclass(frozen=True, slots=True)
class _RecordedUser(User):
    name: str
    authenticated: bool

    @property
    def is_authenticated(self) -> bool:
        return self.authenticated

    @property
    def user_name(self) -> str:
        return self.name
