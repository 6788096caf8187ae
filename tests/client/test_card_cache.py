"""Card cache. A card is cached as long as its server allows, and is then requested with its validators."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from a2a_celery.client import AgentUnreachable, CallRefused, CardCache, InvalidResponse
from a2a_celery.client.connection.card_cache import MAX_AGE
from tests.support.clocks import ManualClock
from tests.support.processes.serving import serve_app

CARD = "/.well-known/agent-card.json"


class Cards:
    """Server of an agent card that records its requests."""

    def __init__(self) -> None:
        self.answer: Response = JSONResponse({"name": "one"})
        self.headers: dict[str, str] = {}
        self.asked: list[Request] = []
        self.clock = ManualClock(0.0)

    async def __call__(self, request: Request) -> Response:
        self.asked.append(request)
        if "etag" in self.headers and request.headers.get("if-none-match") == self.headers["etag"]:
            return Response(status_code=304, headers=self.headers)
        self.answer.headers.update(self.headers)
        return self.answer


class CachingAgent:
    """Card cache that requests its cards from `Cards`."""

    def __init__(self, url: str, http: httpx.AsyncClient, cards: Cards) -> None:
        self.cards = cards
        self.cache = CardCache(clock=cards.clock)
        self.url, self._http = url, http

    async def __call__(self, url: str = "") -> str:
        """Return the name of a card that the cache returns."""
        card = await self.cache.get(self._http, url or self.url, {"X-Test": "yes"})
        return str(card.name)


@pytest.fixture
async def caching_agent() -> AsyncIterator[CachingAgent]:
    cards = Cards()

    async def endpoint(request: Request) -> Response:
        return await cards(request)

    async with (
        serve_app(Starlette(routes=[Route(path, endpoint) for path in (CARD, f"/tenants/{{name}}{CARD}")])) as url,
        httpx.AsyncClient() as http,
    ):
        yield CachingAgent(url, http, cards)


@pytest.mark.parametrize(
    ("cache_control", "life"),
    [
        ("", MAX_AGE),
        ("public, max-age=60", 60),
        ("MAX-AGE=5", 5),
        ("no-store", 0),
        ("no-cache, max-age=9", 0),
        ("x=1", MAX_AGE),
    ],
)
async def test_a_card_is_cached_as_long_as_its_server_allows(
    caching_agent: CachingAgent, cache_control: str, life: float
) -> None:
    caching_agent.cards.headers["cache-control"] = cache_control

    for current_time, times in ((0.0, 1), (life * 0.9, 1 if life else 2), (life, 2 if life else 3)):
        caching_agent.cards.clock.advance(current_time - caching_agent.cards.clock.time())
        await caching_agent()
        assert len(caching_agent.cards.asked) == times
    assert caching_agent.cards.asked[0].headers["x-test"] == "yes"


async def test_an_old_one_is_asked_for_with_its_etag(caching_agent: CachingAgent) -> None:
    caching_agent.cards.headers = {"etag": '"1"', "cache-control": "max-age=60"}
    await caching_agent()
    caching_agent.cards.clock.advance(60)
    assert await caching_agent() == "one"
    assert caching_agent.cards.asked[-1].headers["if-none-match"] == '"1"'
    caching_agent.cards.clock.advance(59)
    await caching_agent()
    assert len(caching_agent.cards.asked) == 2, "304 made it new again"

    caching_agent.cards.clock.advance(1)
    caching_agent.cards.headers["etag"] = '"2"'
    caching_agent.cards.answer = JSONResponse({"name": "two"})
    assert await caching_agent() == "two"


async def test_or_with_its_date(caching_agent: CachingAgent) -> None:
    caching_agent.cards.headers = {"last-modified": "Sat, 21 Nov 2026 00:00:00 GMT", "cache-control": "no-cache"}
    await caching_agent()
    await caching_agent()

    assert caching_agent.cards.asked[-1].headers["if-modified-since"] == "Sat, 21 Nov 2026 00:00:00 GMT"


async def test_an_old_one_is_better_than_none(caching_agent: CachingAgent) -> None:
    caching_agent.cards.headers["cache-control"] = "no-cache"
    await caching_agent()
    caching_agent.cards.answer = Response(status_code=503)
    assert await caching_agent() == "one"

    caching_agent.cache.forget(caching_agent.url)
    with pytest.raises(AgentUnreachable, match="responded 503"):
        await caching_agent()


@pytest.mark.parametrize("version", ["0.3.0", "1.0"])
async def test_a_null_in_a_card_is_a_missing_field(caching_agent: CachingAgent, version: str) -> None:
    """Servers in Go send null for an empty list."""
    names = ("skills", "capabilities", "securitySchemes", "additionalInterfaces", "supportedInterfaces")
    caching_agent.cards.answer = JSONResponse({"name": "go", "protocolVersion": version, **dict.fromkeys(names)})

    assert await caching_agent() == "go"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Response(status_code=404), CallRefused),
        (Response(status_code=302, headers={"location": "/"}), CallRefused),
        (Response("no json"), InvalidResponse),
        (JSONResponse(["no card"]), InvalidResponse),
        (JSONResponse({"name": 7}), InvalidResponse),
        (JSONResponse({"skills": None, "securitySchemes": []}), InvalidResponse),
    ],
    ids=["404", "302", "no JSON", "a list", "a number for a name", "nulls"],
)
async def test_an_invalid_card_is_an_error(caching_agent: CachingAgent, answer: Any, error: type[Exception]) -> None:
    caching_agent.cards.answer = answer
    with pytest.raises(error):
        await caching_agent()


async def test_agents_have_a_card_each(caching_agent: CachingAgent) -> None:
    assert await caching_agent(f"{caching_agent.url}/") == "one"
    with pytest.raises(CallRefused):
        await caching_agent(f"{caching_agent.url}/other")


async def test_the_number_of_cached_cards_is_limited(caching_agent: CachingAgent) -> None:
    caching_agent.cache = CardCache(max_cards=2, clock=caching_agent.cards.clock)
    for name in ("1", "2", "3", "2", "3", "1"):
        await caching_agent(f"{caching_agent.url}/tenants/{name}")

    assert [request.path_params["name"] for request in caching_agent.cards.asked] == ["1", "2", "3", "1"]
