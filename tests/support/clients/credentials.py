"""Credentials for the tests: keys and tokens of issuers, API keys with their hashes, and gateway settings."""

from __future__ import annotations

import time
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from joserfc import jws, jwt
from joserfc.jwk import Key, OctKey, RSAKey

ISSUER = "https://issuer.example.com"
AUDIENCE = "https://agents.example.com"
SHARED = OctKey.import_key("a-secret-that-issuer-and-gateway-share")


def rsa_key(kid: str | None = "first") -> RSAKey:
    """Return a new private key with the key id `kid`."""
    private = generate_private_key(65537, 2048)
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return RSAKey.import_key(pem, {} if kid is None else {"kid": kid})


def claims(owner: Any = "alice", **others: Any) -> dict[str, Any]:
    """Return valid claims of `owner`, updated with `others`. None as a value removes a claim."""
    current_time = int(time.time())
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": owner, "iat": current_time, "exp": current_time + 600}
    return {name: value for name, value in (good | others).items() if value is not None}


def token(
    key: Key, algorithm: str, owner: Any = "alice", *, header: dict[str, Any] | None = None, **others: Any
) -> str:
    """Return a token of `owner`, signed with `key`. `others` updates the claims as in `claims`."""
    kid = key.get("kid")
    head = {"alg": algorithm, **({"kid": kid} if kid else {}), **(header or {})}
    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    return jwt.encode(head, claims(owner, **others), key, registry=registry)


def shared_secret_token(owner: str, **others: Any) -> str:
    """Return a token signed with the shared secret."""
    return token(SHARED, "HS256", owner, **others)


def api_key_entry(owner: str, key: str, tenants: str = "") -> str:
    """Return an entry of the setting `auth_api_keys` for an owner, a key and, if given, tenants."""
    return f"{owner}:sha256:{sha256(key.encode()).hexdigest()}" + (f":{tenants}" if tenants else "")


KEY_OF_ANN = {"X-API-Key": "one"}
"""Credentials for a gateway with the variables `API_KEYS`."""

API_KEYS = {"A2A_AUTH_API_KEYS": api_key_entry("ann", "one")}


def bearer(token: str) -> dict[str, str]:
    """Return the Authorization header for a token."""
    return {"Authorization": f"Bearer {token}"}


WITH_TOKENS = {
    "A2A_AUTH_JWT_KEY": "a-secret-that-issuer-and-gateway-share",
    "A2A_AUTH_JWT_ALGORITHMS": "HS256",
    "A2A_AUTH_JWT_ISSUER": ISSUER,
    "A2A_AUTH_JWT_AUDIENCE": AUDIENCE,
    "A2A_AUTH_JWT_TENANTS_CLAIM": "tenants",
}
"""Environment of a gateway that accepts tokens signed with the shared secret."""
