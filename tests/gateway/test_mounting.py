"""Gateway that is mounted in another ASGI application, with its agents and the addresses in their cards."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from a2a.client.card_resolver import parse_agent_card
from a2a.compat.v0_3.types import AgentCard as LegacyCard
from a2a.types import (
    AgentCard,
    AgentCardSignature,
    AgentInterface,
    APIKeySecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from celery import Celery
from google.protobuf.json_format import MessageToDict, ParseDict
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from a2a_celery import A2A, ConfigError
from tests.support.agents.basic import card
from tests.support.clients.credentials import api_key_entry

WELL_KNOWN = "/.well-known/agent-card.json"
KEY = {"X-API-Key": "one", "A2A-Version": "1.0"}

DISCOVERED = """
from celery import current_app
from a2a_celery import A2A

@A2A.of(current_app._get_current_object()).agent("discovered", description="Is found.")
async def discovered(turn):
    return ""
"""


def gateway() -> Starlette:
    app = Celery("acme", set_as_current=False)
    app.conf.update(a2a_store_url="redis://127.0.0.1:1/0", a2a_auth_api_keys=api_key_entry("ann", "one"))
    a2a = A2A(app)
    extended_card = AgentCard()
    public = card("echo")
    public.capabilities.extended_agent_card = True
    extended_card.CopyFrom(public)
    a2a.add_agent(public, "nowhere:Echo", extended_card=extended_card)
    return a2a.asgi()


def mounted_app() -> ASGIApp:
    return Starlette(routes=[Mount("/a2a", app=gateway())])


def twice_mounted() -> ASGIApp:
    return Starlette(routes=[Mount("/api", app=Starlette(routes=[Mount("/a2a", app=gateway())]))])


def client_for(asgi: ASGIApp, root_path: str = "") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(asgi, root_path=root_path)
    return httpx.AsyncClient(transport=transport, base_url="http://test", headers=KEY)


@pytest.mark.parametrize(
    ("asgi", "root_path", "path"),
    [
        (mounted_app, "", "/a2a"),
        (twice_mounted, "", "/api/a2a"),
        (mounted_app, "/behind", "/behind/a2a"),  # for servers whose paths include the root path
        (gateway, "/behind", "/behind"),
        (gateway, "", ""),
    ],
)
@pytest.mark.parametrize("agent", ["", "/agents/echo"])
async def test_cards_lead_to_where_the_gateway_is_mounted(
    asgi: Callable[[], ASGIApp], root_path: str, path: str, agent: str
) -> None:
    async with client_for(asgi(), root_path) as client:
        public = await client.get(f"{path}{agent}{WELL_KNOWN}")
        extended_card = await client.get(f"{path}{agent}/extendedAgentCard")

    for answer in (public, extended_card):
        assert answer.status_code == 200, answer.text
        urls = {i["url"] for i in answer.json()["supportedInterfaces"]}
        assert {url.removesuffix("/") for url in urls} == {f"http://test{path}{agent}"}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/agents/eko/tasks", "Nothing is served at GET /a2a/agents/eko/tasks: there is no agent 'eko'. Agents: echo"),
        ("/ui/", "Nothing is served at GET /a2a/ui/: the operator's page is off. Set A2A_UI=on"),
        ("/agents/echo/nothing", "Nothing is served at GET /a2a/agents/echo/nothing"),
    ],
)
async def test_an_unknown_address_is_explained(path: str, text: str) -> None:
    async with client_for(mounted_app()) as client:
        answer = await client.get(f"/a2a{path}")

    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == text


async def test_the_place_of_a_mount_is_not_taken_for_an_agent() -> None:
    async with client_for(Starlette(routes=[Mount("/agents/api", app=gateway())])) as client:
        answer = await client.get("/agents/api/nothing")
        page = await client.get("/agents/api/agents/echo/ui")

    assert answer.json()["error"]["message"] == "Nothing is served at GET /agents/api/nothing"
    assert page.json()["error"]["message"] == "Nothing is served at GET /agents/api/agents/echo/ui"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a package whose module `tasks` has an agent."""
    name = f"acme_{uuid4().hex[:8]}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / name / "tasks.py").write_text(DISCOVERED)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_agents_of_discovered_modules_are_served(package: str) -> None:
    app = Celery("acme")
    app.conf.a2a_store_url = "redis://127.0.0.1:1/0"
    a2a = A2A(app)
    app.autodiscover_tasks([package])

    a2a.asgi()

    assert list(a2a.agents) == ["discovered"]
    assert f"{package}.tasks" in sys.modules


