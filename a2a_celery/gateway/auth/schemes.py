"""What a scheme of authentication is, what it is shown of a request, and why it may refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from a2a.types import SecurityScheme
from starlette.authentication import AuthenticationError

from .identity import Identity


class Why(StrEnum):
    """Why a request was refused: for the operator's log, never for the client."""

    MISSING = "no credentials"
    SEVERAL = "the same header twice"
    UNREADABLE = "not a token"
    ALGORITHM = "an algorithm that is not allowed"
    UNKNOWN_KEY = "signed with an unknown key"
    SIGNATURE = "a wrong signature"
    EXPIRED = "expired, or not valid yet"
    CLAIMS = "issued by or for somebody else, or a claim is missing"
    OWNER = "no usable owner"
    API_KEY = "an unknown API key"
    PROXY = "an identity header that no proxy of ours has set"
    OTHER_SITE = "another site's page made the browser send it"


class Refused(AuthenticationError):
    """The request is from nobody we know. `bad_token` says that it had a bearer token.

    Source: RFC 6750 3: a request without credentials is told no error, one with a bad token ``invalid_token``.
    """

    def __init__(self, why: Why, *, bad_token: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.bad_token = bad_token


class KeysUnavailable(AuthenticationError):
    """No token can be judged, as its issuer's keys can't be had; the same request may succeed later."""


@dataclass(frozen=True, slots=True)
class Presented:
    """What a request shows of who sends it.

    `values` gives all values of a header, or of gRPC metadata, by its lower-case name. `peer` is the address of whoever
    is connected; None if that is not known.
    """

    values: Callable[[str], Sequence[str]]
    peer: str | None

    def only(self, name: str) -> str | None:
        """The value of the header `name`; None if it is not there, or empty.

        Raises:
            Refused: it is there twice, so that one who comes first may have hidden what came behind.
        """
        values = self.values(name.lower())
        if len(values) > 1:
            raise Refused(Why.SEVERAL, bad_token=name.lower() == "authorization")
        return (values[0].strip() or None) if values else None


class Scheme(Protocol):
    """A way to say who one is."""

    name: str
    """What the card calls it."""

    challenge: str
    """The word for it in ``WWW-Authenticate``."""

    def described(self) -> SecurityScheme:
        """What the card says of it."""

    async def identify(self, presented: Presented) -> Identity | None:
        """Who it is; None if there are no credentials of this scheme.

        Raises:
            Refused: they are no good.
            KeysUnavailable: it can't be known now whether they are.
        """
