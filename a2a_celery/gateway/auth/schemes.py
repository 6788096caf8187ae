"""Interface of authentication schemes, two implementations (API keys, mutual TLS terminated at a proxy), and caller
identities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Protocol

from a2a.auth.user import User
from a2a.types import APIKeySecurityScheme, MutualTlsSecurityScheme, SecurityScheme
from starlette.authentication import AuthenticationError, BaseUser

from ...caller import API_KEY_HEADER

MAX_OWNER_LENGTH = 256
"""Maximum number of characters in an owner's name, which is part of keys in the store."""


@dataclass(frozen=True, slots=True)
class Identity(BaseUser, User):
    """Authenticated caller. Starlette and the SDK accept the object as a user.

    Attributes:
        owner: Name of the caller. Callers of different schemes with the same name are the same owner.
        tenants: Allowed tenants ("" for requests without a tenant), or None for all tenants.
    """

    owner: str
    tenants: frozenset[str] | None = None

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self.owner

    @property
    def display_name(self) -> str:
        return self.owner

    @property
    def identity(self) -> str:
        return self.owner

    def may_use(self, tenant: str) -> bool:
        """Return True if the caller may use `tenant`. The tenant "" stands for requests without a tenant."""
        return self.tenants is None or tenant in self.tenants


def is_owner(name: object) -> bool:
    """Return True if `name` is a valid owner: not empty, at most `MAX_OWNER_LENGTH` characters, and printable in
    logs."""
    return isinstance(name, str) and 0 < len(name) <= MAX_OWNER_LENGTH and name.isprintable()


class RefusalReason(StrEnum):
    """Reason for refusing a request. The reason appears in the operator's log, and is never sent to the client."""

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
    """Error for an unknown caller.

    Attributes:
        why: Reason for the operator's log.
        bad_token: True if the request has a bearer token.

    Source: RFC 6750, section 3: a request without credentials gets no error code, and a bad token gets
        ``invalid_token``.
    """

    def __init__(self, why: RefusalReason, *, bad_token: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.bad_token = bad_token


class KeysUnavailable(AuthenticationError):
    """Error for tokens that cannot be verified, because the issuer's keys are unavailable. The client may repeat the
    request later."""


@dataclass(frozen=True, slots=True)
class PresentedCredentials:
    """Credentials of a request.

    Attributes:
        values: Function that returns all values of a header, or of gRPC metadata, by its lower-case name.
        peer: Address of the client side of the connection, or None if it is unknown.
    """

    values: Callable[[str], Sequence[str]]
    peer: str | None

    def single(self, name: str) -> str | None:
        """Return the value of the header `name`, or None if it is missing or empty.

        Raises:
            CredentialsRefused: The header has several values. A client may have added its own value to that of a proxy.
        """
        values = self.values(name.lower())
        if len(values) > 1:
            raise CredentialsRefused(RefusalReason.SEVERAL, bad_token=name.lower() == "authorization")
        return (values[0].strip() or None) if values else None


class Scheme(Protocol):
    """Interface of an authentication scheme."""

    name: str
    """Name of the scheme on the card."""

    challenge: str
    """Name of the scheme in ``WWW-Authenticate``."""

    def security_scheme(self) -> SecurityScheme:
        """Return the scheme as it appears on the card."""

    async def identify(self, presented: PresentedCredentials) -> Identity | None:
        """Return the identity of the caller, or None if the request has no credentials of this scheme.

        Raises:
            CredentialsRefused: The credentials are invalid.
            KeysUnavailable: The credentials cannot be verified now.
        """


class ApiKeys:
    """Authentication of owners by API key.

    Args:
        identities: Function that returns the owners of the keys by the keys' SHA-256 hashes.
    """

    name = "apiKey"
    challenge = "ApiKey"

    def __init__(self, identities: Callable[[], Mapping[bytes, Identity]]) -> None:
        self._identities = identities

    def security_scheme(self) -> SecurityScheme:
        """Return the scheme for an API key in a header."""
        return SecurityScheme(api_key_security_scheme=APIKeySecurityScheme(location="header", name=API_KEY_HEADER))

    async def identify(self, presented: PresentedCredentials) -> Identity | None:
        """Return the identity to which the key belongs, or None if the request has no key. The check of an unknown key
        takes as long as the check of a known key."""
        key = presented.single(API_KEY_HEADER)
        if key is None:
            return None
        key_hash = sha256(key.encode()).digest()
        identities = [identity for digest, identity in self._identities().items() if compare_digest(digest, key_hash)]
        if not identities:
            raise CredentialsRefused(RefusalReason.API_KEY)
        return identities[0]


OWN_SITE = ("same-origin", "none")
"""Values of ``Sec-Fetch-Site`` for requests from pages of this origin, or from the user directly."""


class ProxyIdentity:
    """Authentication by the identity in `header`, which only the proxies in `networks` may send.

    A request with the header from any other address is refused. Either a proxy is missing in `networks`, or a proxy
    forwards the headers of clients.

    A browser presents its user's certificate on behalf of the pages of every site, so a request that the browser marks
    as coming from a different site is refused. Source: Fetch Metadata Request Headers (W3C), ``Sec-Fetch-Site``.
    """

    name = "mutualTls"
    challenge = "ClientCertificate"

    def __init__(self, header: str, networks: Sequence[str]) -> None:
        self._header = header
        self._networks = tuple(ip_network(network) for network in networks)

    def security_scheme(self) -> SecurityScheme:
        """Return the scheme of mutual TLS."""
        return SecurityScheme(mtls_security_scheme=MutualTlsSecurityScheme())

    async def identify(self, presented: PresentedCredentials) -> Identity | None:
        """Return the identity of the certificate's subject, or None if the request has no header with the subject."""
        self.require_trusted_proxy(presented)
        subject = presented.single(self._header)
        if subject is None:
            return None
        if presented.values("sec-fetch-site") and presented.single("sec-fetch-site") not in OWN_SITE:
            raise CredentialsRefused(RefusalReason.OTHER_SITE)
        if not is_owner(subject):
            raise CredentialsRefused(RefusalReason.OWNER)
        return Identity(subject)

    def require_trusted_proxy(self, presented: PresentedCredentials) -> None:
        """Raise CredentialsRefused if the header with the subject is present and the peer is not a trusted proxy."""
        if presented.values(self._header.lower()) and not _is_in(presented.peer, self._networks):
            raise CredentialsRefused(RefusalReason.PROXY)


def _is_in(peer: str | None, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    try:
        address = ip_address(peer or "")
    except ValueError:  # a Unix socket has no address
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)
