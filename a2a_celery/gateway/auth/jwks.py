"""Signing keys of an issuer from its JWKS endpoint (RFC 7517 5), refreshed in the background and cached while it is
down."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import httpx
from joserfc.jwk import Key

from ...clock import SYSTEM_CLOCK, Clock
from ...crypto.jwk_sets import fetch_failure, fetch_jwk_set
from ...telemetry.logs import about
from ...telemetry.names import Action
from .keys import KeySet, read_set
from .schemes import KeysUnavailable

logger = logging.getLogger(__name__)

REFRESH_EVERY = 300.0
"""Seconds between two refreshes. A withdrawn key is accepted until the next one."""

RETRY_AFTER = 5.0
"""Seconds between two attempts while there are no keys at all."""

ASK_AGAIN_AFTER = 30.0
"""Minimum seconds between two fetches for unknown keys, because a caller can invent the id of a key."""


class FetchedKeys:
    """Keys at `url`.

    The keys are fetched when the gateway starts, every `REFRESH_EVERY` seconds, and at most every `ASK_AGAIN_AFTER`
    seconds for a token with an unknown key. After a failed fetch the previous keys stay valid.
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
        """Return the key of a token, or None if the issuer has no such key."""
        if self._is_late():
            await self._fetch()
        found = self._named(kid, algorithm)
        if found is None and self._may_ask():
            await self._fetch()
            found = self._named(kid, algorithm)
        if self._keys is None:
            raise KeysUnavailable
        return found

    def _named(self, kid: str | None, algorithm: str) -> Key | None:
        return None if self._keys is None else self._keys.named(kid, algorithm)

    def _is_late(self) -> bool:
        """Return True if a request must refresh the keys, because a mounted application receives no start event."""
        return self._refresh_task is None and self._clock.monotonic() - self._fetched_at > REFRESH_EVERY

    def _may_ask(self) -> bool:
        """Return True if a fetch is due or running."""
        if self._fetching is not None:
            return True
        return self._clock.monotonic() - self._fetched_at > (RETRY_AFTER if self._keys is None else ASK_AGAIN_AFTER)

    async def _refresh(self) -> None:
        while True:
            await self._fetch()
            await self._clock.sleep(RETRY_AFTER if self._keys is None else REFRESH_EVERY)

    async def _fetch(self) -> None:
        """Join the running fetch or start one. Never raises; the fetch continues if its waiters are cancelled."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch_once(), name="jwks-fetch")
            self._fetching.add_done_callback(self._done)
        await asyncio.wait({self._fetching})

    def _done(self, _: asyncio.Task[None]) -> None:
        self._fetching = None
        self._fetched_at = self._clock.monotonic()

    async def _fetch_once(self) -> None:
        try:
            self._keys = read_set(await fetch_jwk_set(self._url, self._transport, self._clock))
        except Exception as e:  # after any error, the known keys stay and the next fetch tries again
            log_fields = about(Action.KEYS_NOT_FETCHED)
            known = "the known keys stay" if self._keys is not None else "no bearer token can be verified"
            logger.warning(
                "the keys at %s were not fetched (%s); %s", self._url, fetch_failure(e), known, extra=log_fields
            )
