"""Authentication settings of a gateway. It refuses to start with invalid settings, and its cards declare the
schemes."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from dataclasses import fields
from typing import Any

import httpx
import pytest
from a2a.types import AgentCard
from celery import Celery
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from google.protobuf.json_format import MessageToDict, ParseDict

from a2a_celery import A2A
from a2a_celery.agents import Agent
from a2a_celery.errors import ConfigError
from a2a_celery.gateway.auth.from_settings import (
    CREDENTIAL_VARIABLES,
    SCHEME_VARIABLES,
    authenticator_from_settings,
    secure_agent,
)
from a2a_celery.gateway.auth.keys import FetchedKeys
from a2a_celery.gateway.auth.schemes import CredentialsRefused, PresentedCredentials, ProxyIdentity
from a2a_celery.gateway.auth.tokens import BearerTokens
from a2a_celery.settings import Settings
from tests.support.agents.basic import card
from tests.support.clients.credentials import api_key_entry, rsa_key

SECRET = "a-secret-of-the-tests-that-is-long-enough-for-512-bits-of-hash-and-more"
TOKENS: dict[str, Any] = {
    "auth_jwt_key": SECRET,
    "auth_jwt_algorithms": ["HS256"],
    "auth_jwt_issuer": "https://issuer.example.com",
    "auth_jwt_audience": ["https://agents.example.com"],
}
JWKS = TOKENS | {
    "auth_jwt_key": None,
    "auth_jwks_url": "https://issuer.example.com/jwks",
    "auth_jwt_algorithms": ["RS256"],
}
PROXY: dict[str, Any] = {"auth_identity_header": "X-Subject", "auth_proxy_networks": ["10.0.0.0/8"]}
KEYS: dict[str, Any] = {"auth_api_keys": [api_key_entry("alice", "one")]}


def public(key: Any) -> str:
    pem: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem.decode()


SMALL = rsa.generate_private_key(65537, 1024)
LARGE = rsa.generate_private_key(65537, 2048)
CURVE = ec.generate_private_key(ec.SECP256R1())
PRIVATE = LARGE.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def settings(**values: Any) -> Settings:
    return Settings(store_url="redis://host", **values)


def test_without_settings_there_is_no_authentication() -> None:
    assert authenticator_from_settings(settings()) is None


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (TOKENS, ["bearer"]),
        (JWKS, ["bearer"]),
        (JWKS | {"auth_jwks_url": "http://localhost:8080/jwks"}, ["bearer"]),
        (JWKS | {"auth_jwks_url": "http://[::1]:8080/jwks"}, ["bearer"]),
        (TOKENS | {"auth_jwt_key": public(LARGE), "auth_jwt_algorithms": ["RS256", "PS512"]}, ["bearer"]),
        (TOKENS | {"auth_jwt_key": public(CURVE), "auth_jwt_algorithms": ["ES256"]}, ["bearer"]),
        (KEYS, ["apiKey"]),
        (PROXY, ["mutualTls"]),
        (PROXY | KEYS | JWKS, ["bearer", "apiKey", "mutualTls"]),
    ],
)
def test_valid_settings_are_accepted(values: dict[str, Any], names: list[str]) -> None:
    authenticator = authenticator_from_settings(settings(**values))
    assert authenticator is not None
    assert [scheme.name for scheme in authenticator.schemes] == names


def served_under_a_namespace(**settings: Any) -> A2A:
    """Return the agents of an app with settings under a namespace, as in Django projects."""
    app = Celery("acme")
    values = {"CELERY_BROKER_URL": "amqp://me:s3cret@broker//", "CELERY_A2A_STORE_URL": "redis://:s3cret@store/1"}
    app.config_from_object(type("settings", (), values | settings), namespace="CELERY")
    a2a = A2A(app)
    a2a.add_agent(card("echo"), "nowhere:Echo")
    return a2a


async def test_authentication_that_is_set_under_a_namespace_is_asked_for() -> None:
    a2a = served_under_a_namespace(CELERY_A2A_AUTH_API_KEYS=KEYS["auth_api_keys"])

    async with httpx.AsyncClient(transport=httpx.ASGITransport(a2a.asgi()), base_url="http://test") as client:
        answer = await client.post("/", json={"jsonrpc": "2.0", "id": 1, "method": "SendMessage"})

    assert answer.status_code == 401


def test_a_gateway_logs_its_settings_and_their_sources_at_its_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "a2a_celery")
    served_under_a_namespace(CELERY_A2A_AUTH_API_KEYS=KEYS["auth_api_keys"], CELERY_A2A_LEASE_TTL=3).asgi()

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "store: redis://store/1 (CELERY_A2A_STORE_URL in the Celery configuration)"),
        ("INFO", "broker: amqp://me:**@broker:5672// (CELERY_BROKER_URL in the Celery configuration)"),
        ("INFO", "authentication: API keys (CELERY_A2A_AUTH_API_KEYS in the Celery configuration)"),
        ("INFO", "settings: lease_ttl = 3 (CELERY_A2A_LEASE_TTL in the Celery configuration)"),
    ]
    assert "s3cret" not in caplog.text


def test_a_gateway_without_authentication_warns(caplog: pytest.LogCaptureFixture) -> None:
    served_under_a_namespace().asgi()

    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith("authentication: none: every client that reaches the gateway can run agents")
    assert SCHEME_VARIABLES in warning
    files = re.findall(r"A2A_(\w+)_FILE", warning)
    assert {name.lower() for name in files} <= {field.name for field in fields(Settings) if not field.repr}


def test_texts_of_errors_name_the_settings_of_all_schemes() -> None:
    assert set(re.findall(r"\w+", SCHEME_VARIABLES)) - {"or"} == {
        "A2A_AUTH_JWKS_URL",
        "A2A_AUTH_JWT_KEY",
        "A2A_AUTH_API_KEYS",
        "A2A_AUTH_IDENTITY_HEADER",
    }
    with pytest.raises(ConfigError, match=SCHEME_VARIABLES):
        app_with_gateway(**GRPC).asgi()
    with pytest.raises(ConfigError, match=CREDENTIAL_VARIABLES):
        app_with_gateway(cors_origins=["*"]).asgi()


def test_the_error_for_a_list_shows_a_list() -> None:
    with pytest.raises(ConfigError, match=re.escape("a2a_cors_origins = ['a', 'b']: ")):
        Settings(cors_origins=["a", "b"])


NONSENSE: dict[str, tuple[dict[str, Any], str]] = {
    "no algorithms": (TOKENS | {"auth_jwt_algorithms": ()}, "a2a_auth_jwt_algorithms"),
    "no issuer": (TOKENS | {"auth_jwt_issuer": None}, "a2a_auth_jwt_issuer"),
    "no audience": (TOKENS | {"auth_jwt_audience": ()}, "a2a_auth_jwt_audience"),
    "none": (TOKENS | {"auth_jwt_algorithms": ["none"]}, "= none: use one of HS256"),
    "an unknown one": (TOKENS | {"auth_jwt_algorithms": ["rs256"]}, "= rs256: use one of"),
    "secrets and public keys": (JWKS | {"auth_jwt_algorithms": ["RS256", "HS256"]}, "cannot be combined"),
    "secrets that all may see": (JWKS | {"auth_jwt_algorithms": ["HS256"]}, "a JWKS is public"),
    "two sources": (JWKS | {"auth_jwt_key": SECRET}, "leave one out"),
    "keys that anybody may change": (JWKS | {"auth_jwks_url": "http://issuer.example.com"}, "https://"),
    "a password": (
        JWKS | {"auth_jwks_url": "https://me:pa55word@issuer.example.com/"},
        "not contain a user or password",
    ),
    "no port": (JWKS | {"auth_jwks_url": "https://issuer.example.com:keys/"}, "must name a host"),
    "half an address": (JWKS | {"auth_jwks_url": "https://[issuer.example.com/"}, "must name a host"),
    "no place": (JWKS | {"auth_jwks_url": "https://"}, "must name a host"),
    "no address": (JWKS | {"auth_jwks_url": "/etc/keys"}, "https://"),
    "a short secret": (TOKENS | {"auth_jwt_key": "s" * 31}, "32 characters"),
    "a secret short for its hash": (TOKENS | {"auth_jwt_key": "s" * 63, "auth_jwt_algorithms": ["HS512"]}, "64 char"),
    "a secret as a public key": (TOKENS | {"auth_jwt_algorithms": ["RS256"]}, "neither a public key in PEM"),
    "a public key as a secret": (TOKENS | {"auth_jwt_key": public(LARGE)}, "is a public key of type RSA"),
    "another type": (
        TOKENS | {"auth_jwt_key": public(LARGE), "auth_jwt_algorithms": ["ES256"]},
        "public key of type RSA",
    ),
    "another curve": (TOKENS | {"auth_jwt_key": public(CURVE), "auth_jwt_algorithms": ["ES384"]}, "EC on P-256"),
    "a private key": (
        TOKENS | {"auth_jwt_key": PRIVATE, "auth_jwt_algorithms": ["RS256"]},
        "set the public key instead",
    ),
    "a small key": (TOKENS | {"auth_jwt_key": public(SMALL), "auth_jwt_algorithms": ["RS256"]}, "at least 2048 bits"),
    "half a key": (TOKENS | {"auth_jwt_key": public(LARGE)[:99], "auth_jwt_algorithms": ["RS256"]}, "not a public RSA"),
    "a set of nothing": (TOKENS | {"auth_jwt_key": '{"keys": []}'}, "a2a_auth_jwt_key: the JWK Set has no usable"),
    "half a set": (TOKENS | {"auth_jwt_key": '{"keys":'}, "a2a_auth_jwt_key"),
    "claims without tokens": ({"auth_jwt_tenants_claim": "tenants"}, "has no effect without a2a_auth_jwks_url"),
    "an issuer without keys": ({"auth_jwt_issuer": "https://issuer.example.com"}, "has no effect without"),
    "an owner's claim without tokens": (
        KEYS | {"auth_jwt_owner_claim": "email"},
        "a2a_auth_jwt_owner_claim is set, and has no effect without a2a_auth_jwks_url or a2a_auth_jwt_key",
    ),
    "no API key": ({"auth_api_keys": []}, "no caller could authenticate"),
    "an API key itself": ({"auth_api_keys": ["alice:a-secret-key"]}, "entry 1 is not owner:sha256:"),
    "a hash of another kind": ({"auth_api_keys": ["alice:md5:" + "0" * 64]}, "entry 1 is not"),
    "half a hash": ({"auth_api_keys": [*KEYS["auth_api_keys"], "alice:sha256:00"]}, "entry 2 is not"),
    "no owner": ({"auth_api_keys": [":sha256:" + "0" * 64]}, "entry 1 is not"),
    "a key of two": (
        {"auth_api_keys": [api_key_entry("alice", "one"), api_key_entry("bob", "one")]},
        "entry 2 has the hash of an earlier entry",
    ),
    "a proxy anywhere": ({"auth_identity_header": "X-Subject"}, "name the networks of your proxies"),
    "proxies without a header": ({"auth_proxy_networks": ["10.0.0.0/8"]}, "has no effect without a2a_auth_identity"),
    "two in one header": (PROXY | KEYS | {"auth_identity_header": "x-api-key"}, "another scheme reads the header"),
    "a subject among tokens": (
        PROXY | TOKENS | {"auth_identity_header": "Authorization"},
        "another scheme reads the header",
    ),
    "a subject that workers would see": (
        PROXY | {"auth_identity_header": "Traceparent"},
        "a2a_auth_identity_header = traceparent: the header has another use",
    ),
    "no network": (PROXY | {"auth_proxy_networks": ["proxies"]}, "a2a_auth_proxy_networks"),
    "no header": ({"auth_identity_header": "X Key"}, "must be a header name"),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_invalid_settings_are_refused_with_a_hint(name: str) -> None:
    values, error = NONSENSE[name]
    with pytest.raises(ConfigError) as exc_info:
        authenticator_from_settings(settings(**values))

    text = str(exc_info.value)
    assert error in text
    assert not [secret for secret in (SECRET, "a-secret-key", "pa55word", PRIVATE, "0" * 64) if secret in text]


async def test_keys_on_this_machine_are_asked_for_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"keys": [rsa_key("first").as_dict(private=False)]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        authenticator = authenticator_from_settings(
            settings(**JWKS | {"auth_jwks_url": f"http://127.0.0.1:{port}/jwks"})
        )
        assert authenticator is not None
        [scheme] = authenticator.schemes
        assert isinstance(scheme, BearerTokens)
        assert isinstance(scheme.keys, FetchedKeys)

        assert await scheme.keys.find("first", "RS256") is not None


def test_an_invalid_setting_is_refused_before_the_start() -> None:
    app = Celery("test", broker="redis://host", set_as_current=False)
    app.conf.a2a_store_url, app.conf.a2a_auth_api_keys = "redis://host", "alice"
    a2a = A2A(app)
    a2a.agent("echo")(lambda turn: turn.text)
    with pytest.raises(ConfigError, match="a2a_auth_api_keys: entry 1"):
        a2a.asgi()


GRPC = {"grpc_port": 50051}


def app_with_gateway(**values: Any) -> A2A:
    app = Celery("test", broker="redis://host", set_as_current=False)
    app.conf.update(a2a_store_url="redis://host", **{f"a2a_{name}": value for name, value in values.items()})
    a2a = A2A(app)
    a2a.agent("echo")(lambda turn: turn.text)
    return a2a


def test_grpc_of_an_embedded_gateway_needs_authentication() -> None:
    with pytest.raises(ConfigError, match=r"sees no gRPC.*a2a\.asgi\(standalone=True\)"):
        app_with_gateway(**GRPC).asgi()

    assert app_with_gateway().asgi()
    assert app_with_gateway(**GRPC).asgi(standalone=True)
    assert app_with_gateway(**GRPC, **KEYS).asgi()


BEARER = {"httpAuthSecurityScheme": {"scheme": "bearer"}}
OAUTH = {"oauth2SecurityScheme": {"oauth2MetadataUrl": "https://issuer.example.com/.well-known/oauth"}}
OIDC = {"openIdConnectSecurityScheme": {"openIdConnectUrl": "https://issuer.example.com/.well-known/openid"}}
API_KEY = {"apiKeySecurityScheme": {"location": "header", "name": "x-api-key"}}
MTLS: dict[str, Any] = {"mtlsSecurityScheme": {}}


def agent_with_schemes(schemes: dict[str, Any], *requirements: tuple[str, ...]) -> Agent:
    """Return an agent whose card declares `schemes`. Each of `requirements` names schemes that apply together."""
    expected_card = AgentCard()
    expected_card.CopyFrom(card("careful"))
    requirement_protos = [{"schemes": {name: {"list": []} for name in names}} for names in requirements]
    ParseDict({"securitySchemes": schemes, "securityRequirements": requirement_protos}, expected_card)
    return Agent.with_options("careful", expected_card, "executor", "tests.support.agents.basic:Full", None, {})


@pytest.mark.parametrize("scheme", [BEARER, OAUTH, OIDC, API_KEY, MTLS])
def test_a_card_that_declares_our_scheme_is_unchanged(scheme: dict[str, Any]) -> None:
    agent = agent_with_schemes({"mine": scheme}, ("mine",))
    secured_agent = secure_agent(agent, authenticator_from_settings(settings(**TOKENS, **KEYS, **PROXY)))
    assert MessageToDict(secured_agent.card) == MessageToDict(agent.card)


@pytest.mark.parametrize(
    ("agent", "error"),
    [
        (agent_with_schemes({"mine": BEARER}, ("mine",)), "requires 'mine', and this gateway accepts apiKey"),
        (agent_with_schemes({"mine": MTLS}, ("mine",)), "requires 'mine'"),
        (
            agent_with_schemes(
                {"mine": API_KEY | {"apiKeySecurityScheme": {"location": "query", "name": "x-api-key"}}}, ("mine",)
            ),
            "mine",
        ),
        (
            agent_with_schemes({"mine": {"apiKeySecurityScheme": {"location": "header", "name": "key"}}}, ("mine",)),
            "mine",
        ),
        (agent_with_schemes({"mine": API_KEY}), "no security_requirements"),
        (agent_with_schemes({"mine": API_KEY}, ()), "a security requirement with no scheme"),
        (
            agent_with_schemes({"mine": API_KEY}, ("mine",), ("theirs",)),
            "'theirs', which is not among its security_schemes",
        ),
        (
            agent_with_schemes({"mine": API_KEY, "tls": MTLS}, ("mine", "tls")),
            "a security requirement with mine and tls",
        ),
    ],
)
def test_a_card_that_contradicts_is_refused(agent: Agent, error: str) -> None:
    with pytest.raises(ConfigError, match="agent 'careful': its card") as exc_info:
        secure_agent(agent, authenticator_from_settings(settings(**KEYS)))
    assert error in str(exc_info.value)


def test_without_authentication_a_card_may_declare_any_scheme() -> None:
    agent = agent_with_schemes({"mine": BEARER}, ("mine",))
    assert secure_agent(agent, None) is agent


@pytest.mark.parametrize(
    ("peer", "is_trusted"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("fd00::5", True),
        ("11.1.2.3", False),
        ("::1", False),
        ("10.1.2.3.example.com", False),
        ("", False),
        (None, False),
    ],
)
async def test_a_proxy_is_known_by_its_address(peer: str | None, is_trusted: bool) -> None:
    scheme = ProxyIdentity("X-Subject", ["10.0.0.0/8", "fd00::/8"])
    shown = PresentedCredentials(lambda name: ["CN=alice"] if name == "x-subject" else [], peer)
    if is_trusted:
        identity = await scheme.identify(shown)
        assert identity is not None
        assert identity.owner == "CN=alice"
    else:
        with pytest.raises(CredentialsRefused):
            await scheme.identify(shown)


async def test_a_proxy_without_a_subject_identifies_no_caller() -> None:
    scheme = ProxyIdentity("X-Subject", ["10.0.0.0/8"])
    assert await scheme.identify(PresentedCredentials(lambda _: [], "10.1.2.3")) is None
    assert await scheme.identify(PresentedCredentials(lambda _: [" "], "10.1.2.3")) is None
    with pytest.raises(CredentialsRefused):
        await scheme.identify(PresentedCredentials(lambda _: [""], "192.0.2.1"))


@pytest.mark.parametrize(
    ("site", "fine"), [("same-origin", True), ("none", True), ("cross-site", False), ("same-site", False)]
)
async def test_a_cross_site_request_of_a_browser_is_refused(site: str, fine: bool) -> None:
    headers = {"x-subject": ["CN=alice"], "sec-fetch-site": [site]}
    credentials = PresentedCredentials(lambda name: headers.get(name, []), "10.1.2.3")
    scheme = ProxyIdentity("X-Subject", ["10.0.0.0/8"])

    if fine:
        assert await scheme.identify(credentials) is not None
    else:
        with pytest.raises(CredentialsRefused):
            await scheme.identify(credentials)
