"""Keys that verify bearer tokens, from the settings or from the issuer's JWKS endpoint. Keys of an endpoint are
refreshed in the background.

Source: RFC 7517, section 5.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol
from warnings import catch_warnings, simplefilter

import httpx
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import ECKey, JWKRegistry, Key, OctKey, RSAKey

from ...clock import SYSTEM_CLOCK, Clock
from ...crypto.jwk_sets import fetch_failure, fetch_jwk_set
from ...errors import ConfigError
from ...telemetry.logs import about
from ...telemetry.names import Action
from .schemes import KeysUnavailable

KEY_TYPES = {
    **dict.fromkeys(("HS256", "HS384", "HS512"), "oct"),
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
}
"""Key type of each supported algorithm. The check of the type prevents the use of a public key as a shared secret."""

CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}

MIN_RSA_BITS = 2048
"""Minimum length of an RSA key, in bits. Source: RFC 7518, section 3.3."""

MAX_KEYS = 100


class KeySource(Protocol):
    """Source of the keys that verify tokens."""

    async def find(self, kid: str | None, algorithm: str) -> Key | None:
        """Return the key with the id `kid` for `algorithm`, or None if there is no such key.

        For a token without a key id (`kid` is None), return the only key for `algorithm`.

        Raises:
            KeysUnavailable: No keys are available.
        """

    async def start(self) -> None:
        """Start refreshing the keys."""

    async def stop(self) -> None:
        """Stop refreshing the keys."""


class KeySet:
    """Set of keys, found by key id and algorithm."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def named(self, kid: str | None, algorithm: str) -> Key | None:
        """Return the key with the id `kid` if it fits `algorithm`, or None. For a token without a key id, return the
        only fitting key."""
        fit = [key for key in self._keys if fits(key, algorithm)]
        if kid is None:
            return fit[0] if len(fit) == 1 else None
        return next((key for key in fit if key.get("kid") == kid), None)


class StaticKeys:
    """Keys from the settings. If `nameless`, the single key verifies every token, whatever key id the token has."""

    def __init__(self, keys: KeySet, *, nameless: bool = False) -> None:
        self._keys = keys
        self._nameless = nameless

    async def find(self, kid: str | None, algorithm: str) -> Key | None:
        """Return the key for `algorithm`; see `KeySource.find`. If `nameless`, `kid` is ignored."""
        return self._keys.named(None if self._nameless else kid, algorithm)

    async def start(self) -> None:
        """Do nothing: the keys never change."""

    async def stop(self) -> None:
        """Do nothing: the keys never change."""


def fits(key: Key, algorithm: str) -> bool:
    """Return True if the type, curve, declared use and declared algorithm of `key` allow signatures of `algorithm`."""
    if key.key_type != KEY_TYPES[algorithm] or key.get("use", "sig") != "sig" or key.get("alg", algorithm) != algorithm:
        return False
    return not isinstance(key, ECKey) or key.get("crv") == CURVES[algorithm]


def read_set(document: Any) -> KeySet:
    """Return the usable public keys of a JWK Set. Other keys and secrets are ignored.

    Raises:
        ValueError: The document is not a JWK Set, or has no usable public key.
    """
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("not a JWK Set: it has no list of keys")
    keys = [key for entry in entries[:MAX_KEYS] if (key := _public(entry)) is not None]
    if not keys:
        raise ValueError("the JWK Set has no usable public key")
    return KeySet(keys)


def _public(entry: Any) -> Key | None:
    try:
        key = JWKRegistry.import_key(entry)
    except (JoseError, ValueError, TypeError, KeyError, AttributeError):  # an unknown type, or not a key
        return None
    except SecurityWarning:  # a short key, if warnings are raised as errors
        return None
    return key if isinstance(key, ECKey) or (isinstance(key, RSAKey) and _is_long(key)) else None


def _is_long(key: RSAKey) -> bool:
    public = key.public_key
    return isinstance(public, RSAPublicKey) and public.key_size >= MIN_RSA_BITS


