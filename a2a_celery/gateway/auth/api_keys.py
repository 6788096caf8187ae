"""API keys: only their hashes are known here, and all of them are compared with what comes.

A key is random, and long enough that nobody tries them all: so one round of SHA-256 is as good as a slow hash.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest

from a2a.types import APIKeySecurityScheme, SecurityScheme

from ...errors import ConfigError
from .identity import Identity, is_owner
from .schemes import Presented, Refused, Why

ENTRY = re.compile(r"(?P<owner>[^:\s]+):sha256:(?P<hash>[0-9a-fA-F]{64})(?::(?P<tenants>[^:\s]+))?")
FORM = "owner:sha256:<64 hexadecimal digits>, or with :tenant,tenant behind that"


class ApiKeys:
    """Knows owners by the API key in `header`.

    Raises:
        ConfigError: an entry is no `FORM`, or two have the same hash. It is named by its place: it may be a key itself.
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

    def described(self) -> SecurityScheme:
        """A header."""
        return SecurityScheme(api_key_security_scheme=APIKeySecurityScheme(location="header", name=self._header))

    async def identify(self, presented: Presented) -> Identity | None:
        """Whose key it is; takes as long for one that is nobody's."""
        given = presented.only(self._header)
        if given is None:
            return None
        hashed = sha256(given.encode()).digest()
        found = [identity for known, identity in self._known.items() if compare_digest(known, hashed)]
        if not found:
            raise Refused(Why.API_KEY)
        return found[0]


def _read(entry: str, place: int) -> tuple[bytes, Identity]:
    match = ENTRY.fullmatch(entry)
    if match is None or not is_owner(match["owner"]):
        raise ConfigError(f"a2a_auth_api_keys: entry {place} is not {FORM}")
    tenants = None if match["tenants"] is None else frozenset(match["tenants"].split(","))
    return bytes.fromhex(match["hash"]), Identity(match["owner"], tenants)
