"""Encryption of sensitive data in the store, such as push-notification configs and sessions.

The encryption is AES-256-GCM (NIST SP 800-38D), with a key that HKDF (RFC 5869) derives from the setting `secret_key`.
Data that was sealed for one purpose, such as a config of a task, cannot be opened for another purpose.
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
"""First byte of sealed data. The fingerprint of the secret, a nonce and the ciphertext follow this byte."""

FINGERPRINT_BYTES = 8
NONCE_BYTES = 12


class NotSealedHere(A2ACeleryError):
    """Error for data that was sealed with an unknown secret or for a different purpose, or was modified."""


class Sealer:
    """Authenticated encryption. Data is sealed with the first secret in `secret_keys`, and can be opened if it was
    sealed with any of these secrets.

    Raises:
        ValueError: `secret_keys` is empty.
    """

    def __init__(self, secret_keys: Sequence[bytes]) -> None:
        if not secret_keys:
            raise ValueError("a sealer needs a secret key")
        self._keys = {
            fingerprint_of(secret): AESGCM(_derive_key(secret, b"seal", 32)) for secret in reversed(secret_keys)
        }
        self._first = fingerprint_of(secret_keys[0])

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the first secret, which does not reveal the secret."""
        return self._first

    @property
    def fingerprints(self) -> frozenset[str]:
        """Fingerprints of all secrets."""
        return frozenset(self._keys)

    def seal(self, text: bytes, *purpose: str) -> bytes:
        """Encrypt `text` for `purpose`, such as the task and the id of a config. Each call returns a different
        ciphertext."""
        nonce = os.urandom(NONCE_BYTES)
        head = FORM + bytes.fromhex(self._first)
        return head + nonce + self._keys[self._first].encrypt(nonce, text, head + _bound_to(purpose))

    def open(self, sealed: bytes, *purpose: str) -> bytes:
        """Decrypt data that was sealed for `purpose`.

        Raises:
            NotSealedHere: The data cannot be decrypted. The message states the reason.
        """
        head, nonce_at = sealed[: 1 + FINGERPRINT_BYTES], 1 + FINGERPRINT_BYTES
        key = self._keys.get(head[1:].hex())
        if head[:1] != FORM or key is None:
            raise NotSealedHere(
                "it was sealed with a secret that is not in a2a_secret_key: append that secret to the new one"
            )
        nonce, text = sealed[nonce_at : nonce_at + NONCE_BYTES], sealed[nonce_at + NONCE_BYTES :]
        try:
            return key.decrypt(nonce, text, head + _bound_to(purpose))
        except (InvalidTag, ValueError):
            raise NotSealedHere("it was sealed for another purpose, or was changed") from None


def sealer_of(secret_keys: Sequence[bytes]) -> Sealer | None:
    """Return a sealer for `secret_keys`, or None if there is no secret."""
    return Sealer(secret_keys) if secret_keys else None


def require_secrets(sealer: Sealer | None, in_use: Collection[str]) -> None:
    """Check that `sealer` has all secrets that are in use.

    Args:
        sealer: Sealer of this process, or None if no secret is set.
        in_use: Fingerprints that `secrets_in_use` has read from the store.

    Raises:
        ConfigError: A secret is missing. The message states the remedy.
    """
    missing = set(in_use) - (sealer.fingerprints if sealer is not None else frozenset())
    if not missing:
        return
    state = "is not set" if sealer is None else f"lacks the secret {', '.join(sorted(missing))}"
    raise ConfigError(
        f"a2a_secret_key {state}, but webhooks or sessions in the store are encrypted with it: set the "
        "A2A_SECRET_KEY of the process that stored them; to rotate it, put the new secret first, and remove the old "
        "one when its tasks are deleted"
    )


def fingerprint_of(secret: bytes) -> str:
    """Return 16 hexadecimal digits that identify `secret` without revealing it."""
    return _derive_key(secret, b"fingerprint", FINGERPRINT_BYTES).hex()


def _derive_key(secret: bytes, purpose: bytes, length: int) -> bytes:
    return HKDF(SHA256(), length, salt=None, info=b"a2a-celery " + purpose).derive(secret)


def _bound_to(purpose: Sequence[str]) -> bytes:
    *others, last = (word.encode() for word in purpose)
    return b"".join(len(word).to_bytes(4, "big") + word for word in others) + last
