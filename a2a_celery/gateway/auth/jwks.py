"""The keys of an issuer, from its JWKS endpoint (RFC 7517 5): fetched beside the requests, kept while it is down."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress

import httpx
from joserfc.jwk import Key

from ...clock import SYSTEM_CLOCK, Clock
from ...telemetry.logs import about
from ...telemetry.names import Action
from .keys import KeySet, read_set
from .schemes import KeysUnavailable

logger = logging.getLogger(__name__)

REFRESH_EVERY = 300.0
"""Seconds after which the keys are fetched again: so long a key that was withdrawn is still believed."""

RETRY_AFTER = 5.0
"""Seconds between tries while there are no keys at all."""

ASK_AGAIN_AFTER = 30.0
"""Seconds between two fetches for keys that are not known: anybody can make up the name of a key."""

TIMEOUT = 5.0
MAX_BYTES = 1024 * 1024


class FetchedKeys:
    """The keys at `url`.

    They are fetched when the gateway starts and every `REFRESH_EVERY` seconds; and for a token that names an unknown
    one, once in `ASK_AGAIN_AFTER`. A fetch that fails changes nothing: what is known stays known.
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
        self._looking_after: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Fetches them, beside what else there is to start, and goes on doing so."""
        self._looking_after = asyncio.create_task(self._look_after(), name="jwks")

    async def stop(self) -> None:
        """Ends that."""
        for task in (self._looking_after, self._fetching):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def find(self, kid: str | None, algorithm: str) -> Key | None:
        """The key that a token names; None if the issuer has none such."""
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
        """Whether it is this token's to ask: an application that is mounted in another is never told to start."""
        return self._looking_after is None and self._clock.monotonic() - self._fetched_at > REFRESH_EVERY

    def _may_ask(self) -> bool:
        """Whether it is time to ask, or that is being done already."""
        if self._fetching is not None:
            return True
        return self._clock.monotonic() - self._fetched_at > (RETRY_AFTER if self._keys is None else ASK_AGAIN_AFTER)

    async def _look_after(self) -> None:
        while True:
            await self._fetch()
            await self._clock.sleep(RETRY_AFTER if self._keys is None else REFRESH_EVERY)

    async def _fetch(self) -> None:
        """Waits for the fetch that is under way, or begins one; never raises, and goes on if nobody waits."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch_once(), name="jwks-fetch")
            self._fetching.add_done_callback(self._done)
        await asyncio.wait({self._fetching})

    def _done(self, _: asyncio.Task[None]) -> None:
        self._fetching = None
        self._fetched_at = self._clock.monotonic()

    async def _fetch_once(self) -> None:
        try:
            self._keys = read_set(json.loads(await self._read()))
        except Exception as e:  # whatever it is: what is known stays, and it is tried again
            said = about(Action.KEYS_NOT_FETCHED)
            known = "those known stay" if self._keys is not None else "no bearer token can be judged"
            logger.warning("the keys at %s were not fetched (%s); %s", self._url, _reason(e), known, extra=said)

    async def _read(self) -> bytes:
        """The document: not redirected, for then somebody else would say whose keys these are."""
        async with (
            self._clock.timeout(2 * TIMEOUT),
            httpx.AsyncClient(timeout=TIMEOUT, transport=self._transport, follow_redirects=False) as http,
            http.stream("GET", self._url, headers={"Accept": "application/json"}) as answer,
        ):
            if answer.status_code != 200:
                raise ValueError(f"status {answer.status_code}")
            body = b""
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise ValueError(f"more than {MAX_BYTES} bytes")
            return body


def _reason(error: Exception) -> str:
    return (
        "not JSON"
        if isinstance(error, json.JSONDecodeError | UnicodeDecodeError)
        else f"{type(error).__name__} {error}".strip()
    )
