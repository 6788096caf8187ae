"""Text forms of Ed25519 keys for webhooks: ``whsk_…`` and ``whpk_…`` of Standard Webhooks, and JWK Sets.

Source: the Standard Webhooks specification, "Signature scheme"; RFC 7517, RFC 7638, RFC 8037.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable
from typing import Any

PRIVATE_KEY_PREFIX = "whsk_"
PUBLIC_KEY_PREFIX = "whpk_"

JWKS_PATH = "/.well-known/jwks.json"

MAX_KEYS = 10
"""Maximum number of public keys that a gateway publishes, and that a receiver reads from a JWK Set."""

KEY_BYTES = 32


def private_key_bytes(text: str) -> bytes:
    """Decode ``whsk_…`` to 32 bytes, or to 64 bytes that end with the public key.

    Raises:
        ValueError: The text is not a private key. The message does not repeat the text.
    """
    key = decode_base64(text.removeprefix(PRIVATE_KEY_PREFIX)) if text.startswith(PRIVATE_KEY_PREFIX) else b""
    if len(key) not in (KEY_BYTES, 2 * KEY_BYTES):
        raise ValueError(f"a private key for webhooks is {PRIVATE_KEY_PREFIX} and base64 of 32 or 64 bytes")
    return key


def public_key_bytes(text: str) -> bytes:
    """Decode ``whpk_…`` to 32 bytes.

    Raises:
        ValueError: The text is not a public key. The message does not repeat the text, which may be a private key.
    """
    if text.startswith(PRIVATE_KEY_PREFIX):
        raise ValueError(f"a private key ({PRIVATE_KEY_PREFIX}…) is among the public keys: replace the key")
    key = decode_base64(text.removeprefix(PUBLIC_KEY_PREFIX)) if text.startswith(PUBLIC_KEY_PREFIX) else b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a public key for webhooks is {PUBLIC_KEY_PREFIX} and base64 of 32 bytes")
    return key


def jwk_set(keys: Iterable[bytes]) -> dict[str, Any]:
    return {"keys": [_jwk(key) for key in keys]}


def keys_in(document: Any) -> tuple[bytes, ...]:
    """Return up to `MAX_KEYS` Ed25519 keys of a JWK Set. Keys of other types are ignored.

    Raises:
        ValueError: The document is not a JWK Set.
    """
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("not a JWK Set: it has no list of keys")
    keys = [decode_base64(entry["x"]) for entry in entries if _is_ed25519(entry)]
    return tuple(key for key in keys if len(key) == KEY_BYTES)[:MAX_KEYS]


def decode_base64(text: str) -> bytes:
    """Decode base64 or base64url, with or without padding. Return b"" if `text` is neither."""
    standard = text.translate(str.maketrans("-_", "+/")).rstrip("=")
    try:
        return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _jwk(key: bytes) -> dict[str, str]:
    required_fields = {"crv": "Ed25519", "kty": "OKP", "x": _base64url(key)}
    canonical = json.dumps(required_fields, separators=(",", ":"), sort_keys=True).encode()
    return {**required_fields, "kid": _base64url(hashlib.sha256(canonical).digest()), "use": "sig", "alg": "EdDSA"}


def _is_ed25519(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("x"), str):
        return False
    return entry.get("kty") == "OKP" and entry.get("crv") == "Ed25519" and entry.get("use", "sig") == "sig"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
