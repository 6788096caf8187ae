"""Agents' cards, kept as long as their servers allow.

Source: A2A specification 8.6 (caching); RFC 9111, RFC 9110 13 (conditional requests).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from a2a.client.card_resolver import parse_agent_card
from a2a.types import AgentCard
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH

from ..clock import SYSTEM_CLOCK, Clock
from .failures import AgentUnreachable, translated

LIFE = 300.0
"""Seconds that a card is good for whose server says nothing about it."""

MOST = 1000
"""Cards that are kept, those that were last asked for: an agent may be called at an address that somebody made up."""

_MAX_AGE = re.compile(r"(?:^|[,\s])max-age\s*=\s*\"?(\d{1,10})")
_NOT_KEPT = re.compile(r"(?:^|[,\s])no-(?:store|cache)\b")


@dataclass(frozen=True, slots=True)
class _Kept:
    card: AgentCard
    until: float
    validators: Mapping[str, str]


class CardCache:
    """Cards by their address; may be shared by agents, not between callers that are shown different cards.

    `life` is in seconds, for cards without Cache-Control. A card that has grown old is asked for with its ETag or its
    Last-Modified; while its server can't be reached it stays in use.
    """

    def __init__(self, life: float = LIFE, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._life = life
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    async def get(self, http: httpx.AsyncClient, url: str, headers: Mapping[str, str]) -> AgentCard:
        """The card of the agent at `url`; `headers` go with the request, if there is one.

        Raises:
            RemoteError: there is none to be had: AgentUnreachable, CallRefused or AnswerUnreadable.
        """
        address = f"{url.rstrip('/')}{AGENT_CARD_WELL_KNOWN_PATH}"
        kept = self._kept.get(address)
        if kept is not None and self._clock.monotonic() < kept.until:
            return kept.card
        try:
            with translated(address):
                return await self._ask(http, address, headers, kept)
        except AgentUnreachable:
            if kept is None:
                raise
            return kept.card

    def forget(self, url: str) -> None:
        """Asks again when the card of `url` is next wanted."""
        self._kept.pop(f"{url.rstrip('/')}{AGENT_CARD_WELL_KNOWN_PATH}", None)

    async def _ask(
        self, http: httpx.AsyncClient, address: str, headers: Mapping[str, str], kept: _Kept | None
    ) -> AgentCard:
        validators = {} if kept is None else kept.validators
        answer = await http.get(address, headers={**headers, **validators})
        if kept is not None and answer.status_code == httpx.codes.NOT_MODIFIED:
            card = kept.card
        else:
            answer.raise_for_status()
            card = parse_agent_card(answer.json())
        validators = {
            asked: answer.headers[given]
            for given, asked in (("etag", "If-None-Match"), ("last-modified", "If-Modified-Since"))
            if given in answer.headers
        } or validators
        self._kept.pop(address, None)
        self._kept[address] = _Kept(card, self._clock.monotonic() + self._life_of(answer), validators)
        while len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]
        return card

    def _life_of(self, answer: httpx.Response) -> float:
        said = answer.headers.get("cache-control", "").lower()
        if _NOT_KEPT.search(said):
            return 0.0
        age = _MAX_AGE.search(said)
        return self._life if age is None else float(age[1])
