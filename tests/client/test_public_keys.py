"""Ed25519 signatures at a receiver, with configured keys and with keys from a JWK Set that changes."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from starlette.responses import JSONResponse

from a2a_celery.client.notifications import NotificationRefused, PublicKeysUnavailable, Verifier
from a2a_celery.client.public_keys import (
    MAX_SIGNATURES,
    REFRESH_EVERY,
    RETRY_AFTER,
    UNKNOWN_KEY_REFRESH_EVERY,
    PublicKeys,
)
from a2a_celery.client.receiver import receiver_app
from a2a_celery.crypto.jwk_sets import MAX_JWKS_BYTES
from a2a_celery.crypto.webhook_keys import MAX_KEYS, jwk_set
from a2a_celery.errors import ConfigError
from a2a_celery.push import Signer, format_public_key
from tests.support.clocks import ManualClock
from tests.support.processes.serving import serve_app
from tests.support.receivers.webhooks import DELIVERY_ID, OTHER_SECRET, SECRET, Post, post

ROOT = Path(__file__).resolve().parents[2]
URL = "https://agents.example.com/.well-known/jwks.json"
NOW = 1_800_000_000.0
OLD, NEW, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2, 3))


def whpk(*keys: Ed25519PrivateKey) -> list[str]:
    return [format_public_key(key) for key in keys]


def document(*keys: Ed25519PrivateKey) -> dict[str, Any]:
    return jwk_set(key.public_key().public_bytes_raw() for key in keys)


def signed_by(*keys: Ed25519PrivateKey, at: float = NOW, secret: str = OTHER_SECRET) -> Post:
    """Return a post with one signature for each of `keys` and one for `secret`."""
    signed_post = post(at=at, secrets=(secret,))
    key_verifiers = (
        Signer(private_keys=keys).headers(f"{DELIVERY_ID}_1", int(at), signed_post.body).get("webhook-signature", "")
    )
    signed_post.headers["webhook-signature"] = f"{signed_post.headers['webhook-signature']} {key_verifiers}".strip()
    return signed_post


@dataclass
class Endpoint:
    """Endpoint that serves the sender's JWK Set."""

    answer: Any = field(default_factory=lambda: document(OLD))
    request_count: int = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.request_count += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer if isinstance(self.answer, httpx.Response) else httpx.Response(200, json=self.answer)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def verifier(endpoint: Endpoint, clock: ManualClock) -> Verifier:
    """Verifier that fetches the JWK Set from its URL."""
    keys = PublicKeys(jwks_url=URL, transport=httpx.MockTransport(endpoint), clock=clock)
    return Verifier(public_keys=keys, clock=ManualClock(NOW))


async def verdict(verifier: Verifier, signed_post: Post) -> str:
    """Verify a post. Return "fine", or the status and text of the exception."""
    try:
        await verifier.verify_async(signed_post.headers, signed_post.body)
    except NotificationRefused as e:
        return f"{e.status} {e}"
    return "fine"


UNKNOWN = "401 No signature of this id, time and body was made with a known key."


def test_given_keys_verify_before_and_after_a_rotation() -> None:
    check = Verifier(public_keys=PublicKeys(whpk(OLD, NEW)), clock=ManualClock(NOW))

    for keys in ([OLD], [NEW], [OTHER, NEW], [OLD, NEW]):
        signed_post = signed_by(*keys)
        assert check.verify(signed_post.headers, signed_post.body).version == 1


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"webhook-id": f"{DELIVERY_ID}_2"}, 401),
        ({"webhook-timestamp": str(int(NOW) + 1)}, 401),
        ({"webhook-signature": "v1a,AAAA"}, 401),
        ({"webhook-signature": "v1a,"}, 401),
        ({"webhook-signature": "v1a,not base64"}, 401),
        ({"webhook-signature": "v1,AAAA"}, 401),
        ({"webhook-signature": ""}, 400),
        ({"webhook-id": "", "webhook-timestamp": "", "webhook-signature": ""}, 400),
        ({"webhook-id": "", "webhook-timestamp": "", "webhook-signature": "", "x-a2a-notification-token": "t"}, 400),
    ],
)
async def test_a_forged_post_is_refused(change: dict[str, str], status: int) -> None:
    signed_post = signed_by(OLD)
    forged_post = Post(signed_post.headers | change, signed_post.body)

    judgement = await verdict(Verifier(public_keys=PublicKeys(whpk(OLD)), clock=ManualClock(NOW)), forged_post)

    assert judgement.startswith(f"{status} "), judgement


