"""Bearer tokens: JSON Web Tokens that an issuer has signed for this deployment.

Source: RFC 6750 (bearer), RFC 7519 (JWT), RFC 8725 (best current practices).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from a2a.types import HTTPAuthSecurityScheme, SecurityScheme
from joserfc import jws, jwt
from joserfc.errors import ExpiredTokenError, JoseError
from joserfc.jwk import Key

from .keys import KeySource
from .schemes import CredentialsRefused, Identity, PresentedCredentials, RefusalReason, is_owner

LEEWAY = 30
"""Maximum difference between the issuer's clock and the local clock, in seconds."""

MAX_LENGTH = 16 * 1024
"""Maximum number of characters in a token. A longer token is refused without being parsed."""


class _Registry(jws.JWSRegistry):
    max_header_length = 4096  # some issuers put a certificate chain in the header


class BearerTokens:
    """Authentication of owners by the bearer token in ``Authorization``.

    A token must be signed with one of `algorithms`, and its claims must contain `issuer` and one of `audiences`.
    Without `tenants_claim`, an owner may use every tenant.
    """

    name = "bearer"
    challenge = "Bearer"

    def __init__(
        self,
        keys: KeySource,
        *,
        algorithms: Sequence[str],
        issuer: str,
        audiences: Sequence[str],
        owner_claim: str = "sub",
        tenants_claim: str | None = None,
    ) -> None:
        self.keys = keys
        self._algorithms = tuple(algorithms)
        self._registry = _Registry(algorithms=self._algorithms, strict_check_header=False)
        self._claims = jwt.JWTClaimsRegistry(
            leeway=LEEWAY,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "values": list(audiences)},
            exp={"essential": True},
        )
        self._owner_claim = owner_claim
        self._tenants_claim = tenants_claim

    def security_scheme(self) -> SecurityScheme:
        """Return the HTTP security scheme ``Bearer``."""
        return SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer", bearer_format="JWT"))

    async def identify(self, presented: PresentedCredentials) -> Identity | None:
        """Return the identity in the bearer token, or None if the request has no bearer token."""
        scheme, _, token = (presented.single("authorization") or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        return self._identity(await self._verify_claims(token.strip()))

    async def _verify_claims(self, token: str) -> Mapping[str, Any]:
        """Return the claims of `token`. Errors are raised without a cause (`from None`), because the cause's text may
        contain the token."""
        kid, algorithm = self._header(token)
        key = await self.keys.find(kid, algorithm)
        if key is None:
            raise _bad(RefusalReason.UNKNOWN_KEY)
        claims = self._verify_signature(token, key, algorithm)
        try:
            self._claims.validate(claims)
        except ExpiredTokenError:
            raise _bad(RefusalReason.EXPIRED) from None
        except JoseError as e:
            raise _bad(
                RefusalReason.EXPIRED if getattr(e, "claim", "") in ("nbf", "iat") else RefusalReason.CLAIMS
            ) from None
        except Exception:  # an issuer may send claims of any form; a token whose claims cannot be read is refused
            raise _bad(RefusalReason.CLAIMS) from None
        return claims

    def _header(self, token: str) -> tuple[str | None, str]:
        """Return the key id, or None, and the algorithm of `token`. Refuse an algorithm that is not allowed."""
        if len(token) > MAX_LENGTH:
            raise _bad(RefusalReason.UNREADABLE)
        try:
            header = jws.extract_compact(token.encode(), registry=self._registry).headers()
        except Exception:  # the token is untrusted and may have any form
            raise _bad(RefusalReason.UNREADABLE) from None
        kid, algorithm = header.get("kid"), header.get("alg")
        if algorithm not in self._algorithms:
            raise _bad(RefusalReason.ALGORITHM)
        if kid is not None and not isinstance(kid, str):
            raise _bad(RefusalReason.UNREADABLE)
        return kid, algorithm

    def _verify_signature(self, token: str, key: Key, algorithm: str) -> dict[str, Any]:
        try:
            return jwt.decode(token, key, algorithms=[algorithm], registry=self._registry).claims
        except Exception:  # the token is untrusted and may have any form
            raise _bad(RefusalReason.SIGNATURE) from None

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        owner = claims.get(self._owner_claim)
        if not isinstance(owner, str) or not is_owner(owner):
            raise _bad(RefusalReason.OWNER)
        if self._tenants_claim is None:
            return Identity(owner)
        return Identity(owner, _tenants(claims.get(self._tenants_claim)))


def _tenants(claim: object) -> frozenset[str]:
    """Return the tenants in a claim, which is a list or a single tenant. "" stands for no tenant. Values that are not
    strings are ignored."""
    values = claim if isinstance(claim, list) else [claim]
    return frozenset(value for value in values if isinstance(value, str))


def _bad(reason: RefusalReason) -> CredentialsRefused:
    return CredentialsRefused(reason, bad_token=True)
