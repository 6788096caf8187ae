"""Operator commands on the tasks of an agent that the app no longer has."""

from __future__ import annotations

import asyncio

import pytest

from a2a_celery.lifecycle.references import Scope
from tests.support.clients.store_operator import Command, ids, json_lines
from tests.support.store.delivery_cursors import Webhooks
from tests.support.store.seeds import Seeds

pytestmark = pytest.mark.usefixtures("schema_record")


async def test_tasks_of_a_removed_agent_are_selected(command: Command, seeds: Seeds, webhooks: Webhooks) -> None:
    removed = Scope("removed", "", "ann")
    await seeds.recover_run((await seeds.claim_run(task_id=await seeds.create_task(removed, task_id="lost"))).ref)
    await seeds.create_task(removed, task_id="waits")
    await seeds.create_task(removed, task_id="posts")
    await webhooks.save_config("posts")
    await seeds.claim_run("posts")
    await seeds.create_task(task_id="other")

    def select(*arguments: str) -> set[str]:
        return ids(command(*arguments, "--agent", "removed", "--json"))

    assert await asyncio.to_thread(select, "list", "--all") == {"lost", "waits", "posts"}
    assert await asyncio.to_thread(select, "list", "--stuck", "--older-than", "0") == {"waits"}
    assert await asyncio.to_thread(select, "requeue") == {"lost"}
    assert await asyncio.to_thread(select, "deliveries") == {"posts"}
    [metrics] = json_lines(await asyncio.to_thread(command, "stats", "--agent", "removed", "--json"))
    assert metrics["agents"]["removed"]["open"] == {"submitted": 1, "working": 1}


@pytest.mark.parametrize(
    "arguments",
    [("list", "--all"), ("list", "--stuck"), ("cancel", "--all"), ("requeue",), ("deliveries",), ("stats",)],
    ids=" ".join,
)
async def test_an_agent_without_stored_tasks_is_an_error(command: Command, arguments: tuple[str, ...]) -> None:
    assert "no agent 'nobody'; this app has agent, other" in command(*arguments, "--agent", "nobody", code=1).stderr
