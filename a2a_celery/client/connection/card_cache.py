"""Cache of agent cards that follows HTTP caching rules.

Source: A2A specification 8.6 (caching); RFC 9111 (HTTP caching); RFC 9110, section 13 (conditional requests).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from a2a.client.card_resolver import parse_agent_card
from a2a.types import AgentCard
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH

from ...clock import SYSTEM_CLOCK, Clock
from ..errors import AgentUnreachable, translate_errors
from ..event_parser import without_nulls
from .transports import MAX_CARD_BYTES, ResponseLimit

MAX_AGE = 300.0
"""Seconds for which a card without Cache-Control is fresh."""

MAX_CARDS = 1000
"""Default maximum number of cached cards."""

_MAX_AGE_FORM = re.compile(r"(?:^|[,\s])max-age\s*=\s*\"?(\d{1,10})")
_NO_CACHE_FORM = re.compile(r"(?:^|[,\s])no-(?:store|cache)\b")


@dataclass(frozen=True, slots=True)
class _CachedCard:
    card: AgentCard
    until: float
    validators: Mapping[str, str]


class CardCache:
    """Cache of agent cards by address. Agents may share a cache unless their servers return different cards for
    different credentials.

    A stale card is revalidated with its ETag or Last-Modified. If the server is unreachable, the stale card is used.

    Args:
        max_age: Seconds for which a card without Cache-Control is fresh.
        max_cards: Maximum number of cached cards. The least recently fetched card is evicted. The limit is needed
            because callers may invent addresses.
        clock: Source of time, for tests.
    """

    def __init__(self, max_age: float = MAX_AGE, *, max_cards: int = MAX_CARDS, clock: Clock = SYSTEM_CLOCK) -> None:
        self._max_cards = max_cards
        self._max_age = max_age
        self._clock = clock
        self._cards: dict[str, _CachedCard] = {}

    async def get(self, http: httpx.AsyncClient, url: str, headers: Mapping[str, str]) -> AgentCard:
        """Return the card of the agent at `url`, from the cache or from its server.

        Args:
            http: HTTP client that sends the request.
            url: Base address of the agent.
            headers: Headers of the request.

        Raises:
            RemoteError: The card cannot be fetched or read: AgentUnreachable, CallRefused or InvalidResponse.
        """
        address = f"{url.rstrip('/')}{AGENT_CARD_WELL_KNOWN_PATH}"
        cached_card = self._cards.get(address)
        if cached_card is not None and self._clock.monotonic() < cached_card.until:
            return cached_card.card
        try:
            with translate_errors(address):
                return await self._ask(http, address, headers, cached_card)
        except AgentUnreachable:
            if cached_card is None:
                raise
            return cached_card.card

    def forget(self, url: str) -> None:
        """Remove the card of `url`, so that the next `get` fetches it."""
        self._cards.pop(f"{url.rstrip('/')}{AGENT_CARD_WELL_KNOWN_PATH}", None)

    async def _ask(
        self, http: httpx.AsyncClient, address: str, headers: Mapping[str, str], cached_card: _CachedCard | None
    ) -> AgentCard:
        validators = {} if cached_card is None else cached_card.validators
        async with http.stream("GET", address, headers={**headers, **validators}) as answer:
            await ResponseLimit(MAX_CARD_BYTES).read(answer)
        if cached_card is not None and answer.status_code == httpx.codes.NOT_MODIFIED:
            card = cached_card.card
        else:
            answer.raise_for_status()
            card = parse_agent_card(without_nulls(answer.json()))  # Go servers send null for an empty list
        validators = {
            request_header: answer.headers[header]
            for header, request_header in (("etag", "If-None-Match"), ("last-modified", "If-Modified-Since"))
            if header in answer.headers
        } or validators
        self._cards.pop(address, None)
        self._cards[address] = _CachedCard(card, self._clock.monotonic() + self._max_age_of(answer), validators)
        while len(self._cards) > self._max_cards:
            del self._cards[next(iter(self._cards))]
        return card

    def _max_age_of(self, answer: httpx.Response) -> float:
        cache_control = answer.headers.get("cache-control", "").lower()
        if _NO_CACHE_FORM.search(cache_control):
            return 0.0
        age = _MAX_AGE_FORM.search(cache_control)
        return self._max_age if age is None else float(age[1])
