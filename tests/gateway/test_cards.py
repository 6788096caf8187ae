"""Public agent cards: each form is encoded once, and each request is counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from a2a.types import AgentCard

from a2a_celery.agents import Agent
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.gateway import cards
from a2a_celery.gateway.gate import CARDS_PER_SECOND
from a2a_celery.gateway.protocol_errors import REFUSAL_DELAY
from a2a_celery.settings import Settings
from a2a_celery.store import AsyncStore, Keys
from tests.support.clocks import ManualClock
from tests.support.processes.local_gateway import LocalGateway, local_gateway

CARD = "/agents/echo/.well-known/agent-card.json"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Base URLs for which the gateway has built a card."""
    base_urls: list[str] = []
    build = cards.public_card

    def record(agent: Agent, settings: Settings, path: str, base_url: str) -> AgentCard:
        base_urls.append(base_url)
        return build(agent, settings, path, base_url)

    monkeypatch.setattr(cards, "public_card", record)
    return base_urls


@pytest.fixture
async def gateway(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, built: list[str]
) -> AsyncIterator[LocalGateway]:
    async with local_gateway(store, redis_server.store_url, keys, allowed_hosts=("*",)) as gateway:
        built.clear()
        yield gateway


async def addresses(gateway: LocalGateway, host: str, version: str) -> set[str]:
    """Return the addresses of the HTTP interfaces in the card for a request to `host`."""
    response = await gateway.http.get(CARD, headers={"Host": host, "A2A-Version": version})
    assert response.headers["content-type"] == "application/json"
    card: dict[str, Any] = response.json()
    assert AgentCard(name=card["name"]).name == "echo"
    return {i["url"].rstrip("/") for i in card["supportedInterfaces"] if i["protocolBinding"] != "GRPC"}


async def test_each_form_of_a_card_is_built_once(gateway: LocalGateway, built: list[str]) -> None:
    hosts = [f"host{number}.example:8000" for number in range(CARDS_PER_SECOND // 2)]

    for version in ("1.0", "0.3"):
        for host in hosts:
            assert await addresses(gateway, host, version) == {f"http://{host}/agents/echo"}

    assert len(built) == 2


async def test_a_tag_belongs_to_one_form_and_one_address(gateway: LocalGateway) -> None:
    tags = [
        (await gateway.http.get(CARD, headers={"Host": host, "A2A-Version": version})).headers["etag"]
        for host in ("one.example", "two.example")
        for version in ("1.0", "0.3")
    ]
    conditions = {"Host": "one.example", "A2A-Version": "1.0", "If-None-Match": tags[0]}
    response = await gateway.http.get(CARD, headers=conditions)

    assert len(set(tags)) == 4
    assert (response.status_code, response.content) == (304, b"")


async def test_only_a_card_at_a_configured_address_may_be_in_shared_caches(
    gateway: LocalGateway, store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys
) -> None:
    response = await gateway.http.get(CARD)
    assert response.headers["cache-control"] == "private, max-age=60"
    async with local_gateway(store, redis_server.store_url, keys, public_url="https://a.example/x") as public:
        response = await public.http.get(CARD, headers={"Host": "a.example"})

    assert response.headers["cache-control"] == "public, max-age=60"
    assert "https://a.example/x/agents/echo" in json.dumps(response.json())


@pytest.mark.parametrize("path", [CARD, "/agents", "/openapi.json"])
async def test_public_documents_are_delayed_if_there_are_many(
    store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys, path: str
) -> None:
    clock = ManualClock()
    async with local_gateway(store, redis_server.store_url, keys, clock) as gateway:
        immediate_statuses = {(await gateway.http.get(CARD)).status_code for _ in range(CARDS_PER_SECOND)}
        delayed_read = asyncio.create_task(gateway.http.get(path))
        await clock.next_wait(REFUSAL_DELAY)
        assert not delayed_read.done()
        clock.advance(REFUSAL_DELAY)

        assert (immediate_statuses, (await delayed_read).status_code) == ({200}, 200)
        assert (await gateway.http.get(CARD)).status_code == 200, "a second later there are few again"


async def test_requests_for_cards_are_counted(gateway: LocalGateway) -> None:
    for _ in range(3):
        await gateway.http.get(CARD)

    metrics = (await gateway.http.get("/metrics")).text

    assert 'a2a_gateway_requests_total{agent="echo",operation="GetAgentCard",outcome="ok"} 3.0' in metrics
