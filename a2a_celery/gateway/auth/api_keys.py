"""API keys. The settings hold their hashes only.

A key is long and random, so one round of SHA-256 is as strong as a slow hash.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest

from a2a.types import APIKeySecurityScheme, SecurityScheme

from ...errors import ConfigError
from .identity import Identity, is_owner
from .schemes import CredentialsRefused, PresentedCredentials, RefusalReason

ENTRY = re.compile(r"(?P<owner>[^:\s]+):sha256:(?P<hash>[0-9a-fA-F]{64})(?::(?P<tenants>[^:\s]+))?")
FORM = "owner:sha256:<64 hexadecimal digits>, or with :tenant,tenant behind that"


class ApiKeys:
    """Authenticates owners by the API key in `header`.

    Raises:
        ConfigError: An entry does not have the form `FORM`, or two have the same hash. The text names an entry by its
            position, because the entry may be a key.
    """

    name = "apiKey"
    challenge = "ApiKey"

    def __init__(self, entries: Sequence[str], header: str) -> None:
        self._header = header
        self._known: dict[bytes, Identity] = {}
        for place, entry in enumerate(entries, 1):
            hashed, identity = _read(entry, place)
            if hashed in self._known:
                raise ConfigError(
                    f"a2a_auth_api_keys: entry {place} has the hash of one before it: give each its own key"
                )
            self._known[hashed] = identity

    def security_scheme(self) -> SecurityScheme:
        """Return the scheme of a header."""
        return SecurityScheme(api_key_security_scheme=APIKeySecurityScheme(location="header", name=self._header))

    async def identify(self, presented: PresentedCredentials) -> Identity | None:
        """Return the owner of the key, or None without a key. An unknown key takes as long as a known one."""
        given = presented.only(self._header)
        if given is None:
            return None
        hashed = sha256(given.encode()).digest()
        found = [identity for known, identity in self._known.items() if compare_digest(known, hashed)]
        if not found:
            raise CredentialsRefused(RefusalReason.API_KEY)
        return found[0]


def _read(entry: str, place: int) -> tuple[bytes, Identity]:
    match = ENTRY.fullmatch(entry)
    if match is None or not is_owner(match["owner"]):
        raise ConfigError(f"a2a_auth_api_keys: entry {place} is not {FORM}")
    tenants = None if match["tenants"] is None else frozenset(match["tenants"].split(","))
    return bytes.fromhex(match["hash"]), Identity(match["owner"], tenants)
