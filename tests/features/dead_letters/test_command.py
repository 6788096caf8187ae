"""Dead letters in the command line: ``a2a requeue``, and the note of ``a2a get --store``."""

from __future__ import annotations

import asyncio

import pytest

from a2a_celery.lifecycle.references import Scope
from tests.support.clients.store_operator import Command, ids, json_lines
from tests.support.store.seeds import Seeds

ANN, BOB = Scope("agent", "acme", "ann"), Scope("agent", "", "bob/?*")
OTHER = Scope("other", "acme", "ann")

pytestmark = pytest.mark.usefixtures("schema_record")


async def test_dead_letters_are_selected(command: Command, seeds: Seeds) -> None:
    for scope, task_id in ((ANN, "ann's"), (BOB, "bob's"), (OTHER, "other's")):
        claim = await seeds.claim_run(task_id=await seeds.create_task(scope, task_id=task_id))
        await seeds.recover_run(claim.ref)

    def dead_ids(*filters: str) -> set[str]:
        return ids(command("requeue", "--json", *filters))

    assert await asyncio.to_thread(dead_ids) == {"ann's", "bob's", "other's"}
    assert await asyncio.to_thread(dead_ids, "--tenant", "acme") == {"ann's", "other's"}
    assert await asyncio.to_thread(dead_ids, "--owner", "ann", "--agent", "agent") == {"ann's"}
    assert await asyncio.to_thread(dead_ids, "--until", "1h") == set()
    assert await asyncio.to_thread(dead_ids, "--limit", "1") == {"ann's"}
    second_output = await asyncio.to_thread(command, "requeue", "--all", "--owner", "bob/?*", "--json")
    assert [entry["requeuedFrom"] for entry in json_lines(second_output)] == ["bob's"]
    assert await asyncio.to_thread(dead_ids) == {"ann's", "other's"}


async def test_a_dead_letter_is_shown_with_its_remedy(command: Command, seeds: Seeds) -> None:
    await seeds.recover_run((await seeds.claim_run(task_id=await seeds.create_task(task_id="lost"))).ref)

    lines = (await asyncio.to_thread(command, "get", "lost", "--store")).stdout.splitlines()
    assert lines[2:] == ["FAILED: The worker was lost.", "run it again: a2a requeue lost"]
    assert len(json_lines(await asyncio.to_thread(command, "get", "lost", "--store", "--json"))) == 1
    [result] = json_lines(await asyncio.to_thread(command, "requeue", "lost", "--json"))

    lines = (await asyncio.to_thread(command, "get", "lost", "--store")).stdout.splitlines()
    assert lines[-1] == f"requeued as task {result['task']}"