def read_key(text: str, algorithms: Sequence[str]) -> StaticKeys:
    """Return the keys of the setting `auth_jwt_key`: a JWK Set, a public key, or a secret shared with the issuer.

    Raises:
        ConfigError: The key is invalid or does not fit `algorithms`. The message contains no secret.
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
            f"a2a_auth_jwt_algorithms has {', '.join(unfit)}, but a2a_auth_jwt_key is {_kind(key)}: "
            "use algorithms for this type of key"
        )
    return StaticKeys(KeySet([key]), nameless=True)


def _kind(key: Key) -> str:
    if isinstance(key, OctKey):
        return "a shared secret"
    return f"a public key of type {key.key_type}" + (f" on {key.get('crv')}" if isinstance(key, ECKey) else "")


def _from_pem(text: str) -> Key:
    if "PRIVATE KEY-----" in text:
        raise ConfigError("a2a_auth_jwt_key is a private key: set the public key instead")
    for kind in (RSAKey, ECKey):
        try:
            with catch_warnings():
                simplefilter("ignore", SecurityWarning)  # about short keys, which are refused below
                key: Key = kind.import_key(text)
        except (JoseError, ValueError, TypeError):
            continue
        if isinstance(key, RSAKey) and not _is_long(key):
            raise ConfigError(f"a2a_auth_jwt_key: an RSA key must have at least {MIN_RSA_BITS} bits")
        return key
    raise ConfigError("a2a_auth_jwt_key is not a public RSA or EC key in PEM")


def _secret(text: str, algorithms: Sequence[str]) -> Key:
    """Return the key for a secret, which must be at least as long as the hash (RFC 7518, section 3.2)."""
    bits = max((int(name[2:]) for name in algorithms if KEY_TYPES[name] == "oct"), default=0)
    if not bits:
        raise ConfigError(
            f"a2a_auth_jwt_algorithms has {', '.join(algorithms)}, but a2a_auth_jwt_key is neither a public key in PEM "
            "nor a JWK Set: a shared secret needs HS256, HS384 or HS512"
        )
    if len(text.encode()) < bits // 8:
        raise ConfigError(f"a2a_auth_jwt_key: a secret for HS{bits} needs at least {bits // 8} characters")
    return OctKey.import_key(text)


logger = logging.getLogger(__name__)

REFRESH_EVERY = 300.0
"""Seconds between two refreshes. A withdrawn key is accepted until the next refresh."""

RETRY_AFTER = 5.0
"""Seconds between two fetches until the first fetch succeeds."""

ASK_AGAIN_AFTER = 30.0
"""Minimum number of seconds between two fetches for unknown keys. Without a limit, callers could invent key ids to
cause fetches."""


class FetchedKeys:
    """Keys fetched from `url`.

    The keys are fetched when the gateway starts, every `REFRESH_EVERY` seconds, and at most once every
    `ASK_AGAIN_AFTER` seconds for tokens with unknown keys. After a failed fetch, the previous keys stay valid.
    """

    def __init__(
        self, url: str, transport: httpx.AsyncBaseTransport | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._url = url
        self._clock = clock
        self._transport = transport
        self._keys: KeySet | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._fetched_at = float("-inf")
        self._refresh_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start refreshing the keys in the background."""
        self._refresh_task = asyncio.create_task(self._refresh(), name="jwks")

    async def stop(self) -> None:
        """Stop refreshing the keys."""
        for task in (self._refresh_task, self._fetching):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def find(self, kid: str | None, algorithm: str) -> Key | None:
        """Return the key with the id `kid` for `algorithm`, or None if the issuer has no such key.

        Raises:
            KeysUnavailable: No fetch has succeeded yet.
        """
        if self._is_late():
            await self._fetch()
        key = self._cached_key(kid, algorithm)
        if key is None and self._may_ask():
            await self._fetch()
            key = self._cached_key(kid, algorithm)
        if self._keys is None:
            raise KeysUnavailable
        return key

    def _cached_key(self, kid: str | None, algorithm: str) -> Key | None:
        return None if self._keys is None else self._keys.named(kid, algorithm)

    def _is_late(self) -> bool:
        """Return True if a request must refresh the keys, because no background task does. A mounted application
        receives no start event and therefore has no such task."""
        return self._refresh_task is None and self._clock.monotonic() - self._fetched_at > REFRESH_EVERY

    def _may_ask(self) -> bool:
        """Return True if a fetch is allowed now or already running."""
        if self._fetching is not None:
            return True
        return self._clock.monotonic() - self._fetched_at > (RETRY_AFTER if self._keys is None else ASK_AGAIN_AFTER)

    async def _refresh(self) -> None:
        while True:
            await self._fetch()
            await self._clock.sleep(RETRY_AFTER if self._keys is None else REFRESH_EVERY)

    async def _fetch(self) -> None:
        """Wait for the running fetch, or start a fetch and wait for it. Errors are logged, not raised. The fetch
        continues if its waiters are cancelled."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch_once(), name="jwks-fetch")
            self._fetching.add_done_callback(self._on_fetched)
        await asyncio.wait({self._fetching})

    def _on_fetched(self, _: asyncio.Task[None]) -> None:
        self._fetching = None
        self._fetched_at = self._clock.monotonic()

    async def _fetch_once(self) -> None:
        try:
            self._keys = read_set(await fetch_jwk_set(self._url, self._transport, self._clock))
        except Exception as e:  # after any error, the known keys stay valid and the next fetch tries again
            log_fields = about(Action.KEYS_NOT_FETCHED)
            effect = "the known keys stay valid" if self._keys is not None else "no bearer token can be verified"
            logger.warning(
                "the keys at %s were not fetched (%s); %s", self._url, fetch_failure(e), effect, extra=log_fields
            )
