"""Signatures of Standard Webhooks, which any library for Standard Webhooks verifies.

The signed text is ``id.timestamp.body``. ``v1`` is HMAC-SHA256 with a shared secret, ``v1a`` is Ed25519.

Source: the Standard Webhooks specification, "Verifying webhook authenticity".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from a2a.types import TaskPushNotificationConfig
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..crypto.webhook_keys import KEY_BYTES, PUBLIC_KEY_PREFIX, decoded, private_key_bytes

SECRET_PREFIX = "whsec_"

DERIVED_BYTES = 32
_ID = re.compile(r"[A-Za-z0-9_-]+")
_MIN_SECRET_BYTES = 16
"""The specification requires 24 bytes; its libraries accept any length."""


@dataclass(frozen=True, slots=True)
class Signer:
    """Signer of the posts of one config, with each of its secrets and keys.

    A receiver accepts a post with one valid signature, so a secret can be rotated without a refused post.
    """

    secrets: Sequence[bytes] = field(default=(), repr=False)
    private_keys: Sequence[Ed25519PrivateKey] = field(default=(), repr=False)

    @classmethod
    def of(
        cls,
        config: TaskPushNotificationConfig,
        secret_keys: Sequence[bytes] = (),
        private_keys: Sequence[Ed25519PrivateKey] = (),
    ) -> Signer:
        """Return the signer for `config`.

        The secret is the token of the config. Without a token, one secret is derived from each of the deployment's
        `secret_keys`, the newest first. Without any secret and key, posts are not signed.

        Raises:
            ValueError: The token begins with ``whsec_`` and is no secret.
        """
        if config.token:
            return cls([parse_secret(config.token)], private_keys)
        return cls([derive_secret(key, config.task_id, config.id) for key in secret_keys], private_keys)

    def headers(self, delivery_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """Return the headers of a post.

        Without any secret and key, the header ``webhook-signature`` is missing.

        Args:
            delivery_id: Id of the delivery.
            timestamp: Time of this post, in whole seconds since the epoch.
            body: Body of the post.

        Raises:
            ValueError: `delivery_id` has other characters than letters, digits, dashes and underscores. A dot would
                make the signed text ambiguous.
        """
        if not _ID.fullmatch(delivery_id):
            raise ValueError(f"invalid delivery id: {delivery_id!r}")
        signed = f"{delivery_id}.{timestamp}.".encode() + body
        signatures = [
            *("v1," + _base64(hmac.new(secret, signed, hashlib.sha256).digest()) for secret in self.secrets),
            *("v1a," + _base64(key.sign(signed)) for key in self.private_keys),
        ]
        headers = {"webhook-id": delivery_id, "webhook-timestamp": str(timestamp)}
        return headers | ({"webhook-signature": " ".join(signatures)} if signatures else {})


def parse_secret(token: str) -> bytes:
    """Return the secret of a config's token: the base64 after ``whsec_``, or the token itself without that prefix.

    Raises:
        ValueError: ``whsec_`` is not followed by base64 of at least 16 bytes.
    """
    if not is_secret(token):
        return token.encode()
    secret = decoded(token.removeprefix(SECRET_PREFIX))
    if len(secret) < _MIN_SECRET_BYTES:
        raise ValueError(f"{SECRET_PREFIX} must be followed by base64 of at least {_MIN_SECRET_BYTES} bytes")
    return secret


def is_secret(token: str) -> bool:
    """Return True if `token` is only a signing secret, which is never sent."""
    return token.startswith(SECRET_PREFIX)


def derive_secret(secret_key: bytes, task_id: str, config_id: str) -> bytes:
    """Derive the secret of a task's config from the deployment's `secret_key`. The result is deterministic.

    Raises:
        ValueError: `secret_key` is empty.
    """
    if not secret_key:
        raise ValueError("cannot derive a secret from an empty key")
    info = b"".join(len(part).to_bytes(4, "big") + part for part in (b"webhook", task_id.encode(), config_id.encode()))
    return HKDF(SHA256(), DERIVED_BYTES, salt=None, info=info).derive(secret_key)


def format_secret(secret: bytes) -> str:
    """Return ``whsec_…``, the form of `secret` for receivers."""
    return SECRET_PREFIX + _base64(secret)


def parse_private_key(text: str) -> Ed25519PrivateKey:
    """Return the Ed25519 key that ``whsk_…`` encodes.

    Raises:
        ValueError: `text` is no private key.
    """
    return Ed25519PrivateKey.from_private_bytes(private_key_bytes(text)[:KEY_BYTES])


def format_public_key(key: Ed25519PrivateKey) -> str:
    """Return ``whpk_…``, with which receivers verify the signatures of `key`."""
    return PUBLIC_KEY_PREFIX + _base64(key.public_key().public_bytes_raw())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
