"""Secrets at rest: what clients entrust to a deployment is encrypted before it is stored.

AES-256-GCM (NIST SP 800-38D), with a key derived by HKDF (RFC 5869) from the setting `secret_key`. What was sealed for
one purpose (a config of a task, the session of a context) opens for that one only.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..errors import A2ACeleryError, ConfigError

FORM = b"\x01"
"""What every sealed text begins with; then the fingerprint of its key, a nonce, and the text."""

FINGERPRINT_BYTES = 8
NONCE_BYTES = 12


class NotSealedHere(A2ACeleryError):
    """It was sealed with a secret that is not configured, for something else, or was changed since."""


class Sealer:
    """Seals with the first of `secret_keys`, and opens what was sealed with any of them.

    Raises:
        ValueError: there is none.
    """

    def __init__(self, secret_keys: Sequence[bytes]) -> None:
        if not secret_keys:
            raise ValueError("a sealer needs a secret key")
        self._keys = {fingerprint_of(secret): AESGCM(_derived(secret, b"seal", 32)) for secret in reversed(secret_keys)}
        self._first = fingerprint_of(secret_keys[0])

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the secret that this sealer uses; it does not reveal the secret."""
        return self._first

    @property
    def fingerprints(self) -> frozenset[str]:
        """Fingerprints of all secrets whose texts this sealer opens."""
        return frozenset(self._keys)

    def seal(self, text: bytes, *purpose: str) -> bytes:
        """`text`, for what these words name: a config's task and its id, say; another time it looks different."""
        nonce = os.urandom(NONCE_BYTES)
        head = FORM + bytes.fromhex(self._first)
        return head + nonce + self._keys[self._first].encrypt(nonce, text, head + _bound_to(purpose))

    def open(self, sealed: bytes, *purpose: str) -> bytes:
        """The text that was sealed for what these words name.

        Raises:
            NotSealedHere: it can't be opened; says why.
        """
        head, nonce_at = sealed[: 1 + FINGERPRINT_BYTES], 1 + FINGERPRINT_BYTES
        key = self._keys.get(head[1:].hex())
        if head[:1] != FORM or key is None:
            raise NotSealedHere(
                "it was sealed with a secret that is not in a2a_secret_key: put that back, behind the new one"
            )
        nonce, text = sealed[nonce_at : nonce_at + NONCE_BYTES], sealed[nonce_at + NONCE_BYTES :]
        try:
            return key.decrypt(nonce, text, head + _bound_to(purpose))
        except (InvalidTag, ValueError):
            raise NotSealedHere("it was sealed for something else, or changed since") from None


def sealer_of(secret_keys: Sequence[bytes]) -> Sealer | None:
    """Return the sealer of a deployment with these secrets, the first for new texts, or None without a secret."""
    return Sealer(secret_keys) if secret_keys else None


def require_secrets(sealer: Sealer | None, in_use: Collection[str]) -> None:
    """Returns if `sealer` opens whatever is sealed with the secrets of these fingerprints (`secrets_in_use`).

    Raises:
        ConfigError: it does not; says what to do.
    """
    missing = set(in_use) - (sealer.fingerprints if sealer is not None else frozenset())
    if not missing:
        return
    why = "is not set" if sealer is None else f"lacks the secret {', '.join(sorted(missing))}"
    raise ConfigError(
        f"a2a_secret_key {why}, with which webhooks or sessions in the store are sealed: set A2A_SECRET_KEY as where "
        "they were taken; to change it, put the new secret before the old one, and leave that until its tasks are gone"
    )


def fingerprint_of(secret: bytes) -> str:
    """A name for `secret` that does not tell it: 16 hexadecimal digits."""
    return _derived(secret, b"fingerprint", FINGERPRINT_BYTES).hex()


def _derived(secret: bytes, purpose: bytes, length: int) -> bytes:
    return HKDF(SHA256(), length, salt=None, info=b"a2a-celery " + purpose).derive(secret)


def _bound_to(purpose: Sequence[str]) -> bytes:
    *others, last = (word.encode() for word in purpose)
    return b"".join(len(word).to_bytes(4, "big") + word for word in others) + last
