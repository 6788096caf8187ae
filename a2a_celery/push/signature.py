"""Signatures as Standard Webhooks has them, so that any of its libraries verifies what comes from here.

Signed is ``id.timestamp.body``: ``v1`` by HMAC-SHA256 with a secret both sides know, ``v1a`` by Ed25519.
Source: the Standard Webhooks specification, "Verifying webhook authenticity".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from a2a.types import TaskPushNotificationConfig
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

SECRET_PREFIX = "whsec_"
PRIVATE_KEY_PREFIX = "whsk_"
PUBLIC_KEY_PREFIX = "whpk_"

DERIVED_BYTES = 32
_ID = re.compile(r"[A-Za-z0-9_-]+")
_SHORTEST = 16
"""Bytes; the specification wants 24, and the libraries take any."""


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs the posts of one config with each of its secrets: a receiver is content if one signature is right, so the
    next secret can be in use before the last is forgotten."""

    secrets: Sequence[bytes] = field(default=(), repr=False)
    private_keys: Sequence[Ed25519PrivateKey] = field(default=(), repr=False)

    @classmethod
    def of(
        cls,
        config: TaskPushNotificationConfig,
        secret_keys: Sequence[bytes] = (),
        private_keys: Sequence[Ed25519PrivateKey] = (),
    ) -> Signer:
        """The signer for `config`: its token is the secret, if it has one; else one is derived from each of the
        deployment's `secret_keys`, the newest first. Without any of them nothing is signed.

        Raises:
            ValueError: the token begins with ``whsec_`` and is no secret.
        """
        if config.token:
            return cls([secret_of(config.token)], private_keys)
        return cls([derived_secret(key, config.task_id, config.id) for key in secret_keys], private_keys)

    def headers(self, delivery_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """The three headers of a post; `timestamp` is the time of this post, in whole seconds since the epoch.

        Without a secret and a key there are only two.

        Raises:
            ValueError: `delivery_id` is more than letters, digits, dashes and underscores: with a dot, what is signed
                could be read as another delivery.
        """
        if not _ID.fullmatch(delivery_id):
            raise ValueError(f"no id for a webhook: {delivery_id!r}")
        signed = f"{delivery_id}.{timestamp}.".encode() + body
        signatures = [
            *("v1," + _base64(hmac.new(secret, signed, hashlib.sha256).digest()) for secret in self.secrets),
            *("v1a," + _base64(key.sign(signed)) for key in self.private_keys),
        ]
        headers = {"webhook-id": delivery_id, "webhook-timestamp": str(timestamp)}
        return headers | ({"webhook-signature": " ".join(signatures)} if signatures else {})


def secret_of(token: str) -> bytes:
    """The secret that a config's token is: what ``whsec_`` says in base64, or else the token's own characters.

    Raises:
        ValueError: it begins with ``whsec_``, and no base64 of at least 16 bytes follows.
    """
    if not is_secret(token):
        return token.encode()
    secret = _bytes(token.removeprefix(SECRET_PREFIX))
    if len(secret) < _SHORTEST:
        raise ValueError(f"a secret that begins with {SECRET_PREFIX} goes on with base64 of at least {_SHORTEST} bytes")
    return secret


def is_secret(token: str) -> bool:
    """Whether a token is there to sign with and nothing else, so that it is never sent."""
    return token.startswith(SECRET_PREFIX)


def derived_secret(secret_key: bytes, task_id: str, config_id: str) -> bytes:
    """The secret of the config `config_id` of a task, from the deployment's `secret_key`: always the same one.

    Raises:
        ValueError: `secret_key` is empty.
    """
    if not secret_key:
        raise ValueError("no secret is derived from an empty key")
    info = b"".join(len(part).to_bytes(4, "big") + part for part in (b"webhook", task_id.encode(), config_id.encode()))
    return HKDF(SHA256(), DERIVED_BYTES, salt=None, info=info).derive(secret_key)


def printed_secret(secret: bytes) -> str:
    """`secret` as receivers are told it: ``whsec_…``."""
    return SECRET_PREFIX + _base64(secret)


def private_key_of(text: str) -> Ed25519PrivateKey:
    """The Ed25519 key that ``whsk_…`` says: its 32 bytes, with or without those of the public key behind them.

    Raises:
        ValueError: it is none.
    """
    key = _bytes(text.removeprefix(PRIVATE_KEY_PREFIX)) if text.startswith(PRIVATE_KEY_PREFIX) else b""
    if len(key) not in (32, 64):
        raise ValueError(f"a private key for webhooks is {PRIVATE_KEY_PREFIX} and base64 of 32 or 64 bytes")
    return Ed25519PrivateKey.from_private_bytes(key[:32])


def printed_public_key(key: Ed25519PrivateKey) -> str:
    """What receivers verify `key`'s signatures with: ``whpk_…``."""
    return PUBLIC_KEY_PREFIX + _base64(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    """What `text` says in base64, with or without padding; nothing if it is none."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""
