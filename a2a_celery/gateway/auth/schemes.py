"""Interface of the authentication schemes: the credentials of a request, and the reasons to refuse them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from a2a.types import SecurityScheme
from starlette.authentication import AuthenticationError

from .identity import Identity


class RefusalReason(StrEnum):
    """Reason to refuse a request, for the operator's log and never for the client."""

    MISSING = "no credentials"
    SEVERAL = "the same header twice"
    UNREADABLE = "not a token"
    ALGORITHM = "an algorithm that is not allowed"
    UNKNOWN_KEY = "signed with an unknown key"
    SIGNATURE = "a wrong signature"
    EXPIRED = "expired, or not valid yet"
    CLAIMS = "another issuer or audience, or a missing claim"
    OWNER = "no usable owner"
    API_KEY = "an unknown API key"
    PROXY = "an identity header from an untrusted address"
    OTHER_SITE = "another site's page made the browser send it"


class CredentialsRefused(AuthenticationError):
    """The caller is unknown. `bad_token` marks a request with a bearer token.

    Source: RFC 6750 3: a request without credentials gets no error code, one with a bad token ``invalid_token``.
    """

    def __init__(self, why: RefusalReason, *, bad_token: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.bad_token = bad_token


class KeysUnavailable(AuthenticationError):
    """Tokens cannot be verified, because their issuer's keys are unavailable; the client may repeat the request
    later."""


@dataclass(frozen=True, slots=True)
class PresentedCredentials:
    """Credentials of a request.

    Attributes:
        values: Function that returns all values of a header, or of gRPC metadata, by its lower-case name.
        peer: Address of the connection's other end, or None if it is unknown.
    """

    values: Callable[[str], Sequence[str]]
    peer: str | None

    def only(self, name: str) -> str | None:
        """Return the value of the header `name`, or None if it is missing or empty.

        Raises:
            CredentialsRefused: The header has several values: a client may have added one to a proxy's.
        """
        values = self.values(name.lower())
        if len(values) > 1:
            raise CredentialsRefused(RefusalReason.SEVERAL, bad_token=name.lower() == "authorization")
        return (values[0].strip() or None) if values else None


class Scheme(Protocol):
    """Authentication scheme."""

    name: str
    """Name of the scheme on the card."""

    challenge: str
    """Name of the scheme in ``WWW-Authenticate``."""

    def security_scheme(self) -> SecurityScheme:
        """Return the scheme for the card."""

    async def identify(self, presented: PresentedCredentials) -> Identity | None:
        """Return the caller, or None without credentials of this scheme.

        Raises:
            CredentialsRefused: The credentials are invalid.
            KeysUnavailable: The credentials cannot be verified now.
        """
