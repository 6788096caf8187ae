"""Consent of webhook receivers, as the CloudEvents webhook specification defines it."""

from __future__ import annotations

import asyncio

import pytest

from a2a_celery.push import CircuitBreaker, Poster
from a2a_celery.push.poster import POST_TIMEOUT
from tests.support.clocks import ManualClock
from tests.support.receivers.receiver import HANG_UP, Reply, Step, receiver, silent

from .fake_resolver import LOCAL

ORIGIN = "agents.example.com"


def allowing(origin: str, status: int = 200) -> Reply:
    return Reply(status, (("WebHook-Allowed-Origin", origin),))


@pytest.mark.parametrize(
    ("step", "consents"),
    [
        (allowing(ORIGIN), True),
        (allowing("Agents.Example.COM"), True),
        (allowing("*", 204), True),
        (allowing("other.example.com"), False),
        (allowing(f"{ORIGIN}, other.example.com"), False),
        (allowing(ORIGIN, 405), False),
        (allowing(ORIGIN, 410), False),
        (allowing(ORIGIN, 302), False),
        (200, False),
        (HANG_UP, False),
    ],
)
async def test_only_a_receiver_that_names_the_origin_consents(step: Step, consents: bool) -> None:
    with receiver() as hooks:
        hooks.plan("/hook", [], then=step)
        async with Poster(LOCAL) as poster:
            assert await poster.has_consent(hooks.url(), ORIGIN) is consents
        [post, *_] = hooks.requests()

    assert (post.method, post.body) == ("OPTIONS", b"")
    assert post.headers["webhook-request-origin"] == ORIGIN
    assert not {name for name in post.headers if name.startswith(("authorization", "x-a2a", "webhook-id"))}


async def test_a_receiver_that_does_not_respond_does_not_consent() -> None:
    clock = ManualClock()
    with receiver() as hooks:
        hooks.plan("/hook", [], then=silent())
        async with Poster(LOCAL, clock=clock) as poster:
            asking = asyncio.create_task(poster.has_consent(hooks.url(), ORIGIN))
            await asyncio.to_thread(hooks.wait_for, "/hook")
            clock.advance(POST_TIMEOUT)
            assert not await asking


async def test_one_that_cannot_be_asked_does_not_consent() -> None:
    async with Poster(LOCAL, circuit_breaker=CircuitBreaker(max_posts=0)) as poster:
        assert not await poster.has_consent("http://127.0.0.1:9/hook", ORIGIN)
        assert not await poster.has_consent("https://10.0.0.1/hook", ORIGIN)
