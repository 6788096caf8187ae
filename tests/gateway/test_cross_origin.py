"""Cross-origin requests of browsers to a gateway without authentication. Pages of other sites cannot use the
gateway."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from celery import Celery
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp

from a2a_celery import A2A
from a2a_celery.errors import ConfigError
from tests.support.agents.basic import card
from tests.support.clients.credentials import api_key_entry

NOT_JSON = b"{"
"""Body that the gateway rejects after it has checked the caller, without using the store."""

ADDRESS = "http://localhost:8000"
CARD = "/.well-known/agent-card.json"


def gateway(**conf: Any) -> Starlette:
    app = Celery("acme", set_as_current=False)
    app.conf.update({"a2a_store_url": "redis://127.0.0.1:1/0"} | conf)
    a2a = A2A(app)
    a2a.add_agent(card("echo"), "nowhere:Echo")
    return a2a.asgi()


def client(asgi: ASGIApp, address: str = ADDRESS) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url=address)


async def post(asgi: ASGIApp, headers: dict[str, str], address: str = "http://localhost:8000", path: str = "/") -> int:
    """Return the status of a POST with an invalid body. If the caller may use the gateway, the status is 200 over
    JSON-RPC, or 400 over HTTP+JSON."""
    async with client(asgi, address) as http:
        response = await http.post(path, content=NOT_JSON, headers={"Content-Type": "application/json"} | headers)
        return response.status_code


OTHERS = {
    "cross-site": {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
    "same-site": {"Sec-Fetch-Site": "same-site", "Origin": "http://other.localhost"},
    "without Sec-Fetch-Site": {"Origin": "https://evil.example"},
    "another port": {"Origin": "http://localhost:9000"},
    "a sandboxed page": {"Origin": "null"},
    "not a URL": {"Origin": "http://[oops"},
}


@pytest.mark.parametrize("headers", OTHERS.values(), ids=list(OTHERS))
@pytest.mark.parametrize("path", ["/", "/agents/echo", "/message:send", "/tasks/t:cancel"])
async def test_a_page_of_another_origin_is_refused(headers: dict[str, str], path: str) -> None:
    assert await post(gateway(), headers, path=path) == 403


async def test_the_refusal_names_the_setting_in_the_binding_of_the_request() -> None:
    async with client(gateway()) as http:
        rpc = await http.post("/", content=NOT_JSON, headers=OTHERS["cross-site"])
        rest = await http.post("/message:send", content=NOT_JSON, headers=OTHERS["cross-site"])

    assert rpc.json()["error"]["code"] == -31403
    assert rest.json()["error"]["status"] == "PERMISSION_DENIED"
    assert all("a2a_cors_origins" in response.json()["error"]["message"] for response in (rpc, rest))


OWN = {
    "no browser": {},
    "a page of the gateway": {"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost:8000"},
    "one behind a proxy that changes Host": {"Sec-Fetch-Site": "same-origin", "Origin": "https://agents.example.com"},
    "one without Sec-Fetch-Site": {"Origin": "http://LOCALHOST:8000"},
    "the browser's user": {"Sec-Fetch-Site": "none"},
}


@pytest.mark.parametrize("headers", OWN.values(), ids=list(OWN))
async def test_every_other_caller_is_served(headers: dict[str, str]) -> None:
    assert await post(gateway(), headers) == 200


async def test_a_trusted_origin_is_served() -> None:
    asgi = gateway(a2a_cors_origins=["https://chat.example.com"])

    headers = {"Sec-Fetch-Site": "cross-site", "Origin": "https://chat.example.com"}
    assert await post(asgi, headers) == 200
    assert await post(asgi, headers | {"Origin": "https://chat.example.com.evil.example"}) == 403


async def test_a_page_at_the_public_address_is_served() -> None:
    asgi = gateway(a2a_public_url="https://agents.example.com/a2a")

    assert await post(asgi, {"Origin": "https://agents.example.com"}) == 200


async def test_a_link_on_another_page_leads_to_the_gateway() -> None:
    async with client(gateway()) as http:
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        assert (await http.get(CARD, headers=headers)).status_code == 200


@pytest.mark.parametrize("body", [b"{}", b"x"])
@pytest.mark.parametrize("path", ["/", "/message:send"])
async def test_a_body_names_its_media_type(path: str, body: bytes) -> None:
    """A web page may send a body without a media type to any address, without a preflight request."""
    async with client(gateway()) as http:
        request = http.build_request("POST", path, content=body)
        assert "content-type" not in request.headers
        error = (await http.send(request)).json()["error"]

    assert "Content-Type" in error["message"]


SERVED = [
    "localhost",
    "LOCALHOST:8000",
    "127.0.0.1:8000",
    "[::1]:8000",
    "10.1.2.3",
    "gateway",
    "printer.local",
    "gateway.agents.svc",
    "gateway.agents.svc.cluster.local:8000",
    "agents.localhost.",
]
FOREIGN = ["evil.example", "evil.example:8000", "evil.example.", "localhost.evil.example", "127.0.0.1.evil.example"]
FOREIGN += ["evil\N{IDEOGRAPHIC FULL STOP}example", "\N{FULLWIDTH LATIN SMALL LETTER A}"]


@pytest.mark.parametrize("host", SERVED)
async def test_a_host_that_no_attacker_can_register_is_served(host: str) -> None:
    async with client(gateway()) as http:
        assert (await http.get(CARD, headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("path", [CARD, "/tasks"])
async def test_any_other_host_is_refused(host: str, path: str) -> None:
    async with client(gateway()) as http:
        response = await http.get(path, headers={"Host": host.encode()})

    assert response.status_code == 403
    assert "a2a_allowed_hosts" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "conf",
    [
        {"a2a_allowed_hosts": ["agents.example.com"]},
        {"a2a_allowed_hosts": ["*"]},
        {"a2a_public_url": "https://agents.example.com:8443/a2a"},
    ],
)
async def test_a_host_of_the_settings_is_served(conf: dict[str, Any]) -> None:
    async with client(gateway(**conf), "https://agents.example.com") as http:
        assert (await http.get(CARD)).status_code == 200


async def test_callers_authenticated_by_the_embedding_application_may_use_any_host() -> None:
    class FixedAuthenticator(AuthenticationBackend):
        async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser]:
            return AuthCredentials(["authenticated"]), SimpleUser("ann")

    asgi = AuthenticationMiddleware(gateway(), backend=FixedAuthenticator())

    assert await post(asgi, {}, address="https://agents.example.com") == 200
    assert await post(asgi, OTHERS["cross-site"], address="https://agents.example.com") == 403


def test_with_authentication_allowed_hosts_are_refused() -> None:
    with pytest.raises(ConfigError, match="a2a_allowed_hosts"):
        gateway(a2a_allowed_hosts=["agents.example.com"], a2a_auth_api_keys=api_key_entry("ann", "one"))


async def test_with_authentication_any_host_is_served() -> None:
    asgi = gateway(a2a_auth_api_keys=api_key_entry("ann", "one"))
    async with client(asgi, "https://agents.example.com") as http:
        assert (await http.get(CARD)).status_code == 200
