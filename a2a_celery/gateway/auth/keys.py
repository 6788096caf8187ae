"""Keys that verify bearer tokens, and the algorithms that each type of key allows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Protocol
from warnings import catch_warnings, simplefilter

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import ECKey, JWKRegistry, Key, OctKey, RSAKey

from ...errors import ConfigError

KEY_TYPES = {
    **dict.fromkeys(("HS256", "HS384", "HS512"), "oct"),
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
}
"""Type of key for each supported algorithm: a public key must never serve as a shared secret."""

CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}

MIN_RSA_BITS = 2048
"""Source: RFC 7518 3.3."""

MAX_KEYS = 100


class KeySource(Protocol):
    """Source of the keys that verify tokens."""

    async def find(self, kid: str | None, algorithm: str) -> Key | None:
        """Return the key of a token, or None without one for `algorithm`.

        Raises:
            KeysUnavailable: No keys are available.
        """

    async def start(self) -> None:
        """Start refreshing the keys."""

    async def stop(self) -> None:
        """Stop refreshing the keys."""


class KeySet:
    """Keys with their ids."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def named(self, kid: str | None, algorithm: str) -> Key | None:
        """Return the key `kid` if it allows `algorithm`, or None. A token without a key id matches the only key that
        does."""
        fit = [key for key in self._keys if fits(key, algorithm)]
        if kid is None:
            return fit[0] if len(fit) == 1 else None
        return next((key for key in fit if key.get("kid") == kid), None)


class StaticKeys:
    """Keys from the settings. A single key without an id verifies every token, whatever key id the token names."""

    def __init__(self, keys: KeySet, *, nameless: bool = False) -> None:
        self._keys = keys
        self._nameless = nameless

    async def find(self, kid: str | None, algorithm: str) -> Key | None:
        """Return the key of a token."""
        return self._keys.named(None if self._nameless else kid, algorithm)

    async def start(self) -> None:
        """Do nothing: the keys never change."""

    async def stop(self) -> None:
        """Do nothing: the keys never change."""


def fits(key: Key, algorithm: str) -> bool:
    """Return True if `key` may verify signatures of `algorithm`, by type, curve, and declared use and algorithm."""
    if key.key_type != KEY_TYPES[algorithm] or key.get("use", "sig") != "sig" or key.get("alg", algorithm) != algorithm:
        return False
    return not isinstance(key, ECKey) or key.get("crv") == CURVES[algorithm]


def read_set(document: Any) -> KeySet:
    """Return the usable public keys of a JWK Set. Other keys and secrets are ignored.

    Raises:
        ValueError: The document is not a JWK Set, or has no such key.
    """
    given = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(given, list):
        raise ValueError("not a JWK Set: it has no list of keys")
    keys = [key for one in given[:MAX_KEYS] if (key := _public(one)) is not None]
    if not keys:
        raise ValueError("a JWK Set without a usable public key")
    return KeySet(keys)


def _public(given: Any) -> Key | None:
    try:
        key = JWKRegistry.import_key(given)
    except (JoseError, ValueError, TypeError, KeyError, AttributeError):  # an unknown type, or not a key
        return None
    except SecurityWarning:  # where warnings are errors: it is too short
        return None
    return key if isinstance(key, ECKey) or (isinstance(key, RSAKey) and _is_long(key)) else None


def _is_long(key: RSAKey) -> bool:
    public = key.public_key
    return isinstance(public, RSAPublicKey) and public.key_size >= MIN_RSA_BITS


def read_key(text: str, algorithms: Sequence[str]) -> StaticKeys:
    """Return the keys of the setting `auth_jwt_key`: a JWK Set, a public key, or a secret shared with the issuer.

    Raises:
        ConfigError: The setting is not usable, or not with these algorithms; the text contains no secret.
    """
    text = text.strip()
    if text.startswith("{"):
        try:
            keys = StaticKeys(read_set(json.loads(text)))
        except ValueError as e:
            raise ConfigError(f"a2a_auth_jwt_key: {e}") from None
        return keys
    key = _from_pem(text) if "-----BEGIN" in text else _secret(text, algorithms)
    unfit = [algorithm for algorithm in algorithms if not fits(key, algorithm)]
    if unfit:
        raise ConfigError(
            f"a2a_auth_jwt_algorithms has {', '.join(unfit)}, which does not go together with {_kind(key)}, "
            "as a2a_auth_jwt_key is"
        )
    return StaticKeys(KeySet([key]), nameless=True)


def _kind(key: Key) -> str:
    if isinstance(key, OctKey):
        return "a shared secret"
    return f"a public key of type {key.key_type}" + (f" on {key.get('crv')}" if isinstance(key, ECKey) else "")


def _from_pem(text: str) -> Key:
    if "PRIVATE KEY-----" in text:
        raise ConfigError("a2a_auth_jwt_key is a private key: only the public one belongs here")
    for kind in (RSAKey, ECKey):
        try:
            with catch_warnings():
                simplefilter("ignore", SecurityWarning)  # of short keys, which are refused below
                key: Key = kind.import_key(text)
        except (JoseError, ValueError, TypeError):
            continue
        if isinstance(key, RSAKey) and not _is_long(key):
            raise ConfigError(f"a2a_auth_jwt_key: an RSA key of less than {MIN_RSA_BITS} bits")
        return key
    raise ConfigError("a2a_auth_jwt_key is not a public RSA or EC key in PEM")


def _secret(text: str, algorithms: Sequence[str]) -> Key:
    """Return the secret, which must be at least as long as the hash (RFC 7518 3.2)."""
    bits = max((int(name[2:]) for name in algorithms if KEY_TYPES[name] == "oct"), default=0)
    if not bits:
        raise ConfigError(
            f"a2a_auth_jwt_algorithms has {', '.join(algorithms)}, and a2a_auth_jwt_key is neither a public key as PEM "
            "nor a JWK Set: a shared secret goes with HS256, HS384 or HS512"
        )
    if len(text.encode()) < bits // 8:
        raise ConfigError(f"a2a_auth_jwt_key: a secret for HS{bits} has {bits // 8} characters or more")
    return OctKey.import_key(text)