def test_modules_are_imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery's Django fixup checks all models at each import."""
    app = Celery("acme", set_as_current=False)
    app.conf.a2a_store_url = "redis://127.0.0.1:1/0"
    a2a, imports = A2A(app), []
    a2a.add_agent(card("echo"), "nowhere:Echo")
    monkeypatch.setattr(app.loader, "import_default_modules", lambda: imports.append(1))

    a2a.asgi()
    a2a.watcher()

    assert imports == [1]


def test_a_module_that_cannot_be_imported_is_no_gateway_without_its_agents() -> None:
    app = Celery("acme", set_as_current=False, include=["tests.support.no_such_module"])
    app.conf.a2a_store_url = "redis://127.0.0.1:1/0"
    a2a = A2A(app)
    a2a.add_agent(card("echo"), "nowhere:Echo")

    for _ in range(2):
        with pytest.raises(ImportError, match="no_such_module"):
            a2a.asgi()


def secured_gateway(interface_version: str | None = None, **conf: Any) -> Starlette:
    """Return a gateway with authentication, and an agent whose card may declare an interface."""
    app = Celery("acme", set_as_current=False)
    app.conf.update(a2a_store_url="redis://127.0.0.1:1/0", a2a_auth_api_keys=api_key_entry("ann", "one"), **conf)
    a2a, own_card = A2A(app), card("echo")
    if interface_version is not None:
        own_card.supported_interfaces.append(
            AgentInterface(
                url="https://agents.example.com/", protocol_binding="JSONRPC", protocol_version=interface_version
            )
        )
    a2a.add_agent(own_card, "nowhere:Echo")
    return a2a.asgi()


@pytest.mark.parametrize("version", ["1.0", "0.3", None])
async def test_a_card_has_members_of_03_where_its_interfaces_serve_03(version: str | None) -> None:
    async with client_for(secured_gateway(version)) as http:
        agent_card = (await http.get(WELL_KNOWN, headers={"A2A-Version": "0.3"})).json()

    of_03 = {"url", "preferredTransport", "protocolVersion", "security"}
    assert of_03 & agent_card.keys() == (set() if version == "1.0" else of_03)


@pytest.mark.parametrize("query", ["", "?A2A-Version=1.0"])
@pytest.mark.parametrize("agent", ["", "/agents/echo"])
async def test_a_card_for_10_has_members_of_10_only(query: str, agent: str) -> None:
    async with client_for(secured_gateway()) as http:
        if query:
            del http.headers["A2A-Version"]
        response = await http.get(f"{agent}{WELL_KNOWN}{query}")

    agent_card = ParseDict(response.json(), AgentCard())  # refuses an unknown member, also in a security scheme
    assert MessageToDict(agent_card) == response.json()
    assert {i.protocol_version for i in agent_card.supported_interfaces} == {"1.0", "0.3"}
    assert response.headers["vary"] == "A2A-Version"


@pytest.mark.parametrize("version", ["0.3", "0.3.0", ""])
async def test_a_card_for_03_is_read_by_clients_of_both_versions(version: str) -> None:
    """Clients of 0.3, and the client of a2a-sdk 1.3, fetch the card without a version."""
    async with client_for(secured_gateway()) as http:
        card_of_10 = (await http.get(WELL_KNOWN)).json()
        del http.headers["A2A-Version"]
        response = await http.get(WELL_KNOWN, headers={"A2A-Version": version} if version else {})

    legacy_card = LegacyCard.model_validate(response.json())
    assert (legacy_card.url, legacy_card.preferred_transport) == ("http://test/", "JSONRPC")
    assert legacy_card.security_schemes is not None
    assert legacy_card.security_schemes["apiKey"].root.type == "apiKey"
    assert parse_agent_card(response.json()) == ParseDict(card_of_10, AgentCard())


