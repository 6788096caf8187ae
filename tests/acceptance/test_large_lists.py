"""Lists of large tasks, with limits on the size of a page and on the memory of the gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from a2a_celery.lifecycle.references import RunRef, Scope
from a2a_celery.lifecycle.states import COMPLETED
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.runs.commands import claim_run, settle_run
from a2a_celery.store.tasks.commands import create_task
from tests.support.clients.talk import HEADERS, TIMEOUT
from tests.support.processes.fleet import Gateway, running_fleet
from tests.support.store.seeds import CONTEXT, LEASE_US, request, status

MIB = 2**20
TASKS = 25


async def ended_tasks(store_url: str, text: str) -> list[str]:
    """Create COMPLETED tasks, each with a message of `text`, and return their ids."""
    store, keys, ids = AsyncStore(store_url), Keys(), [f"task-{number:02}" for number in range(TASKS)]
    for task_id in ids:
        scope, message_request = Scope("echo"), request(text, task_id, CONTEXT)
        await store.run(create_task(keys, scope, task_id, CONTEXT, message_request, caller=b"{}", retention=3600))
        ref = RunRef(task_id, 1)
        await store.run(claim_run(keys, ref, token="k", runner="r", lease_us=LEASE_US, working=False))
        await store.run(settle_run(keys, ref, token="k", written_count=0, events=[status(COMPLETED)]))
    await store.aclose()
    return ids


def peak_memory(gateway: Gateway) -> int:
    """Return the peak resident memory of the gateway's process in bytes."""
    lines = Path(f"/proc/{gateway.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def test_a_list_of_150_mib_comes_in_pages_and_grows_its_gateway_by_few_of_them(tmp_path: Path) -> None:
    with running_fleet(tmp_path) as fleet:
        gateway = fleet.gateway()
        ids = asyncio.run(ended_tasks(fleet.redis.store_url, "x" * (6 * MIB)))
        memory_before, task_ids, sizes, token = peak_memory(gateway), [], [], ""
        while not task_ids or token:
            url = f"{gateway.url}/agents/echo/tasks?pageSize=100&pageToken={token}"
            answer = httpx.get(url, headers=HEADERS, timeout=TIMEOUT)
            task_ids += [task["id"] for task in answer.json()["tasks"]]
            sizes.append(len(answer.content))
            token = answer.json()["nextPageToken"]

        assert task_ids == ids[::-1]
        assert max(sizes) < 8 * MIB
        assert (peak_memory(gateway) - memory_before) / MIB < 100
