"""Texts of an operator's own tasks in the lists of the operator's API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.gateway.operator.api import PATH
from a2a_celery.lifecycle.references import Scope
from a2a_celery.store import AsyncStore, Keys
from tests.support.clients.bindings import message_json
from tests.support.clients.credentials import api_key_entry
from tests.support.processes.local_gateway import LocalGateway, local_gateway
from tests.support.store.seeds import Seeds

KEY = {"X-API-Key": "operator-key"}


@pytest.fixture
def seeds(store: AsyncStore, keys: Keys) -> Seeds:
    return Seeds(store, keys)


@pytest.fixture
async def gateway(store: AsyncStore, redis_server: EmbeddedRedis, keys: Keys) -> AsyncIterator[LocalGateway]:
    options = {"auth_api_keys": [api_key_entry("ops", "operator-key")], "operators": ["ops"]}
    async with local_gateway(store, redis_server.store_url, keys, **options) as gateway:
        yield gateway


@pytest.mark.parametrize("phase", ["all", "any&owner=ops", "queued"])
async def test_only_the_operator_s_own_tasks_have_texts(gateway: LocalGateway, seeds: Seeds, phase: str) -> None:
    own = Scope(agent="echo", owner="ops")
    own_id = await seeds.create_task(own)
    await seeds.create_task(replace(own, owner="bob"))

    tasks = (await gateway.http.get(f"{PATH}/tasks?phase={phase}", headers=KEY)).json()["tasks"]

    texts = {task["id"]: task["request"] for task in tasks if "request" in task}
    assert texts == {own_id: "hello"}


async def test_a_long_request_is_cut_in_the_middle(gateway: LocalGateway) -> None:
    body = message_json("begin " + "x" * 1000 + " end") | {"configuration": {"returnImmediately": True}}
    await gateway.http.post("/agents/echo/message:send", json=body, headers={"A2A-Version": "1.0", **KEY})

    [task] = (await gateway.http.get(f"{PATH}/tasks?phase=all", headers=KEY)).json()["tasks"]

    assert task["request"].startswith("begin xxx")
    assert task["request"].endswith("xxx end")
    assert len(task["request"]) < 210
