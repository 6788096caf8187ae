"""Webhooks of servers without signatures, authenticated by the A2A token or by credentials."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from a2a.server.context import ServerCallContext
from a2a.server.tasks import BasePushNotificationSender, InMemoryPushNotificationConfigStore
from a2a.types import (
    AuthenticationInfo,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

from a2a_celery.client.receiver import (
    MalformedNotification,
    NotAuthentic,
    Notification,
    NotificationRefused,
    Verifier,
    receiver_app,
)
from a2a_celery.errors import ConfigError
from tests.support.clocks import START, ManualClock
from tests.support.processes.serving import serve_app
from tests.support.receivers.webhooks import OTHER_SECRET, SECRET, post
from tests.support.waiting import LIMIT

TOKEN = "chosen-by-the-client"
STATUS = {"statusUpdate": {"taskId": "t1", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}}


def unsigned_headers(token: str = "", authorization: str = "") -> dict[str, str]:
    """Return the headers of a post without a signature."""
    headers = {"X-A2A-Notification-Token": token, "Authorization": authorization}
    return {name: value for name, value in headers.items() if value}


def read(headers: dict[str, str], *, body: Any = STATUS, **options: Any) -> Notification:
    return Verifier(clock=ManualClock(), **options).verify(headers, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("headers", "options"),
    [
        (unsigned_headers(TOKEN), {"token": TOKEN}),
        (unsigned_headers(authorization="Bearer hush"), {"authorization": "Bearer hush"}),
        (unsigned_headers(TOKEN, "Bearer hush"), {"token": TOKEN, "authorization": "Bearer hush"}),
        (unsigned_headers(SECRET), {"secrets": [SECRET]}),
        (unsigned_headers(SECRET), {"secrets": [OTHER_SECRET, SECRET]}),
        (unsigned_headers(TOKEN), {"secrets": [TOKEN.encode()]}),
        (unsigned_headers(SECRET, "Bearer hush"), {"secrets": [SECRET], "authorization": "Bearer hush"}),
    ],
)
def test_a_post_without_a_signature_is_authenticated_by_its_config(
    headers: dict[str, str], options: dict[str, Any]
) -> None:
    notification = read(headers, **options)

    assert (notification.task_id, notification.subscription_id, notification.version) == ("t1", "", 0)
    assert notification.timestamp == START
    assert Notification.from_dict(notification.to_dict()) == notification
    assert read(headers, **options).id != notification.id, "two equal chunks are two events"


@pytest.mark.parametrize(
    ("headers", "options"),
    [
        (unsigned_headers(), {"token": TOKEN}),
        (unsigned_headers("another"), {"token": TOKEN}),
        (unsigned_headers(TOKEN), {"token": TOKEN, "authorization": "Bearer hush"}),
        (unsigned_headers(authorization="Bearer hush"), {"token": TOKEN, "authorization": "Bearer hush"}),
        (unsigned_headers(OTHER_SECRET), {"secrets": [SECRET]}),
        (unsigned_headers(TOKEN), {"secrets": [SECRET], "token": TOKEN}),
        (unsigned_headers(authorization="Bearer hush"), {"secrets": [SECRET], "authorization": "Bearer hush"}),
        (unsigned_headers(SECRET), {"secrets": [SECRET], "authorization": "Bearer hush"}),
        (unsigned_headers("\udcff"), {"token": TOKEN}),
    ],
)
def test_a_post_with_fewer_credentials_than_its_config_is_refused(
    headers: dict[str, str], options: dict[str, Any]
) -> None:
    with pytest.raises(NotificationRefused) as exc_info:
        read(headers, **options)

    assert isinstance(exc_info.value, NotAuthentic | MalformedNotification)
    assert not any(secret in str(exc_info.value) for secret in (TOKEN, SECRET, "hush"))


def test_a_signature_that_is_there_counts_also_beside_the_token() -> None:
    """An attacker who reads an unsigned post must not be able to replay it as a signed post."""
    forged_post = post(secrets=(OTHER_SECRET,), at=int(START))
    forged_post.headers["X-A2A-Notification-Token"] = SECRET

    with pytest.raises(NotAuthentic):
        Verifier([SECRET], clock=ManualClock()).verify(forged_post.headers, forged_post.body)


@pytest.mark.parametrize("options", [{}, {"secrets": []}, {"token": ""}, {"authorization": ""}])
def test_a_verifier_that_would_take_every_post_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="at least one secret"):
        Verifier(**options)


@pytest.mark.parametrize(
    "body",
    [
        STATUS,
        {"task": {"id": "t1", "status": {"state": "TASK_STATE_WORKING"}}},
        {
            "kind": "task",
            "id": "t1",
            "contextId": "c",
            "status": {"state": "working", "timestamp": "2030-01-01T00:00:00"},
        },
        {"kind": "status-update", "taskId": "t1", "contextId": "c", "final": False, "status": {"state": "working"}},
        {"id": "t1", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}},
    ],
    ids=["1.0", "1.0 task", "0.3 task", "0.3 update", "a bare task"],
)
def test_events_are_read_in_each_form_that_servers_post(body: dict[str, Any]) -> None:
    event = read(unsigned_headers(TOKEN), body=body, token=TOKEN).event

    assert isinstance(event, Task | TaskStatusUpdateEvent)
    assert event.status.state == TaskState.TASK_STATE_WORKING


@pytest.mark.parametrize("body", [{}, [], "text", {"jsonrpc": "2.0"}])
def test_a_body_that_is_no_event_is_refused(body: Any) -> None:
    with pytest.raises(MalformedNotification, match="none of"):
        read(unsigned_headers(TOKEN), body=body, token=TOKEN)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=LIMIT) as client:
        yield client


@pytest.mark.parametrize("known_by", ["the secret as its token", "a token", "credentials"])
async def test_the_sdks_own_server_posts_to_a_receiver(http: httpx.AsyncClient, known_by: str) -> None:
    notifications: list[Notification] = []

    async def note(notification: Notification) -> None:
        notifications.append(notification)

    config = TaskPushNotificationConfig(task_id="t1", id="p")
    match known_by:
        case "the secret as its token":
            config.token, receiver = SECRET, receiver_app(note, secrets=[SECRET])
        case "a token":
            config.token, receiver = TOKEN, receiver_app(note, token=TOKEN)
        case _:
            config.authentication.CopyFrom(AuthenticationInfo(scheme="Bearer", credentials="hush"))
            receiver = receiver_app(note, authorization="Bearer hush")
    event = TaskStatusUpdateEvent(task_id="t1", status=TaskStatus(state=TaskState.TASK_STATE_WORKING))
    configs = InMemoryPushNotificationConfigStore()
    async with serve_app(receiver) as url:
        config.url = url
        await configs.set_info("t1", config, ServerCallContext())
        sender = BasePushNotificationSender(http, configs)
        await sender.send_notification("t1", event)
        await sender.send_notification("t1", event)

    assert [item.event for item in notifications] == [event, event]
