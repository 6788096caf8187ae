"""Gateway that requires consent. It accepts a webhook only after the webhook's receiver has consented."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from a2a_celery.client.receiver import Notification, receiver_app
from tests.support.clients import Served, message_json, rpc, serving
from tests.support.receiver import HANG_UP, Step, receiver
from tests.support.webhooks import SECRET
from tests.support.webhooks import served as served_at

ORIGIN = "agents.example.com"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    asks = {"A2A_WEBHOOK_CONSENT": "true", "A2A_PUBLIC_URL": f"https://{ORIGIN}"}
    secrets = {"A2A_SECRET_KEY": "0123456789abcdef0123456789abcdef", "A2A_ALLOW_NETWORKS": "127.0.0.0/8"}
    with serving(tmp_path_factory.mktemp("fleet"), pool="threads", **asks, **secrets) as served:
        yield served


async def ignored(_: Notification) -> None: ...


def sent(served: Served, url: str) -> dict[str, Any]:
    """Send a message with a webhook and return the response."""
    params = message_json("hello")
    params.setdefault("configuration", {})["taskPushNotificationConfig"] = {"url": url, "token": SECRET}
    return rpc(served.gateway, "SendMessage", params, agent="ask")


async def test_the_projects_receiver_consents(served: Served) -> None:
    async with served_at(receiver_app(ignored, secrets=[SECRET])) as url:
        answer = await asyncio.to_thread(sent, served, url)
        task_id = answer["result"]["task"]["id"]
        another = {"taskId": task_id, "url": f"{url}/other"}
        created = await asyncio.to_thread(rpc, served.gateway, "CreateTaskPushNotificationConfig", another, agent="ask")

    assert created["result"]["url"] == f"{url}/other"


@pytest.mark.parametrize("step", [200, HANG_UP], ids=["another-service", "no-answer"])
def test_a_webhook_whose_receiver_does_not_consent_is_refused(served: Served, step: Step) -> None:
    with receiver() as hooks:
        hooks.plan("/hook", [], then=step)
        answer = sent(served, hooks.url())
        methods = {got.method for got in hooks.received()}

    assert answer["error"]["code"] == -32602
    assert "its receiver must consent" in str(answer["error"])
    assert f"WebHook-Allowed-Origin: {ORIGIN}" in str(answer["error"])
    assert methods == {"OPTIONS"}
