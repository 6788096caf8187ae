"""Test pings, signed as a deployment signs them. Each receiver in a2a_celery accepts the ping and calls no handler."""

from __future__ import annotations

import time

import httpx
import pytest
from a2a.types import AuthenticationInfo, TaskPushNotificationConfig
from celery import Celery
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from a2a_celery.client.calling.webhook import Webhook
from a2a_celery.client.receiver import (
    MemoryDeduplicator,
    Notification,
    Ping,
    Verifier,
    handle_once,
    receive,
    receiver_app,
)
from a2a_celery.push import PostRequest, Signer, delivery_id
from tests.support.receivers.webhooks import OTHER_SECRET, SECRET, Post

CREDENTIALS = "s3cret-cr3dentials"


def ping(token: str = SECRET) -> Post:
    """Return the post of a ping to a webhook with `token`."""
    authentication = AuthenticationInfo(scheme="Bearer", credentials=CREDENTIALS)
    config = TaskPushNotificationConfig(
        id="c", task_id="t", url="https://example.com/hook", token=token, authentication=authentication
    )
    ping_id = delivery_id("t", "c", "ping-0123456789abcdef")
    request = PostRequest.ping(config, delivery_id=ping_id, now=time.time(), signer=Signer.of(config))
    return Post(request.headers, request.body)


async def answer(app: Starlette, post: Post, path: str = "/hook") -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://receiver") as http:
        return await http.post(path, headers=post.headers, content=post.body)


async def reject(notification: Notification) -> None:
    raise AssertionError(f"{notification} is no event")


async def own_route(request: Request) -> Response:
    notification = await receive(request, Verifier([SECRET]))
    async with handle_once(notification, MemoryDeduplicator()):
        await reject(notification)
    return Response(status_code=204)


RECEIVERS = {
    "secrets": receiver_app(reject, secrets=[SECRET]),
    "credentials": receiver_app(reject, authorization=f"Bearer {CREDENTIALS}"),
    "a route of one's own": Starlette(routes=[Route("/hook", own_route, methods=["POST"])]),
}


@pytest.mark.parametrize("app", RECEIVERS.values(), ids=RECEIVERS.keys())
async def test_a_ping_is_accepted_and_not_handled(app: Starlette) -> None:
    response = await answer(app, ping())

    assert (response.status_code, response.content) == (204, b"")


async def test_a_ping_by_the_token_alone_is_accepted() -> None:
    response = await answer(receiver_app(reject, token="plain"), ping("plain"))

    assert response.status_code == 204


async def test_a_ping_that_is_signed_with_another_secret_is_refused() -> None:
    response = await answer(receiver_app(reject, secrets=[OTHER_SECRET]), ping())

    assert response.status_code == 401


async def test_a_ping_that_was_changed_is_refused() -> None:
    signed_ping = ping()

    with pytest.raises(Exception, match="No signature of this id") as response:
        Verifier([SECRET]).verify(signed_ping.headers, signed_ping.body.replace(b'"t"', b'"u"'))
    assert not isinstance(response.value, Ping)


async def test_the_receiver_of_calls_from_celery_accepts_a_ping() -> None:
    webhook = Webhook("https://example.com/wake", "a secret of 32 characters, or more")
    config = webhook.config("step-1")

    response = await answer(webhook.app(Celery("calls", broker="memory://")), ping(config.token), "/step-1")

    assert response.status_code == 204