@pytest.mark.parametrize(("agent", "serves"), [("", True), ("/agents/echo", False)])
async def test_a_card_names_grpc_of_03_where_no_tenant_is_needed(agent: str, serves: bool) -> None:
    """Requests of 0.3 have no tenant, and therefore reach the first agent."""
    grpc = {"a2a_grpc_port": 50051, "a2a_grpc_public_address": "grpc.example.com:443"}
    async with client_for(secured_gateway(**grpc)) as http:
        response = await http.get(f"{agent}{WELL_KNOWN}")

    versions = [
        (i["protocolVersion"], i.get("tenant", ""))
        for i in response.json()["supportedInterfaces"]
        if i["protocolBinding"] == "GRPC"
    ]
    assert versions == ([("1.0", ""), ("0.3", "")] if serves else [("1.0", "echo")])


def signed_card(*, is_complete: bool = False, api_key: bool = False) -> AgentCard:
    """Return a signed card with an extended card. If `is_complete` is true, a gateway without authentication has
    nothing to add to the card. With `api_key`, this applies to a gateway with API keys."""
    agent_card = AgentCard()
    agent_card.CopyFrom(card("echo"))
    agent_card.capabilities.extended_agent_card = True
    if is_complete:
        agent_card.capabilities.push_notifications = False
        agent_card.supported_interfaces.append(
            AgentInterface(url="https://agents.example.com/", protocol_binding="JSONRPC", protocol_version="1.0")
        )
    if api_key:
        scheme = APIKeySecurityScheme(location="header", name="X-API-Key")
        agent_card.security_schemes["key"].CopyFrom(SecurityScheme(api_key_security_scheme=scheme))
        agent_card.security_requirements.append(SecurityRequirement(schemes={"key": StringList()}))
    agent_card.signatures.append(AgentCardSignature(protected="e30", signature="c2ln"))
    return agent_card


def gateway_with_cards(public: AgentCard, extended: AgentCard | None, **conf: Any) -> Starlette:
    app = Celery("acme", set_as_current=False)
    app.conf.update(a2a_store_url="redis://127.0.0.1:1/0", **conf)
    a2a = A2A(app)
    a2a.add_agent(public, "nowhere:Echo", extended_card=extended)
    return a2a.asgi()


ADDED = "supported_interfaces, capabilities.push_notifications = False"


def test_a_signed_card_that_the_gateway_would_change_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"'echo': its card is signed.* would set {ADDED}: set these"):
        gateway_with_cards(signed_card(), None)


def test_a_signed_card_needs_its_security_schemes() -> None:
    keys = {"a2a_auth_api_keys": api_key_entry("ann", "one")}
    with pytest.raises(ConfigError, match="would set security_schemes, security_requirements: set these"):
        gateway_with_cards(signed_card(is_complete=True), None, **keys)


def test_a_signed_extended_card_that_the_gateway_would_change_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"'echo': its extended card is signed.* would set {ADDED}: set these"):
        gateway_with_cards(signed_card(is_complete=True), signed_card())


async def test_complete_signed_cards_are_served_unchanged() -> None:
    card = signed_card(is_complete=True, api_key=True)
    asgi = gateway_with_cards(card, card, a2a_auth_api_keys=api_key_entry("ann", "one"))
    async with client_for(asgi) as http:
        cards = [(await http.get(path)).json() for path in (WELL_KNOWN, "/extendedAgentCard")]

    assert [ParseDict(json, AgentCard()) for json in cards] == [card] * 2


async def test_the_extended_card_is_refused_where_no_caller_is_authenticated() -> None:
    """Source: A2A specification 13.3."""
    asgi = gateway_with_cards(signed_card(is_complete=True), signed_card(is_complete=True))
    body = {"jsonrpc": "2.0", "id": 1, "method": "GetExtendedAgentCard"}
    async with client_for(asgi) as http:
        rest, rpc = await http.get("/extendedAgentCard"), await http.post("/", json=body)

    text = "The extended card is for authenticated callers: configure authentication"
    assert (rest.status_code, rest.json()["error"]["message"]) == (403, text)
    assert (rpc.status_code, rpc.json()["error"]["message"]) == (403, text)
