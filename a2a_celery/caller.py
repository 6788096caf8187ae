"""Caller of a run: the part of a request that travels with the run from the gateway to the worker.

Credentials do not travel: no Authorization header, no cookie, and no header that is not listed here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from a2a.auth.user import User
from a2a.server.context import ServerCallContext

CARRIED_HEADERS = ("a2a-version", "a2a-extensions", "traceparent", "tracestate")
"""The request headers an agent may see in ``call_context.state["headers"]``."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request. `user` is "" and `authenticated` False where nobody checked."""

    user: str = ""
    authenticated: bool = False
    tenant: str = ""
    extensions: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, context: ServerCallContext) -> Caller:
        """The caller as the gateway's authentication and the request's headers say."""
        headers = {str(name).lower(): str(value) for name, value in context.state.get("headers", {}).items()}
        return cls(
            user=context.user.user_name,
            authenticated=context.user.is_authenticated,
            tenant=context.tenant,
            extensions=tuple(sorted(context.requested_extensions)),
            headers={name: headers[name] for name in CARRIED_HEADERS if name in headers},
        )

    def to_json(self) -> bytes:
        """The form that is stored with the run."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, stored: bytes) -> Caller:
        """Parse the output of `to_json`."""
        fields: dict[str, Any] = json.loads(stored)
        return cls(**{**fields, "extensions": tuple(fields["extensions"])})

    def call_context(self) -> ServerCallContext:
        """The call context an executor would have got in the gateway, less what must not leave it."""
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
