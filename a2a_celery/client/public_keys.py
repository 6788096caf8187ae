"""Ed25519 public keys of a webhook sender, passed as arguments or fetched from its JWK Set.

Source: Standard Webhooks specification, "Signature scheme" (``v1a``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

import httpx
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ..clock import SYSTEM_CLOCK, Clock
from ..crypto.jwk_sets import fetch_failure, fetch_jwk_set, jwks_url_mistake, printable_url
from ..crypto.webhook_keys import decode_base64, keys_in, public_key_bytes
from ..errors import ConfigError
from ..telemetry.logs import about
from ..telemetry.names import Action

logger = logging.getLogger(__name__)

REFRESH_EVERY = 300.0
"""Seconds after which the keys are fetched again. A withdrawn key is accepted until that fetch succeeds."""

UNKNOWN_KEY_REFRESH_EVERY = 30.0
"""Minimum seconds between two fetches for signatures by unknown keys, because anyone can post such signatures. A failed
refresh is retried after the same time."""

RETRY_AFTER = 5.0
"""Seconds between two fetches until the first fetch succeeds."""

MAX_SIGNATURES = 4
"""Maximum number of signatures that are checked per post."""


class PublicKeys:
    """Ed25519 public keys of one webhook sender. A signature is valid if one of the keys matches.

    Fetched keys are cached, and stay in use if a later fetch fails.

    Args:
        keys: Keys that the sender's operator has published, ``whpk_…``.
        jwks_url: Address of the sender's JWK Set, ``https://…/.well-known/jwks.json``. ``http`` is allowed only for
            localhost.
        transport: Transport for fetches, or None to use HTTP.
        clock: Source of time, for tests.

    Raises:
        ConfigError: There are neither keys nor a URL, or a key or the URL is invalid.
    """

    def __init__(
        self,
        keys: Sequence[str] = (),
        *,
        jwks_url: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if isinstance(keys, str) or not (keys or jwks_url):
            raise ConfigError("pass public keys as a list of whpk_… keys, a jwks_url, or both")
        try:
            self._given = [Ed25519PublicKey.from_public_bytes(public_key_bytes(key)) for key in keys]
        except ValueError as e:
            raise ConfigError(str(e)) from None
        if jwks_url and (mistake := jwks_url_mistake(jwks_url)):
            raise ConfigError(f"jwks_url = {printable_url(jwks_url)}: {mistake}")
        self._url = jwks_url
        self._transport = transport
        self._clock = clock
        self._fetched: list[Ed25519PublicKey] | None = None
        self._stale_at = self._askable_at = float("-inf")
        self._fetching = asyncio.Lock()

    @property
    def is_unavailable(self) -> bool:
        """True if the keys at `jwks_url` have not been fetched yet."""
        return self._url is not None and self._fetched is None

    def verify(self, signed: bytes, signatures: Iterable[str]) -> bool:
        """Return True if one of the base64 `signatures` over `signed` was made with a known key."""
        candidates = [decode_base64(signature) for signature in list(signatures)[:MAX_SIGNATURES]]
        keys = (*self._given, *(self._fetched or ()))
        return any(_is_valid(key, signature, signed) for signature in candidates for key in keys)

    async def refresh(self, *, is_unknown: bool = False) -> bool:
        """Fetch the keys if they are stale. Concurrent callers share one fetch.

        Args:
            is_unknown: True if an unknown key made a signature. The keys are then fetched unless the last fetch was
                recent.

        Returns:
            True if the keys may have changed while the caller waited.
        """
        if self._url is None:
            return False
        requested_at = self._clock.monotonic()
        if not self._is_due(requested_at, is_unknown):
            return False
        async with self._fetching:
            if self._is_due(requested_at, is_unknown):
                await self._fetch(self._url)
            return self._fetched is not None

    def _is_due(self, requested_at: float, is_unknown: bool) -> bool:
        return requested_at >= (self._askable_at if is_unknown else self._stale_at)

    async def _fetch(self, url: str) -> None:
        try:
            raw = keys_in(await fetch_jwk_set(url, self._transport, self._clock))
            self._fetched = [Ed25519PublicKey.from_public_bytes(key) for key in raw]
            self._askable_at = self._clock.monotonic() + UNKNOWN_KEY_REFRESH_EVERY
            self._stale_at = self._clock.monotonic() + REFRESH_EVERY
        except Exception as e:
            delay = RETRY_AFTER if self._fetched is None else UNKNOWN_KEY_REFRESH_EVERY
            self._askable_at = self._stale_at = self._clock.monotonic() + delay
            effect = "no signature can be verified" if self._fetched is None else "known keys stay in use"
            extra = about(Action.KEYS_NOT_FETCHED)
            logger.warning("could not fetch the keys at %s (%s); %s", url, fetch_failure(e), effect, extra=extra)


def _is_valid(key: Ed25519PublicKey, signature: bytes, content: bytes) -> bool:
    try:
        key.verify(signature, content)
    except InvalidSignature:
        return False
    return True
