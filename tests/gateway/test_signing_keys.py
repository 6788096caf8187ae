"""JWK Set with the public keys of webhook signatures, as a gateway publishes it."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest
from celery import Celery
from joserfc.jwk import OKPKey

from a2a_celery import A2A
from a2a_celery.crypto.webhook_keys import JWKS_PATH
from tests.support.agents.basic import card
from tests.support.clients.credentials import api_key_entry

SECRET_KEY = "a-key-for-the-tests-of-32-characters-and-more"
SEED = bytes(range(32))
PRIVATE = "whsk_" + base64.b64encode(SEED).decode()
OTHER = "whsk_" + base64.b64encode(b"o" * 32).decode()


def gateway(**conf: Any) -> httpx.AsyncClient:
    """Return a client without credentials of a gateway that knows one API key."""
    app = Celery("acme", set_as_current=False)
    app.conf.update(a2a_store_url="redis://127.0.0.1:1/0", a2a_auth_api_keys=api_key_entry("ann", "one"), **conf)
    a2a = A2A(app)
    a2a.add_agent(card("echo"), "nowhere:Echo")
    return httpx.AsyncClient(transport=httpx.ASGITransport(a2a.asgi()), base_url="http://test")


async def test_the_public_keys_are_readable_without_credentials() -> None:
    conf = {"a2a_secret_key": SECRET_KEY, "a2a_webhook_private_key": [PRIVATE, OTHER, PRIVATE]}
    async with gateway(**conf) as http:
        answer = await http.get(JWKS_PATH)

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/jwk-set+json"
    assert answer.headers["cache-control"] == "public, max-age=300"
    first, second = answer.json()["keys"]
    own = OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "d": base64url(SEED), "x": first["x"]})
    assert first == {
        "kty": "OKP",
        "crv": "Ed25519",
        "x": first["x"],
        "kid": own.thumbprint(),
        "use": "sig",
        "alg": "EdDSA",
    }
    assert own.private_key.public_key().public_bytes_raw() == own.public_key.public_bytes_raw()
    other = OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "d": base64url(b"o" * 32), "x": second["x"]})
    assert other.private_key.public_key().public_bytes_raw() == other.public_key.public_bytes_raw()


@pytest.mark.parametrize("conf", [{}, {"a2a_secret_key": SECRET_KEY}])
async def test_without_a_key_there_is_no_set(conf: dict[str, Any]) -> None:
    async with gateway(**conf) as http:
        answer = await http.get(JWKS_PATH, headers={"X-API-Key": "one"})

    assert answer.status_code == 404


def base64url(key: bytes) -> str:
    return base64.urlsafe_b64encode(key).rstrip(b"=").decode()
