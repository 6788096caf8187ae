"""CORS: scripts of the origins in `cors_origins` call the agents and read every response, including errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from celery import Celery
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from a2a_celery import A2A
from a2a_celery.errors import ConfigError
from a2a_celery.store import AsyncStore, Keys
from tests.support.agents.basic import card
from tests.support.clients.credentials import api_key_entry
from tests.support.processes.local_gateway import local_gateway

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "https://chat.example.com"
OTHER = "https://evil.example"
CARD = "/.well-known/agent-card.json"
ALLOWED = "access-control-allow-origin"
KEYS = {"a2a_auth_api_keys": api_key_entry("ann", "one")}
CERTIFICATES = {"a2a_auth_identity_header": "X-Subject", "a2a_auth_proxy_networks": ["10.0.0.0/8"]}
CLOSED = [
    "/ui",
    "/ui/",
    "/ui/main.js",
    "/ui/agents.json",
    "/ui/inbox.json",
    "/operator/v1/overview",
    "/metrics",
    "/health/ready",
]


def gateway(origins: list[str] | None = None, **conf: Any) -> Starlette:
    """Return a gateway whose store is unavailable."""
    app = Celery("acme", set_as_current=False)
    origins = [PAGE] if origins is None else origins
    app.conf.update({"a2a_store_url": "redis://127.0.0.1:1/0", "a2a_cors_origins": origins, "a2a_ui": True} | conf)
    a2a = A2A(app)
    a2a.add_agent(card("echo"), "nowhere:Echo")
    return a2a.asgi()


async def response_to(asgi: ASGIApp, method: str, path: str, **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): text for name, text in headers.items()}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url="http://localhost:8000") as http:
        return await http.request(method, path, headers=names)


async def preflight(asgi: ASGIApp, path: str, origin: str = PAGE, requested: str = "", **more: str) -> httpx.Response:
    headers = {"origin": origin, "access_control_request_method": "POST"} | more
    if requested:
        headers["access_control_request_headers"] = requested
    return await response_to(asgi, "OPTIONS", path, **headers)


HEADERS = "authorization, x-api-key, a2a-version, a2a-extensions, last-event-id, traceparent, tracestate, content-type"


async def test_a_preflight_request_needs_neither_credentials_nor_the_store() -> None:
    asgi = gateway(**KEYS, a2a_owner_requests_per_second=1)
    for path in ("/", "/message:stream", "/agents/echo/", "/agents/echo/acme/tasks/t:cancel"):
        response = await preflight(asgi, path, requested=HEADERS)

        assert (response.status_code, response.headers[ALLOWED]) == (200, PAGE)
        assert response.headers["access-control-allow-methods"] == "GET, POST, DELETE"
        assert "access-control-allow-credentials" not in response.headers


async def test_an_unknown_header_is_refused() -> None:
    asgi = gateway(**KEYS)

    assert (await preflight(asgi, "/", requested="x-other")).status_code == 400


async def test_each_request_header_of_the_documentation_is_allowed() -> None:
    text = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    headers = set(re.findall(r"(?<![-\w])(?:A2A(?:-[A-Z][a-z]+)+|Last-Event-ID|traceparent|tracestate)(?![-\w])", text))
    assert {"A2A-Version", "A2A-Extensions", "A2A-Push-Events"} <= headers

    response = await preflight(gateway(), "/", requested=", ".join(sorted(headers)))

    assert response.status_code == 200, response.text


async def test_a_preflight_request_of_another_origin_is_refused() -> None:
    response = await preflight(gateway(), "/", origin=OTHER)

    assert response.status_code == 400
    assert ALLOWED not in response.headers


@pytest.mark.parametrize(("origins", "allowed"), [([PAGE], True), (["*"], False)])
async def test_a_page_of_a_public_site_reaches_a_private_address_if_its_origin_is_listed(
    origins: list[str], allowed: bool
) -> None:
    asgi = gateway(origins, **KEYS)

    response = await preflight(asgi, "/", access_control_request_private_network="true")

    assert ("access-control-allow-private-network" in response.headers) == allowed


@pytest.mark.parametrize(
    ("path", "conf", "status"),
    [(CARD, KEYS, 200), ("/tasks", KEYS, 401), ("/nothing", {}, 404), ("/tasks", {}, 503), ("/message:send", {}, 405)],
)
async def test_a_script_of_a_listed_origin_reads_each_response(path: str, conf: dict[str, Any], status: int) -> None:
    asgi = gateway(**conf)
    version = {"A2A_Version": "1.0"}

    response = await response_to(asgi, "GET", path, origin=PAGE, **version)
    other = await response_to(asgi, "GET", path, origin=OTHER, **version)

    assert (response.status_code, other.status_code) == (status, status)
    assert response.headers[ALLOWED] == PAGE
    assert ALLOWED not in other.headers
    assert "Origin" in response.headers["vary"]
    exposed_headers = response.headers["access-control-expose-headers"]
    assert exposed_headers == "Retry-After, WWW-Authenticate, A2A-Extensions, ETag"
    assert ("www-authenticate" in response.headers) == (status == 401)


async def test_a_script_reads_when_it_may_retry(store: AsyncStore, keys: Keys, redis_server: Any) -> None:
    conf = {"owner_requests_per_second": 0.02, "cors_origins": [PAGE]}
    async with local_gateway(store, redis_server.store_url, keys, **conf) as gateway, gateway.serve() as http:
        headers = {"A2A-Version": "1.0", "Origin": PAGE}
        responses = [await http.get("/tasks", headers=headers) for _ in range(2)]

    assert [response.status_code for response in responses] == [200, 429]
    assert [response.headers[ALLOWED] for response in responses] == [PAGE, PAGE]
    assert responses[1].headers["retry-after"] == "50"


@pytest.mark.parametrize("path", CLOSED)
@pytest.mark.parametrize("mount", ["", "/a2a"])
@pytest.mark.parametrize("conf", [{}, KEYS], ids=["open", "keys"])
async def test_no_other_origin_reads_the_operators_pages(path: str, mount: str, conf: dict[str, Any]) -> None:
    asgi: ASGIApp = gateway(**conf)
    if mount:
        asgi = Starlette(routes=[Mount(mount, app=asgi)])

    response = await response_to(asgi, "GET", mount + path, origin=PAGE, x_api_key="one")
    preflighted = await preflight(asgi, mount + path)

    assert ALLOWED not in response.headers
    assert ALLOWED not in preflighted.headers
    assert preflighted.status_code in (401, 405)


async def test_without_the_setting_no_response_has_cors_headers() -> None:
    asgi = gateway([])

    assert ALLOWED not in (await response_to(asgi, "GET", CARD, origin=PAGE)).headers
    assert (await preflight(asgi, "/")).status_code == 405


async def test_a_gateway_without_authentication_accepts_requests_of_listed_origins_only() -> None:
    asgi = gateway()

    def post(origin: str) -> Any:
        return response_to(asgi, "POST", "/", origin=origin, sec_fetch_site="cross-site")

    assert (await post(PAGE)).status_code == 200
    assert (await post(OTHER)).status_code == 403


async def test_any_origin_may_use_a_gateway_with_keys() -> None:
    response = await response_to(gateway(["*"], **KEYS), "GET", "/tasks", origin=OTHER)

    assert (response.status_code, response.headers[ALLOWED]) == (401, "*")
    assert "access-control-allow-credentials" not in response.headers


@pytest.mark.parametrize(
    ("origins", "conf", "problem"),
    [
        (["*"], {}, "does not authenticate its callers"),
        (["*"], CERTIFICATES, "no client certificate"),
        ([PAGE], CERTIFICATES, "no client certificate"),
    ],
)
def test_origins_that_can_not_be_served_safely_are_refused(
    origins: list[str], conf: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=rf"a2a_cors_origins.*{problem}"):
        gateway(origins, **conf)


def test_certificates_and_keys_together_allow_origins() -> None:
    gateway(["*"], **CERTIFICATES, **KEYS)
