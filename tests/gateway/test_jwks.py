"""Keys of a token issuer. They are fetched once for all callers, refreshed, and cached during an outage."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from joserfc.jwk import ECKey, Key, OctKey, RSAKey

from a2a_celery.crypto.jwk_sets import MAX_JWKS_BYTES
from a2a_celery.gateway.auth.keys import ASK_AGAIN_AFTER, REFRESH_EVERY, RETRY_AFTER, FetchedKeys, read_set
from a2a_celery.gateway.auth.schemes import KeysUnavailable
from tests.support.clients.credentials import rsa_key
from tests.support.clocks import ManualClock
from tests.support.waiting import eventually_async

URL = "https://issuer.example.com/jwks.json"
FIRST, SECOND = rsa_key("first"), rsa_key("second")


def document(*keys: Key) -> dict[str, Any]:
    return {"keys": [key.as_dict(private=False) for key in keys]}


@dataclass
class Endpoint:
    """JWKS endpoint that counts requests, and blocks them while `gate` is cleared."""

    answer: Any = field(default_factory=lambda: document(FIRST))
    request_count: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.request_count += 1
        await self.gate.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, httpx.Response):
            return self.answer
        return httpx.Response(200, json=self.answer)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def endpoint() -> Endpoint:
    endpoint = Endpoint()
    endpoint.gate.set()
    return endpoint


@pytest.fixture
def keys(endpoint: Endpoint, clock: ManualClock) -> FetchedKeys:
    return FetchedKeys(URL, httpx.MockTransport(endpoint), clock)


async def test_a_key_is_found_and_fetched_once(keys: FetchedKeys, endpoint: Endpoint) -> None:
    for _ in range(5):
        key = await keys.find("first", "RS256")
        assert key is not None
        assert key.get("kid") == "first"
    assert endpoint.request_count == 1


async def test_an_unknown_key_is_asked_for_once_in_a_while(
    keys: FetchedKeys, endpoint: Endpoint, clock: ManualClock
) -> None:
    assert await keys.find("first", "RS256")
    for number in range(20):
        assert await keys.find(f"made-up-{number}", "RS256") is None
    assert endpoint.request_count == 1, "they were fetched just now"
    clock.advance(ASK_AGAIN_AFTER + 1)
    for number in range(20):
        assert await keys.find(f"made-up-{number}", "RS256") is None
    assert endpoint.request_count == 2


async def test_a_new_key_is_found_and_a_removed_one_is_not(
    keys: FetchedKeys, endpoint: Endpoint, clock: ManualClock
) -> None:
    assert await keys.find("first", "RS256")
    endpoint.answer = document(SECOND)
    clock.advance(ASK_AGAIN_AFTER + 1)
    assert await keys.find("second", "RS256")
    assert await keys.find("first", "RS256") is None


FAILURES: dict[str, Any] = {
    "not there": httpx.ConnectError("no"),
    "a surprise": RuntimeError("no"),
    "silent": httpx.ReadTimeout("no"),
    "in trouble": httpx.Response(503),
    "elsewhere": httpx.Response(302, headers={"Location": "https://else.example.com/"}),
    "a page": httpx.Response(200, text="<html>"),
    "no set": httpx.Response(200, json=[1]),
    "empty": httpx.Response(200, json={"keys": []}),
    "secrets": httpx.Response(200, json={"keys": [{"kty": "oct", "k": "c2VjcmV0LXNlY3JldA", "kid": "first"}]}),
    "too much": httpx.Response(200, text=json.dumps({"keys": "x" * MAX_JWKS_BYTES})),
    "nested": httpx.Response(200, text="[" * 100_000),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_known_keys_survive_failed_fetches(
    keys: FetchedKeys, endpoint: Endpoint, clock: ManualClock, failure: str
) -> None:
    assert await keys.find("first", "RS256")
    endpoint.answer = FAILURES[failure]
    clock.advance(ASK_AGAIN_AFTER + 1)
    assert await keys.find("made-up", "RS256") is None
    assert await keys.find("first", "RS256")
    assert endpoint.request_count == 2


@pytest.mark.parametrize("failure", FAILURES)
async def test_without_any_key_nothing_is_judged_and_it_is_tried_again_soon(
    endpoint: Endpoint, clock: ManualClock, failure: str
) -> None:
    keys = FetchedKeys(URL, httpx.MockTransport(endpoint), clock)
    endpoint.answer = FAILURES[failure]
    for _ in range(3):
        with pytest.raises(KeysUnavailable):
            await keys.find("first", "RS256")
    assert endpoint.request_count == 1
    endpoint.answer = document(FIRST)
    clock.advance(RETRY_AFTER + 1)
    assert await keys.find("first", "RS256")


async def test_concurrent_callers_share_a_fetch_that_survives_their_cancellation(
    keys: FetchedKeys, endpoint: Endpoint
) -> None:
    endpoint.gate.clear()
    waiting = [asyncio.create_task(keys.find("first", "RS256")) for _ in range(10)]

    async def is_asked() -> bool:
        return endpoint.request_count == 1

    await eventually_async(is_asked)
    waiting[0].cancel()
    endpoint.gate.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)

    assert isinstance(results[0], asyncio.CancelledError)
    assert all(isinstance(key, RSAKey) for key in results[1:])
    assert endpoint.request_count == 1


async def test_a_known_key_waits_for_no_fetch(keys: FetchedKeys, endpoint: Endpoint, clock: ManualClock) -> None:
    assert await keys.find("first", "RS256")
    clock.advance(ASK_AGAIN_AFTER + 1)
    endpoint.gate.clear()
    asking = asyncio.create_task(keys.find("made-up", "RS256"))

    async def is_asked() -> bool:
        return endpoint.request_count == 2

    await eventually_async(is_asked)
    assert await asyncio.wait_for(keys.find("first", "RS256"), 5)
    assert not asking.done()
    endpoint.gate.set()
    assert await asking is None


async def test_keys_are_fetched_at_the_start_and_refreshed(
    keys: FetchedKeys, endpoint: Endpoint, clock: ManualClock
) -> None:
    endpoint.answer = FAILURES["not there"]
    await keys.start()
    await clock.until_waiting(RETRY_AFTER)
    endpoint.answer = document(FIRST)
    clock.advance(RETRY_AFTER)
    await clock.until_waiting(REFRESH_EVERY)
    clock.advance(REFRESH_EVERY)
    await clock.until_waiting(REFRESH_EVERY)
    await keys.stop()

    assert await keys.find("first", "RS256")
    assert endpoint.request_count == 3


async def test_without_a_refresh_task_a_withdrawn_key_expires(
    keys: FetchedKeys, endpoint: Endpoint, clock: ManualClock
) -> None:
    """A mounted application is never started, so nothing refreshes its keys."""
    assert await keys.find("first", "RS256")
    endpoint.answer = document(SECOND)
    clock.advance(REFRESH_EVERY - 1)
    assert await keys.find("first", "RS256")
    clock.advance(2)
    assert await keys.find("first", "RS256") is None
    assert endpoint.request_count == 2
    endpoint.answer = FAILURES["not there"]
    clock.advance(REFRESH_EVERY + 1)
    for _ in range(3):
        assert await keys.find("second", "RS256"), "what is known stays known"
    assert endpoint.request_count == 3


async def test_with_a_refresh_task_a_known_key_never_waits_for_a_fetch(
    keys: FetchedKeys, endpoint: Endpoint, clock: ManualClock
) -> None:
    await keys.start()
    assert await keys.find("first", "RS256")
    endpoint.gate.clear()
    clock.advance(REFRESH_EVERY + 1)

    assert await asyncio.wait_for(keys.find("first", "RS256"), 5)
    await keys.stop()


def test_only_usable_keys_of_a_set_are_accepted() -> None:
    odd_keys: list[Any] = [
        None,
        "first",
        {},
        {"kty": "AKP", "kid": "of-tomorrow"},
        {
            "kty": "RSA",
            "n": base64.urlsafe_b64encode(b"\xff" * 127 + b"\x01").decode().rstrip("="),
            "e": "AQAB",
            "kid": "small",
        },
        {"kty": "RSA", "kid": "half"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "nowhere"},
        OctKey.import_key("secret" * 10).as_dict(private=True),
    ]
    curve = ECKey.generate_key("P-256", {"kid": "curve"})
    key_set = read_set({"keys": [*odd_keys, *document(FIRST, curve)["keys"]]})

    assert len(key_set) == 2
    assert key_set.named("curve", "ES256")
    assert key_set.named("small", "RS256") is None
    assert key_set.named(None, "RS256"), "it is the only one of its kind"