async def test_another_body_is_refused_and_a_recording_too() -> None:
    check = Verifier(public_keys=PublicKeys(whpk(OLD)), clock=ManualClock(NOW))
    current, old = signed_by(OLD), signed_by(OLD, at=NOW - 301)

    assert await verdict(check, Post(current.headers, current.body + b" ")) == UNKNOWN
    assert (await verdict(check, old)).startswith("401 Signed 301 s ago")
    assert await verdict(check, signed_by(OTHER)) == UNKNOWN


async def test_a_secret_and_a_key_are_good_beside_each_other() -> None:
    check = Verifier([SECRET], public_keys=PublicKeys(whpk(OLD)), clock=ManualClock(NOW))

    assert await verdict(check, signed_by(OLD)) == "fine"
    assert await verdict(check, signed_by(OTHER, secret=SECRET)) == "fine"
    assert await verdict(check, signed_by(secret=SECRET)) == "fine"
    assert "with a known secret or key" in await verdict(check, signed_by(OTHER))


async def test_only_so_many_signatures_are_checked() -> None:
    check = Verifier(public_keys=PublicKeys(whpk(OLD)), clock=ManualClock(NOW))

    assert await verdict(check, signed_by(*[OTHER] * (MAX_SIGNATURES - 1), OLD)) == "fine"
    assert await verdict(check, signed_by(*[OTHER] * MAX_SIGNATURES, OLD)) == UNKNOWN


async def test_keys_are_fetched_once_and_again_when_they_are_old(
    verifier: Verifier, endpoint: Endpoint, clock: ManualClock
) -> None:
    assert [await verdict(verifier, signed_by(OLD)) for _ in range(3)] == ["fine"] * 3
    assert endpoint.request_count == 1

    clock.advance(REFRESH_EVERY)
    assert await verdict(verifier, signed_by(OLD)) == "fine"
    assert endpoint.request_count == 2


async def test_posts_that_come_at_once_wait_for_one_fetch(verifier: Verifier, endpoint: Endpoint) -> None:
    judgements = await asyncio.gather(*(verdict(verifier, signed_by(OLD)) for _ in range(20)))

    assert (judgements, endpoint.request_count) == (["fine"] * 20, 1)


async def test_a_rotation_in_three_steps_refuses_nothing(
    verifier: Verifier, endpoint: Endpoint, clock: ManualClock
) -> None:
    assert await verdict(verifier, signed_by(OLD)) == "fine"
    endpoint.answer = document(OLD, NEW)
    clock.advance(REFRESH_EVERY)
    assert await verdict(verifier, signed_by(OLD)) == "fine"
    assert [await verdict(verifier, signed_by(key)) for key in (NEW, OLD, NEW)] == ["fine"] * 3
    assert endpoint.request_count == 2

    endpoint.answer = document(NEW)
    clock.advance(REFRESH_EVERY)
    assert [await verdict(verifier, signed_by(key)) for key in (NEW, OLD)] == ["fine", UNKNOWN]


async def test_an_unknown_key_is_looked_for_now_and_then(
    verifier: Verifier, endpoint: Endpoint, clock: ManualClock
) -> None:
    assert await verdict(verifier, signed_by(OLD)) == "fine"
    endpoint.answer = document(OLD, NEW)

    assert [await verdict(verifier, signed_by(NEW)) for _ in range(5)] == [UNKNOWN] * 5
    assert endpoint.request_count == 1, "anybody could make us ask"
    clock.advance(UNKNOWN_KEY_REFRESH_EVERY)
    assert [await verdict(verifier, signed_by(key)) for key in (NEW, OLD)] == ["fine"] * 2
    assert endpoint.request_count == 2


