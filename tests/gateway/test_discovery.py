"""Catalog of agents and OpenAPI document: contents of the catalog, caching, and access."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from celery import Celery
from starlette.applications import Starlette
from starlette.routing import Mount

from a2a_celery import A2A
from tests.support.agents.basic import card
from tests.support.clients.credentials import api_key_entry

CATALOGS = ["/agents", "/.well-known/ai-catalog.json"]
PATHS = [*CATALOGS, "/openapi.json"]
KEYS = {"a2a_auth_api_keys": api_key_entry("ann", "one")}
CREDENTIALS = {"X-API-Key": "one"}


@asynccontextmanager
async def gateway(mount: str = "", host: str = "localhost:8000", **conf: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Client of a gateway with two agents, whose store is unavailable."""
    app = Celery("acme", set_as_current=False)
    app.conf.update({"a2a_store_url": "redis://127.0.0.1:1/0"} | conf)
    a2a = A2A(app)
    a2a.add_agent(card("Echo agent"), "nowhere:Echo", name="echo")
    a2a.add_agent(card("other"), "nowhere:Echo")
    asgi: Starlette = a2a.asgi()
    if mount:
        asgi = Starlette(routes=[Mount(mount, app=asgi)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url=f"http://{host}") as http:
        yield http


@pytest.mark.parametrize("path", CATALOGS)
async def test_the_catalog_lists_the_agents_and_their_cards(path: str) -> None:
    async with gateway() as http:
        response = await http.get(path)
        catalog = response.json()
        cards = [(await http.get(entry["url"])).json() for entry in catalog["entries"]]

    assert response.headers["content-type"] == "application/ai-catalog+json"
    assert catalog["specVersion"] == "0.9"
    assert catalog["entries"][0] == {
        "identifier": "urn:air:localhost:echo:a2a",
        "displayName": "Echo agent",
        "description": "The test agent Echo agent.",
        "version": cards[0]["version"],
        "type": "application/a2a-agent-card+json",
        "url": "http://localhost:8000/agents/echo/.well-known/agent-card.json",
    }
    assert [card["name"] for card in cards] == [entry["displayName"] for entry in catalog["entries"]]
    assert [card["name"] for card in cards] == ["Echo agent", "other"]


@pytest.mark.parametrize(
    ("mount", "host", "conf", "publisher", "base"),
    [
        ("/a2a", "localhost:8000", {}, "localhost", "http://localhost:8000/a2a"),
        ("", "[::1]:8000", {}, "%5B%3A%3A1%5D", "http://[::1]:8000"),
        ("", "localhost", {"a2a_public_url": "https://a.example.com/x/"}, "a.example.com", "https://a.example.com/x"),
    ],
)
async def test_the_addresses_are_those_of_the_client(
    mount: str, host: str, conf: dict[str, Any], publisher: str, base: str
) -> None:
    async with gateway(mount, host, **conf) as http:
        entry = (await http.get(f"{mount}/agents")).json()["entries"][0]
        document = (await http.get(f"{mount}/openapi.json")).json()

    assert entry["identifier"] == f"urn:air:{publisher}:echo:a2a"
    assert entry["url"] == f"{base}/agents/echo/.well-known/agent-card.json"
    assert [server["url"] for server in document["servers"]] == [f"{base}/agents/{{agent}}", base]


@pytest.mark.parametrize("path", PATHS)
async def test_a_gateway_with_authentication_names_its_agents_to_known_callers_only(path: str) -> None:
    async with gateway(a2a_public_url="https://a.example.com", **KEYS) as http:
        refusal = await http.get(path)
        response = await http.get(path, headers=CREDENTIALS)

    assert refusal.status_code == 401
    assert "echo" not in refusal.text
    assert response.status_code == 200
    assert response.headers["cache-control"] == "private, max-age=60"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("conf", "caching"),
    [({}, "private, max-age=60"), ({"a2a_public_url": "https://a.example.com"}, "public, max-age=60")],
)
async def test_a_client_keeps_its_copy(path: str, conf: dict[str, Any], caching: str) -> None:
    async with gateway(**conf) as http:
        first = await http.get(path)
        second = await http.get(path, headers={"If-None-Match": first.headers["etag"]})

    assert first.headers["cache-control"] == second.headers["cache-control"] == caching
    assert (second.status_code, second.content) == (304, b"")


@pytest.mark.parametrize("host", ["[oops", "a b", "evil.example/?"])
async def test_an_invalid_host_causes_no_error(host: str) -> None:
    async with gateway(**KEYS) as http:
        for path in PATHS:
            assert (await http.get(path, headers={"Host": host, **CREDENTIALS})).status_code == 200
