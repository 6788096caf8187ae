"""Gateway that accepts a webhook only after the webhook's receiver has consented."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from a2a_celery.client.receiver import Notification, receiver_app
from tests.support.clients.bindings import ServedFleet, message_json, rpc, serve_fleet
from tests.support.processes.serving import serve_app as served_at
from tests.support.receivers.receiver import HANG_UP, Step, receiver
from tests.support.receivers.webhooks import SECRET

ORIGIN = "agents.example.com"


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    asks = {"A2A_WEBHOOK_CONSENT": "true", "A2A_PUBLIC_URL": f"https://{ORIGIN}"}
    secrets = {"A2A_SECRET_KEY": "0123456789abcdef0123456789abcdef", "A2A_ALLOW_NETWORKS": "127.0.0.0/8"}
    with serve_fleet(tmp_path_factory.mktemp("fleet"), pool="threads", **asks, **secrets) as served_fleet:
        yield served_fleet


async def ignore(_: Notification) -> None: ...


def send_with_webhook(served_fleet: ServedFleet, url: str) -> dict[str, Any]:
    """Send a message with a webhook and return the response."""
    params = message_json("hello")
    params.setdefault("configuration", {})["taskPushNotificationConfig"] = {"url": url, "token": SECRET}
    return rpc(served_fleet.gateway, "SendMessage", params, agent="ask")


async def test_the_projects_receiver_consents(served_fleet: ServedFleet) -> None:
    async with served_at(receiver_app(ignore, secrets=[SECRET])) as url:
        answer = await asyncio.to_thread(send_with_webhook, served_fleet, url)
        task_id = answer["result"]["task"]["id"]
        another = {"taskId": task_id, "url": f"{url}/other"}
        response = await asyncio.to_thread(
            rpc, served_fleet.gateway, "CreateTaskPushNotificationConfig", another, agent="ask"
        )

    assert response["result"]["url"] == f"{url}/other"


@pytest.mark.parametrize("step", [200, HANG_UP], ids=["another-service", "no-answer"])
def test_a_webhook_whose_receiver_does_not_consent_is_refused(served_fleet: ServedFleet, step: Step) -> None:
    with receiver() as hooks:
        hooks.plan("/hook", [], then=step)
        answer = send_with_webhook(served_fleet, hooks.url())
        methods = {got.method for got in hooks.requests()}

    assert answer["error"]["code"] == -32602
    assert "its receiver must consent" in str(answer["error"])
    assert f"WebHook-Allowed-Origin: {ORIGIN}" in str(answer["error"])
    assert methods == {"OPTIONS"}
