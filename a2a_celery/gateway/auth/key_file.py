"""File of API keys: its entries, and a reader that reads the file again when the file changes."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ...clock import SYSTEM_CLOCK, Clock
from ...errors import ConfigError
from ...settings import ENV_PREFIX, FILE_SUFFIX
from ...settings.loading import secret_of_file
from ...telemetry.logs import about
from ...telemetry.names import Action
from .schemes import Identity, is_owner

SETTING = "a2a_auth_api_keys"
VARIABLE = f"{ENV_PREFIX}AUTH_API_KEYS{FILE_SUFFIX}"
"""Variable with the path of the file."""

ENTRY = re.compile(r"(?P<owner>[^:\s]+):sha256:(?P<hash>[0-9a-fA-F]{64})(?::(?P<tenants>[^:\s]+))?")
FORM = "owner:sha256:<64 hexadecimal digits>, optionally followed by :tenant,tenant"

CHECK_EVERY = 1.0
"""Minimum number of seconds between two checks whether the file has changed."""

logger = logging.getLogger(__name__)

Stamp = tuple[int, int, int, int]
"""Device, inode, modification time in nanoseconds, and size of a file."""

MISSING: Stamp = (0, 0, 0, 0)
"""Stamp of a file that does not exist."""


def identities_of(entries: Iterable[str]) -> dict[bytes, Identity]:
    """Return the owner of each key, by the key's SHA-256 hash.

    Raises:
        ConfigError: An entry does not have the form `FORM`, or two entries have the same hash. The message identifies
            an entry by its position, because the entry may be a key.
    """
    identities: dict[bytes, Identity] = {}
    for place, entry in enumerate(entries, 1):
        match = ENTRY.fullmatch(entry)
        if match is None or not is_owner(match["owner"]):
            raise ConfigError(f"{SETTING}: entry {place} is not {FORM}; a space separates entries")
        key_hash = bytes.fromhex(match["hash"])
        if key_hash in identities:
            raise ConfigError(f"{SETTING}: entry {place} has the hash of an earlier entry: give each its own key")
        tenants = None if match["tenants"] is None else frozenset(match["tenants"].split(","))
        identities[key_hash] = Identity(match["owner"], tenants)
    return identities


class KeyFile:
    """Reader of the file of API keys, which checks at most every `CHECK_EVERY` seconds whether the file has changed.

    Args:
        path: Path of the file.
        identities: Owners of the keys that were read when the gateway started.
    """

    def __init__(self, path: Path, identities: Mapping[bytes, Identity], clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = path
        self._identities = identities
        self._clock = clock
        self._checked_at = clock.monotonic()
        self._is_valid = True
        self._stamp: Stamp | None = None  # the first check reads the file, which may have changed since the start

    def identities(self) -> Mapping[bytes, Identity]:
        """Return the owners of the keys. If the file becomes invalid, return the previous owners, and log the error
        once."""
        now = self._clock.monotonic()
        if now - self._checked_at >= CHECK_EVERY:
            self._checked_at = now
            stamp = self._current_stamp()
            if stamp != self._stamp:
                self._stamp = stamp
                self._read()
        return self._identities

    def _read(self) -> None:
        try:
            identities = identities_of(secret_of_file(VARIABLE, str(self._path)).split())
        except ConfigError as e:
            self._is_valid = False
            logger.error("%s; the previous API keys stay valid", e, extra=about(Action.KEYS_NOT_READ))
            return
        if identities != self._identities or not self._is_valid:
            again = "" if self._is_valid else " again"
            self._identities, self._is_valid = identities, True
            logger.info("read %d API keys%s from %s", len(identities), again, self._path, extra=about(Action.KEYS_READ))

    def _current_stamp(self) -> Stamp:
        try:
            status = os.stat(self._path)
        except OSError:
            return MISSING
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