@pytest.mark.parametrize(
    "answer",
    [
        httpx.ConnectError("no"),
        httpx.Response(500),
        httpx.Response(302, headers={"Location": URL}),
        httpx.Response(200, content=b"{"),
        httpx.Response(200, content=b" " * (MAX_JWKS_BYTES + 1)),
        httpx.Response(200, json={"keys": 1}),
    ],
    ids=["away", "500", "elsewhere", "no JSON", "huge", "no set"],
)
async def test_without_keys_the_sender_tries_again_and_known_keys_stay(
    verifier: Verifier, endpoint: Endpoint, clock: ManualClock, answer: Any
) -> None:
    endpoint.answer = answer
    unavailable = f"503 {PublicKeysUnavailable()}"
    assert [await verdict(verifier, signed_by(OLD)) for _ in range(2)] == [unavailable] * 2
    assert endpoint.request_count == 1

    endpoint.answer = document(OLD)
    clock.advance(RETRY_AFTER)
    assert await verdict(verifier, signed_by(OLD)) == "fine"
    endpoint.answer = answer
    clock.advance(REFRESH_EVERY)
    assert [await verdict(verifier, signed_by(key)) for key in (OLD, NEW, OLD)] == ["fine", UNKNOWN, "fine"]
    assert endpoint.request_count == 3, "each post would wait for a server that is away"


async def test_other_keys_of_a_set_are_passed_over(verifier: Verifier, endpoint: Endpoint) -> None:
    [own] = document(OLD)["keys"]
    unusable: list[Any] = [
        1,
        {},
        {"kty": "RSA", "n": "AQAB"},
        own | {"crv": "X25519"},
        own | {"x": 5},
        own | {"x": "AA"},
    ]
    endpoint.answer = {"keys": [*unusable, own | {"use": "enc", "x": document(OTHER)["keys"][0]["x"]}, own]}

    assert await verdict(verifier, signed_by(OLD)) == "fine"
    assert await verdict(verifier, signed_by(OTHER)) == UNKNOWN


async def test_only_so_many_keys_are_read(verifier: Verifier, endpoint: Endpoint) -> None:
    endpoint.answer = {"keys": [*document(OTHER)["keys"] * MAX_KEYS, *document(OLD)["keys"]]}

    assert await verdict(verifier, signed_by(OLD)) == UNKNOWN


async def test_a_receiver_answers_503_until_it_has_keys(endpoint: Endpoint) -> None:
    endpoint.answer = httpx.Response(500)
    keys = PublicKeys(jwks_url=URL, transport=httpx.MockTransport(endpoint))

    async def handle(notification: object) -> None:
        raise AssertionError(notification)

    signed_post = signed_by(OLD)
    async with serve_app(receiver_app(handle, public_keys=keys)) as url, httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(url, headers=signed_post.headers, content=signed_post.body)

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


async def test_no_proxy_stands_between_a_machine_and_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy variables point to a closed port, so that a request through a proxy fails."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    async def keys_of_the_sender(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse(document(OLD))(scope, receive, send)

    async with serve_app(keys_of_the_sender) as url:
        for address in (url, url.replace("127.0.0.1", "localhost")):
            check = Verifier(public_keys=PublicKeys(jwks_url=f"{address}/keys"), clock=ManualClock(NOW))
            assert await verdict(check, signed_by(OLD)) == "fine"


@pytest.mark.parametrize(
    "url", ["http://agents.example.com/keys", "ftp://127.0.0.1/", "agents.example.com", "https://", "https://a:x/"]
)
def test_keys_that_anybody_could_change_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="jwks_url"):
        PublicKeys(jwks_url=url)


def test_a_url_with_a_password_is_refused_without_the_password() -> None:
    with pytest.raises(ConfigError, match="jwks_url = …: must not contain a user or password") as exc_info:
        PublicKeys(jwks_url="https://me:s3cret@agents.example.com/keys")

    assert "s3cret" not in str(exc_info.value)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ([], "list of whpk_"),
        ("whpk_AAAA", "list of whpk_"),
        (["whpk_AAAA"], "32 bytes"),
        (["AAAA"], "32 bytes"),
        (["whsk_" + base64.b64encode(bytes(32)).decode()], "a private key"),
    ],
)
def test_an_invalid_public_key_is_refused(keys: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as exc_info:
        PublicKeys(keys)

    assert "AAAA" not in str(exc_info.value)


def test_the_page_has_the_refresh_interval_of_keys() -> None:
    page = " ".join((ROOT / "docs" / "webhooks-receiving.md").read_text(encoding="utf-8").split())

    assert f"at most once every {REFRESH_EVERY:.0f} seconds" in page
    assert f"or once every {UNKNOWN_KEY_REFRESH_EVERY:.0f} seconds if a signature was made with an unknown key" in page
