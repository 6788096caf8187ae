"""Metadata of CancelTask, which names the canceller: the client, or an agent whose own task was cancelled."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from a2a_celery import Turn
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.lifecycle.outcomes import CANCELED_BY_CLIENT, CANCELED_WITH_RUN
from a2a_celery.store import AsyncStore, Keys
from tests.execution.local_agents import local_agents
from tests.support.clients.bindings import message_json


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, CANCELED_BY_CLIENT),
        ({"metadata": {"canceledBy": "somebody"}}, CANCELED_BY_CLIENT),
        ({"metadata": {"canceledBy": "parent"}}, CANCELED_WITH_RUN),
    ],
)
async def test_the_status_text_names_the_canceller(
    store: AsyncStore, keys: Keys, redis_server: EmbeddedRedis, body: dict[str, Any], text: str
) -> None:
    async with local_agents(store, keys, redis_server.store_url) as agents:

        @agents.a2a.agent("agent", description="Never runs.")
        async def never(turn: Turn) -> None: ...

        asgi = agents.a2a.asgi()
        async with (
            asgi.router.lifespan_context(asgi),
            httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url="http://localhost") as http,
        ):
            headers = {"A2A-Version": "1.0"}
            message = message_json() | {"configuration": {"returnImmediately": True}}
            task = (await http.post("/message:send", json=message, headers=headers)).json()["task"]

            answer = (await http.post(f"/tasks/{task['id']}:cancel", json=body, headers=headers)).json()

    assert answer["status"]["state"] == "TASK_STATE_CANCELED"
    assert answer["status"]["message"]["parts"] == [{"text": text}]
